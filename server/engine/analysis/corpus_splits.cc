#include "server/engine/analysis/corpus_splits.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <random>
#include <string>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/shuffle.h"

namespace gatehouse {
namespace {

constexpr int kDefaultWindow = 512;
constexpr int64_t kMostTokens = int64_t{1} << 24;  // of one split; holds memory in bounds

// One split while its size is being decided, in blocks.
struct Share {
  const char* name;
  int64_t asked;      // tokens, 0 for the default
  int64_t wanted;     // blocks
  int64_t least = 1;  // blocks
  int64_t got = 0;
};
using Shares = std::array<Share, 4>;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

absl::StatusOr<int> Window(const CalibrateOptions& options, const ModelConfig& model) {
  const int window = options.window_tokens == 0 ? std::min(kDefaultWindow, model.context) : options.window_tokens;
  // At least two tokens beyond the sinks: one to replace, one to predict.
  const int least = options.sink_positions + 2;
  if (window < least || window > model.context) {
    return absl::InvalidArgumentError(StrCat("window_tokens is ", window, ", outside [", least, ", ", model.context,
                                             "] (sink_positions + 2 to the model's context)"));
  }
  return window;
}

absl::StatusOr<Shares> Sizes(const CalibrateOptions& options, int window, const ModelConfig& model) {
  // Budgets are tenths of a percent, which few tokens cannot tell apart.
  const int64_t judged = options.budget.budgets.empty() ? 5'000 : 20'000;
  Shares shares = {{{"fit_tokens", options.fit_tokens, 10'000},
                    {"gate_tokens", options.gate_tokens, 25'000},
                    {"select_tokens", options.select_tokens, judged},
                    {"report_tokens", options.report_tokens, judged}}};
  // A surrogate is a fit of d_model numbers per output: twice as many tokens as that.
  shares[0].least = CeilDiv(2 * int64_t{model.d_model}, window - options.sink_positions);
  for (Share& share : shares) {
    if (share.asked < 0 || share.asked > kMostTokens) {
      return absl::InvalidArgumentError(StrCat(share.name, " is ", share.asked, ", outside [0, ", kMostTokens, "]"));
    }
    share.wanted = CeilDiv(share.asked == 0 ? share.wanted : share.asked, window);
    if (share.asked != 0 && share.wanted < share.least) {
      return absl::InvalidArgumentError(
          StrCat(share.name, " is ", share.asked, "; this model needs at least ", share.least * window));
    }
    share.wanted = std::max(share.wanted, share.least);
    share.got = share.asked == 0 ? share.least : share.wanted;
  }
  return shares;
}

// Shares `blocks` out: what was asked for in full, the rest by need.
absl::Status ShareOut(Shares& shares, int64_t blocks, int window, int64_t corpus_tokens) {
  int64_t given = 0;
  for (const Share& share : shares) given += share.got;
  if (given > blocks) {
    return absl::InvalidArgumentError(StrCat("the corpus has ", corpus_tokens, " tokens; its splits need at least ",
                                             given * window, " (fit ", shares[0].got * window, ", gate ",
                                             shares[1].got * window, ", select ", shares[2].got * window, ", report ",
                                             shares[3].got * window, ", in blocks of ", window, ")"));
  }
  while (given < blocks) {
    // The split that has least of what it wants.
    const auto next = std::min_element(shares.begin(), shares.end(), [](const Share& a, const Share& b) {
      return a.got * b.wanted < b.got * a.wanted;
    });
    if (next->got >= next->wanted) break;
    ++next->got;
    ++given;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CorpusSplits> PlanSplits(const CalibrateOptions& options, int64_t corpus_tokens,
                                        const ModelConfig& model) {
  CorpusSplits splits;
  GH_ASSIGN_OR_RETURN(splits.window, Window(options, model));
  GH_ASSIGN_OR_RETURN(Shares shares, Sizes(options, splits.window, model));
  const int64_t available = corpus_tokens / splits.window;
  GH_RETURN_IF_ERROR(ShareOut(shares, available, splits.window, corpus_tokens));

  int64_t used = 0;
  for (const Share& share : shares) used += share.got;
  std::vector<int64_t> blocks(used);
  for (int64_t i = 0; i < used; ++i) blocks[i] = i * available / used;
  std::mt19937_64 random(options.seed);
  Shuffle(blocks, random);

  const std::array<std::vector<int64_t>*, 4> parts = {&splits.fit, &splits.gate, &splits.select, &splits.report};
  auto next = blocks.begin();
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i]->assign(next, next + shares[i].got);
    std::sort(parts[i]->begin(), parts[i]->end());
    next += shares[i].got;
  }
  return splits;
}

absl::Status CheckVariety(std::span<const int32_t> tokens) {
  if (std::adjacent_find(tokens.begin(), tokens.end(), std::not_equal_to<>()) != tokens.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("the corpus is one token, ", tokens.size(), " times: there is nothing to fit to it"));
}

absl::Status CheckIntervalsExist(const CorpusSplits& splits) {
  if (splits.report.size() >= 2) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("report_tokens comes to one block of ", splits.window,
             " tokens; an interval needs two: give more of them, or a smaller window_tokens"));
}

}  // namespace gatehouse
