#ifndef GATEHOUSE_CLIENT_LOAD_FIGURES_H_
#define GATEHOUSE_CLIENT_LOAD_FIGURES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/load/load_run.h"

namespace gatehouse::client {

// What a request must keep to count as good; each in seconds, absent: anything will do.
struct Objectives {
  std::optional<double> first_token;     // at most this until the first token
  std::optional<double> time_per_token;  // at most this between tokens, in the mean over the request
  std::optional<double> end_to_end;
};

// Of a sample: by nearest rank, so that each is a value that occurred.  NaN where there is none.
struct Quantiles {
  explicit Quantiles(std::vector<double> values);
  double p50, p90, p99, max, mean;
  size_t count;
};

// The value below which that share of the sorted sample lies, by nearest rank; NaN of none.
double QuantileOf(const std::vector<double>& sorted, double share);

struct ErrorCount {
  size_t count = 0;
  std::string message;  // of the first
};

// What a load measured.
struct LoadFigures {
  LoadFigures(const LoadResult& result, const Objectives& objectives);

  size_t sent = 0, succeeded = 0, good = 0, failed = 0;
  size_t unfinished = 0;  // cancelled by the user
  double seconds = 0;
  uint64_t prompt_tokens = 0;     // of calls that got an answer
  uint64_t generated_tokens = 0;  // that arrived
  // Seconds: until the first token, of all calls that got one; between tokens, each gap; the same, each call's
  // mean; until the end, of calls that succeeded; in the server's queue; and from when a call was to be sent until
  // it was.
  Quantiles first_token, inter_token, time_per_token, end_to_end, queue, lateness;
  std::map<std::pair<std::string, std::string>, ErrorCount> errors;  // by code and reason

  double PerSecond(double count) const { return seconds > 0 ? count / seconds : 0; }
};

}  // namespace gatehouse::client

#endif  // GATEHOUSE_CLIENT_LOAD_FIGURES_H_
