#ifndef GATEHOUSE_TESTS_RPC_RAW_CALL_H_
#define GATEHOUSE_TESTS_RPC_RAW_CALL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gatehouse::testing {

struct RawReply {
  grpc::Status status;
  std::vector<std::string> messages;
};

// Calls a method (such as "/gatehouse.v1.ModelService/ListModels") with these bytes as its
// requests, whatever they are, and reads every reply.
RawReply RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                 const std::vector<std::string>& requests);

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_RPC_RAW_CALL_H_
