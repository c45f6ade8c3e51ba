#ifndef GATEHOUSE_CLIENT_LOAD_TRACE_H_
#define GATEHOUSE_CLIENT_LOAD_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <istream>
#include <vector>

#include "absl/status/statusor.h"

namespace gatehouse::client {

// One request of a recorded trace.
struct TraceEntry {
  double seconds = 0;  // after the first
  uint32_t prompt_tokens = 0;
  uint32_t generated_tokens = 0;
};

// Reads a trace in the CSV form of the Azure LLM inference traces: a first line that names the
// columns, among them TIMESTAMP (such as 2023-11-16 18:15:46.6805900, with or without an
// offset from UTC, or plain seconds), ContextTokens and GeneratedTokens, in any order.  Of the
// requests the first `limit`, in order of time.  InvalidArgument names the line and the column.
absl::StatusOr<std::vector<TraceEntry>> ReadTrace(std::istream& csv, size_t limit);

}  // namespace gatehouse::client

#endif  // GATEHOUSE_CLIENT_LOAD_TRACE_H_
