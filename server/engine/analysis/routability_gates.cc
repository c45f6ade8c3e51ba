#include "server/engine/analysis/routability_gates.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mv.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "server/base/status_macros.h"
#include "server/engine/analysis/logistic_gate.h"
#include "server/engine/analysis/nonlinearity.h"
#include "server/engine/analysis/shuffle.h"

namespace gatehouse {
namespace {

using Scores = std::vector<double>;

// Tokens that train or test.
struct Part {
  std::vector<int64_t> rows;    // block · window + position
  std::vector<int64_t> blocks;  // number among the test blocks
  std::vector<int64_t> ids;
  std::vector<double> delta;
  std::vector<uint8_t> labels;

  void Add(int64_t row, int64_t block, int64_t id, double change) {
    rows.push_back(row);
    blocks.push_back(block);
    ids.push_back(id);
    delta.push_back(change);
  }
  void Label(double limit) {
    for (const double change : delta) labels.push_back(change <= limit);
  }
};

// Tokens whose identity comes again in their part, each beside the row of another such token.
struct RepeatedPart {
  Part part;
  std::vector<int64_t> partners;  // rows

  RepeatedPart(const Part& all, uint64_t seed) {
    const std::vector<int64_t> others = PartnersOfEqualIdentity(all.ids, seed);
    for (size_t i = 0; i < others.size(); ++i) {
      if (others[i] < 0) continue;
      part.Add(all.rows[i], all.blocks[i], all.ids[i], all.delta[i]);
      part.labels.push_back(all.labels[i]);
      partners.push_back(all.rows[others[i]]);
    }
  }
};

// x: [tokens, d] → the rows, [rows, d].
at::Tensor Rows(const at::Tensor& x, const std::vector<int64_t>& rows) {
  const at::Tensor index =
      at::from_blob(const_cast<int64_t*>(rows.data()), {static_cast<int64_t>(rows.size())}, at::kLong);
  return x.index_select(0, index.to(x.device()));
}

class Judge {
 public:
  Judge(const RoutabilityTokens& tokens, int resamples, uint64_t seed, const std::function<absl::Status()>& step)
      : tokens_(tokens), resamples_(resamples), seed_(seed), step_(step) {
    test_blocks_ = *std::max_element(tokens.tests.begin(), tokens.tests.end()) + 1;
  }

  absl::StatusOr<RoutabilityFindings> Run() {
    GH_RETURN_IF_ERROR(Deal());
    const std::pair<const char*, const at::Tensor*> readings[] = {{"identity", &tokens_.split.identity},
                                                                  {"context", &tokens_.split.context},
                                                                  {"full", &tokens_.full},
                                                                  {"token", &tokens_.token},
                                                                  {"target", &tokens_.target}};
    std::map<std::string, Scores> scores;
    for (const auto& [name, x] : readings) {
      GH_ASSIGN_OR_RETURN(scores[name], Train(name, *x, train_, train_.rows, test_, test_.rows));
    }
    Differ("full - identity", test_, scores["full"], scores["identity"]);
    Differ("full - context", test_, scores["full"], scores["context"]);
    Differ("identity - token", test_, scores["identity"], scores["token"]);
    Differ("target - token", test_, scores["target"], scores["token"]);
    GH_RETURN_IF_ERROR(ShuffleContexts());
    return std::move(findings_);
  }

 private:
  // The tokens that are no sinks and predict, to their parts by block.
  absl::Status Deal() {
    const at::Tensor ids = tokens_.ids.cpu().contiguous(), kept = tokens_.kept.cpu().contiguous();
    const at::Tensor delta = tokens_.delta.cpu().contiguous();
    const int64_t window = ids.size(1);
    for (int64_t block = 0; block < ids.size(0); ++block) {
      const int64_t test = tokens_.tests[block];
      for (int64_t i = 0; i + 1 < window; ++i) {
        const int64_t row = block * window + i;
        if (!kept.const_data_ptr<bool>()[row]) continue;
        (test < 0 ? train_ : test_)
            .Add(row, test, ids.const_data_ptr<int64_t>()[row],
                 delta.const_data_ptr<double>()[block * (window - 1) + i]);
      }
    }
    if (train_.rows.empty() || test_.rows.empty()) return absl::FailedPreconditionError("every token is a sink");
    std::vector<double> sorted = train_.delta;
    std::sort(sorted.begin(), sorted.end());
    const double median = Quantile(sorted, 0.5);
    train_.Label(median);
    test_.Label(median);
    return absl::OkStatus();
  }

