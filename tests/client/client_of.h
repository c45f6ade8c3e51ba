#ifndef GATEHOUSE_TESTS_CLIENT_CLIENT_OF_H_
#define GATEHOUSE_TESTS_CLIENT_CLIENT_OF_H_

#include <memory>

#include "client/client.h"
#include "tests/client/fake_server.h"

namespace gatehouse::testing {

// Values of grpc::StatusCode, for FakeStatus.
inline constexpr int kInvalidArgument = 3, kNotFound = 5, kResourceExhausted = 8, kFailedPrecondition = 9,
                     kUnavailable = 14;

inline std::unique_ptr<client::Client> ClientOf(const FakeServer& server, int attempts = 4) {
  client::ClientOptions options;
  options.server = server.address();
  options.attempts = attempts;
  return *client::Client::Create(options);
}

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_CLIENT_CLIENT_OF_H_
