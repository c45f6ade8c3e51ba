#include "client/load/figures.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "client/errors.h"

namespace gatehouse::client {
namespace {

template <typename Values>
Quantiles Collect(const LoadResult& result, const Values& add) {
  std::vector<double> values;
  for (const CallRecord& call : result.calls) add(call, values);
  return Quantiles(std::move(values));
}

bool Keeps(const std::optional<double>& bound, double value) { return !bound.has_value() || value <= *bound; }

bool IsGood(const CallRecord& call, const Objectives& objectives) {
  if (!call.ok()) return false;
  return Keeps(objectives.first_token, call.first_token.value_or(call.ended) - call.intended) &&
         Keeps(objectives.time_per_token, call.time_per_token().value_or(0)) &&
         Keeps(objectives.end_to_end, call.ended - call.intended);
}

}  // namespace

double QuantileOf(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

Quantiles::Quantiles(std::vector<double> values) : count(values.size()) {
  std::sort(values.begin(), values.end());
  p50 = QuantileOf(values, 0.5);
  p90 = QuantileOf(values, 0.9);
  p99 = QuantileOf(values, 0.99);
  max = QuantileOf(values, 1);
  mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(count);
}

LoadFigures::LoadFigures(const LoadResult& result, const Objectives& objectives)
    : sent(result.calls.size()),
      seconds(result.seconds),
      first_token(Collect(result,
                          [](const CallRecord& call, auto& values) {
                            if (call.first_token.has_value()) values.push_back(*call.first_token - call.intended);
                          })),
      inter_token(
          Collect(result, [](const CallRecord& call,
                             auto& values) { values.insert(values.end(), call.gaps.begin(), call.gaps.end()); })),
      time_per_token(Collect(result,
                             [](const CallRecord& call, auto& values) {
                               if (const auto mean = call.time_per_token(); mean.has_value()) values.push_back(*mean);
                             })),
      end_to_end(Collect(result,
                         [](const CallRecord& call, auto& values) {
                           if (call.ok()) values.push_back(call.ended - call.intended);
                         })),
      queue(Collect(result,
                    [](const CallRecord& call, auto& values) {
                      if (call.ok()) values.push_back(call.queue_seconds);
                    })),
      lateness(
          Collect(result, [](const CallRecord& call, auto& values) { values.push_back(call.sent - call.intended); })) {
  for (const CallRecord& call : result.calls) {
    if (call.first_token.has_value()) prompt_tokens += call.prompt_tokens;
    generated_tokens += call.received_tokens;
    if (call.ok()) {
      ++succeeded;
      good += IsGood(call, objectives) ? 1 : 0;
    } else if (result.interrupted && absl::IsCancelled(call.status)) {
      ++unfinished;
    } else {
      ++failed;
      ErrorCount& error = errors[{absl::StatusCodeToString(call.status.code()), ErrorReason(call.status)}];
      if (error.count++ == 0) error.message = std::string(call.status.message());
    }
  }
}

}  // namespace gatehouse::client