  // The control: what c′ still tells when each token has that of another of the same identity.
  absl::Status ShuffleContexts() {
    const RepeatedPart train(train_, seed_), test(test_, seed_ + 1);
    if (train.partners.empty() || test.partners.empty()) return absl::OkStatus();  // no identity comes again
    const at::Tensor& context = tokens_.split.context;
    GH_ASSIGN_OR_RETURN(const Scores own, Train("context, repeated tokens", context, train.part, train.part.rows,
                                                test.part, test.part.rows));
    GH_ASSIGN_OR_RETURN(const Scores shuffled,
                        Train("context, shuffled", context, train.part, train.partners, test.part, test.partners));
    Differ("context - shuffled", test.part, own, shuffled);
    return absl::OkStatus();
  }

  // Trains a gate on some rows of x, scores others, and keeps what came of it.
  absl::StatusOr<Scores> Train(const char* name, const at::Tensor& x, const Part& train,
                               const std::vector<int64_t>& train_rows, const Part& test,
                               const std::vector<int64_t>& test_rows) {
    GH_RETURN_IF_ERROR(step_());
    GH_ASSIGN_OR_RETURN(const LogisticGate gate, FitLogisticGate(Rows(x, train_rows), train.labels));
    const at::Tensor logits = (at::mv(Rows(x, test_rows).to(at::kDouble), gate.weight.to(at::kDouble))).cpu();
    const double* begin = logits.const_data_ptr<double>();
    Scores scores(begin, begin + logits.numel());
    GateFinding finding{name, BootstrapAuc(scores, test.labels, test.blocks, test_blocks_, resamples_, seed_)};
    finding.train_tokens = static_cast<int64_t>(train.rows.size());
    finding.test_tokens = static_cast<int64_t>(test.rows.size());
    finding.base_rate = static_cast<double>(std::count(test.labels.begin(), test.labels.end(), uint8_t{1})) /
                        static_cast<double>(test.labels.size());
    findings_.gates.push_back(std::move(finding));
    return scores;
  }

  void Differ(const char* name, const Part& test, const Scores& scores, const Scores& base) {
    findings_.differences.push_back(
        {name, BootstrapAucDifference(scores, base, test.labels, test.blocks, test_blocks_, resamples_, seed_)});
  }

  const RoutabilityTokens& tokens_;
  const int resamples_;
  const uint64_t seed_;
  const std::function<absl::Status()>& step_;
  int64_t test_blocks_ = 0;
  Part train_, test_;
  RoutabilityFindings findings_;
};

}  // namespace

NormSplit SplitNorm(const ModelConfig& config, const NormWeights& norm, const at::Tensor& residual,
                    const at::Tensor& embedding) {
  const bool centred = config.norm == NormKind::kLayerNorm;
  const auto centre = [&](const at::Tensor& rows) { return centred ? rows - rows.mean(-1, /*keepdim=*/true) : rows; };
  const at::Tensor scale = (centre(residual).square().mean(-1, /*keepdim=*/true) + config.norm_eps).sqrt();
  return {centre(embedding) / scale * norm.weight, centre(residual - embedding) / scale * norm.weight};
}

std::vector<int64_t> PartnersOfEqualIdentity(std::span<const int64_t> identities, uint64_t seed) {
  std::map<int64_t, std::vector<int64_t>> members;
  for (size_t i = 0; i < identities.size(); ++i) members[identities[i]].push_back(static_cast<int64_t>(i));
  std::vector<int64_t> partners(identities.size(), -1);
  std::mt19937_64 random(seed);
  for (auto& [identity, tokens] : members) {
    if (tokens.size() < 2) continue;
    Shuffle(tokens, random);
    for (size_t i = 0; i < tokens.size(); ++i) partners[tokens[i]] = tokens[(i + 1) % tokens.size()];
  }
  return partners;
}

absl::StatusOr<RoutabilityFindings> JudgeRoutability(const RoutabilityTokens& tokens, int resamples, uint64_t seed,
                                                     const std::function<absl::Status()>& step) {
  return Judge(tokens, resamples, seed, step).Run();
}

}  // namespace gatehouse
