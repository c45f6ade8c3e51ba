#ifndef GATEHOUSE_CLIENT_PAGE_TRACE_SECTION_H_
#define GATEHOUSE_CLIENT_PAGE_TRACE_SECTION_H_

#include <string>

#include "client/cli/json.h"
#include "gatehouse/v1/common.pb.h"
#include "gatehouse/v1/models.pb.h"
#include "gatehouse/v1/scoring.pb.h"

namespace gatehouse::client {

// The section of a report that shows a text token by token (client/page/trace.js draws
// it); docs/client.md documents its fields.

// What the trace records of each token.
v1::TokenRecords TraceRecords();

// The section without its tokens: what is known of the layers.
cli::Json TraceSection(const v1::DescribeModelResponse& model);

// Makes the tokens' objects, in order.  Bytes of a character that a later token completes
// are shown with that token.  Not thread-safe.
class TraceTokens {
 public:
  cli::Json Next(const v1::TokenInsight& insight);
  cli::Json Next(const v1::ScoredToken& token);
  // One of which nothing was recorded.
  cli::Json Next(int32_t id, const std::string& raw);

 private:
  std::string TextOf(const std::string& raw);

  std::string carry_;
};

}  // namespace gatehouse::client

#endif  // GATEHOUSE_CLIENT_PAGE_TRACE_SECTION_H_
