#ifndef GATEHOUSE_SERVER_PAGE_TRACE_REQUEST_H_
#define GATEHOUSE_SERVER_PAGE_TRACE_REQUEST_H_

#include <array>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gatehouse/v1/generation.pb.h"

namespace gatehouse {

// The fields of a request to /trace; docs/configuration.md documents them.
inline constexpr std::array<std::string_view, 9> kTraceFields = {
    "model",  "prompt",    "max_tokens",      "temperature",    "seed",
    "gating", "threshold", "operating_point", "timeout_seconds"};

// A generation to be traced.
struct TraceRequest {
  v1::GenerateRequest generate;  // with all records, of the prompt too
  absl::Duration timeout = absl::Minutes(5);
};

// Reads the JSON object of a request.  InvalidArgument, naming the field, for a value of
// another type than the field's and for a field that is not known; what the values mean is
// checked where every call's are.
absl::StatusOr<TraceRequest> ParseTraceRequest(std::string_view json);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_PAGE_TRACE_REQUEST_H_
