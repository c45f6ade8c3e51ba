#include "server/engine/analysis/polynomial_fit.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cholesky_solve.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/item.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/triu_indices.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/principal_axes.h"
#include "server/engine/analysis/shuffle.h"

namespace gatehouse {
namespace {

constexpr int64_t kFeatureRows = 1024;  // features of so many tokens are held at a time
constexpr std::array<double, 4> kRidgeMultiples = {1, 30, 1e3, 3e4};
constexpr int kParts = 3;

// Products of two coordinates, each pair once.
int64_t Pairs(int64_t components) { return components * (components - 1) / 2; }

// One polynomial: the first `powers` columns of all features, and with products the last.
struct Columns {
  int64_t powers = 0, products = 0;

  at::Tensor Of(const at::Tensor& all, int64_t dim) const {
    const at::Tensor first = all.narrow(dim, 0, powers);
    if (products == 0) return first;
    return at::cat({first, all.narrow(dim, all.size(dim) - products, products)}, dim);
  }
};

// Polynomials of one coordinate each that are orthonormal over the training tokens, so that each
// degree adds only what is new in it: π_{k+1} = (z − a_k) π_k − b_k π_{k−1} (Stieltjes).
class Basis {
 public:
  // z: the coordinates of the training tokens, [n, c] float64.
  static Basis Of(const at::Tensor& z, int degree) {
    Basis basis;
    at::Tensor before = at::zeros_like(z), last = at::ones_like(z);
    at::Tensor norm_before = last.square().mean(0), norm = norm_before;
    for (int k = 0; k < degree; ++k) {
      Step step;
      step.a = (z * last.square()).mean(0) / norm.clamp_min(kNothing);
      step.b = norm / norm_before.clamp_min(kNothing) * (k > 0 ? 1 : 0);
      const at::Tensor next = step.Next(z, last, before);
      norm_before = norm;
      norm = next.square().mean(0);
      // A coordinate with few values has no more polynomials than that.
      step.scale = at::where(norm > kNothing, norm.clamp_min(kNothing).rsqrt(), at::zeros_like(norm));
      before = last;
      last = next;
      basis.steps_.push_back(std::move(step));
    }
    return basis;
  }

  // z: [n, c] float64 → [n, degree · c + pairs]: by degree, then products of two coordinates.
  at::Tensor Features(const at::Tensor& z, int degree, bool products) const {
    std::vector<at::Tensor> parts;
    at::Tensor before = at::zeros_like(z), last = at::ones_like(z);
    for (int k = 0; k < degree; ++k) {
      const at::Tensor next = steps_[k].Next(z, last, before);
      parts.push_back(next * steps_[k].scale);
      before = last;
      last = next;
    }
    if (products) {
      const int64_t c = z.size(1);
      const at::Tensor pairs = at::triu_indices(c, c, 1).to(z.device());
      parts.push_back(z.index_select(1, pairs.select(0, 0)) * z.index_select(1, pairs.select(0, 1)));
    }
    return at::cat(parts, 1);
  }

 private:
  static constexpr double kNothing = 1e-12;
  struct Step {
    at::Tensor a, b, scale;  // [c]

    at::Tensor Next(const at::Tensor& z, const at::Tensor& last, const at::Tensor& before) const {
      return (z - a) * last - b * before;
    }
  };
  std::vector<Step> steps_;  // one a degree
};

// A fitted polynomial on its own features.
struct Fit {
  at::Tensor weight;  // [features, d]
  at::Tensor bias;    // [d]
};

// The sums that a ridge regression needs, float64.
struct Sums {
  double tokens = 0, yy = 0;
  at::Tensor f, y, ff, fy;  // [features], [d], [features, features], [features, d]

  static Sums Zero(int64_t features, int64_t d, const at::TensorOptions& options) {
    return {0,
            0,
            at::zeros({features}, options),
            at::zeros({d}, options),
            at::zeros({features, features}, options),
            at::zeros({features, d}, options)};
  }
  void Add(const at::Tensor& features, const at::Tensor& targets) {
    tokens += static_cast<double>(features.size(0));
    yy += targets.square().sum().item<double>();
    f += features.sum(0);
    y += targets.sum(0);
    ff.addmm_(features.t(), features);
    fy.addmm_(features.t(), targets);
  }
  Sums operator+(const Sums& other) const {
    return {tokens + other.tokens, yy + other.yy, f + other.f, y + other.y, ff + other.ff, fy + other.fy};
  }
  Sums Of(const Columns& columns) const {
    return {tokens, yy, columns.Of(f, 0), y, columns.Of(columns.Of(ff, 0), 1), columns.Of(fy, 0)};
  }

  absl::StatusOr<Fit> Solve(double ridge) const {
    const at::Tensor f_mean = f / tokens, y_mean = y / tokens;
    at::Tensor centred = ff - at::outer(f_mean, f_mean) * tokens;
    const at::Tensor deviation = (centred.diagonal().clamp_min(0) / tokens).sqrt();
    // A feature that rounding alone makes vary is one that does not.
    const at::Tensor scale = at::where(deviation > 1e-10 * (f_mean.abs() + 1), deviation, at::ones_like(deviation));
    centred = centred / scale / scale.unsqueeze(1) + at::eye(f.size(0), f.options()) * ridge;
    const auto [factor, info] = at::linalg_cholesky_ex(centred);
    if (info.item<int>() != 0) return absl::FailedPreconditionError("the probe's equations cannot be solved");
    const at::Tensor targets = (fy - at::outer(f_mean, y_mean) * tokens) / scale.unsqueeze(1);
    const at::Tensor weight = at::cholesky_solve(targets, factor) / scale.unsqueeze(1);
    return Fit{weight, y_mean - at::mv(weight.t(), f_mean)};
  }
  // Σ‖y − ŷ‖² over the tokens summed here.
  double Error(const Fit& fit) const {
    const double cross = (fit.weight * fy).sum().item<double>() + at::dot(fit.bias, y).item<double>();
    const double square = (fit.weight * at::mm(ff, fit.weight)).sum().item<double>() +
                          2 * at::dot(fit.bias, at::mv(fit.weight.t(), f)).item<double>() +
                          tokens * at::dot(fit.bias, fit.bias).item<double>();
    return std::max(0.0, yy - 2 * cross + square);
  }
};

double R2(double error, double total) { return total > 0 ? 1 - error / total : 0; }

class Probe {
 public:
  Probe(const ProbeTokens& tokens, const std::vector<ProbePart>& parts, const PolynomialProbeMethod& method,
        int resamples, uint64_t seed)
      : tokens_(tokens), parts_(parts), method_(method), resamples_(resamples), seed_(seed) {
    degrees_.insert(method.degrees.begin(), method.degrees.end());
    degrees_.insert(1);
    for (size_t i = 0; i < tokens.blocks.size(); ++i) {
      const ProbePart part = parts[tokens.blocks[i]];
      rows_[static_cast<int>(part)].push_back(static_cast<int64_t>(i));
    }
  }

  absl::StatusOr<PolynomialFindings> Run(const std::function<absl::Status()>& step) {
    findings_.train_tokens = static_cast<int64_t>(rows_[0].size() + rows_[1].size());
    findings_.test_tokens = static_cast<int64_t>(rows_[2].size());
    if (rows_[0].size() <= static_cast<size_t>(method_.components) || rows_[1].empty() || rows_[2].empty()) {
      return findings_;
    }
    Prepare();
    for (const bool products : {false, true}) {
      for (const int degree : degrees_) {
        GH_RETURN_IF_ERROR(step());
        GH_RETURN_IF_ERROR(Judge(degree, products));
      }
    }
    return std::move(findings_);
  }

 private:
  // δ less the mean of the training tokens, rows `rows` of it.
  at::Tensor Targets(const at::Tensor& rows) const {
    return tokens_.delta.index_select(0, rows).to(at::kDouble) - mean_;
  }
  at::Tensor Rows(const std::vector<int64_t>& rows, size_t first) const {
    const size_t n = std::min<size_t>(kFeatureRows, rows.size() - first);
    return at::tensor(at::ArrayRef<int64_t>(rows.data() + first, n)).to(tokens_.x.device());
  }

  // The coordinates, and the sums over every part.
  void Prepare() {
    std::vector<int64_t> train = rows_[0];
    train.insert(train.end(), rows_[1].begin(), rows_[1].end());
    const at::Tensor train_rows = at::tensor(train).to(tokens_.x.device());
    const PrincipalAxes axes = PrincipalAxes::Of(tokens_.x.index_select(0, train_rows), method_.components);
    findings_.variance = axes.variance.sum().item<double>() / static_cast<double>(tokens_.x.size(1));
    z_ = axes.Scores(tokens_.x) / axes.variance.clamp_min(1e-12).sqrt();
    mean_ = tokens_.delta.index_select(0, train_rows).to(at::kDouble).mean(0);
    basis_ = Basis::Of(z_.index_select(0, train_rows), *degrees_.rbegin());

    const int64_t c = method_.components, d = tokens_.delta.size(1);
    const int64_t features = c * *degrees_.rbegin() + Pairs(c);
    std::vector<int64_t> shuffled = train;
    std::mt19937_64 random(seed_);
    Shuffle(shuffled, random);
    shuffled_ = at::zeros({features, d}, z_.options());
    size_t done = 0;  // of the training tokens, in the order of `train`
    for (int part = 0; part < kParts; ++part) {
      sums_[part] = Sums::Zero(features, d, z_.options());
      for (size_t first = 0; first < rows_[part].size(); first += kFeatureRows) {
        const at::Tensor rows = Rows(rows_[part], first);
        const at::Tensor batch = basis_.Features(z_.index_select(0, rows), *degrees_.rbegin(), true);
        sums_[part].Add(batch, Targets(rows));
        if (part == static_cast<int>(ProbePart::kTest)) continue;
        const std::vector<int64_t> others(shuffled.begin() + done, shuffled.begin() + done + rows.size(0));
        shuffled_.addmm_(batch.t(), Targets(at::tensor(others).to(z_.device())));
        done += others.size();
      }
    }
    // Each test block's Σ‖δ − mean‖².
    totals_ = BlockSums([&](const at::Tensor& rows) { return Targets(rows).square().sum(1); });
  }

  // Sums over the tokens of each test block of what `of` says of each: [test blocks] float64.
  at::Tensor BlockSums(const std::function<at::Tensor(const at::Tensor& rows)>& of) const {
    std::vector<int64_t> number(parts_.size(), -1);
    int64_t blocks = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i] == ProbePart::kTest) number[i] = blocks++;
    }
    at::Tensor sums = at::zeros({blocks}, z_.options());
    const std::vector<int64_t>& test = rows_[static_cast<int>(ProbePart::kTest)];
    for (size_t first = 0; first < test.size(); first += kFeatureRows) {
      const at::Tensor rows = Rows(test, first);
      std::vector<int64_t> block_of;
      for (int64_t i = 0; i < rows.size(0); ++i) block_of.push_back(number[tokens_.blocks[test[first + i]]]);
      sums = at::index_add(sums, 0, at::tensor(block_of).to(z_.device()), of(rows));
    }
    return sums;
  }

  Interval TestR2(const Fit& fit, int degree, bool products) const {
    const at::Tensor errors = BlockSums([&](const at::Tensor& rows) {
      const at::Tensor features = basis_.Features(z_.index_select(0, rows), degree, products);
      return (Targets(rows) - fit.bias - at::mm(features, fit.weight)).square().sum(1);
    });
    return BlockBootstrap(at::stack({errors, totals_}, 1), resamples_, seed_,
                          [](const at::Tensor& totals) { return 1 - totals.select(1, 0) / totals.select(1, 1); });
  }

  absl::Status Judge(int degree, bool with_products) {
    // Products of two coordinates are of degree 2.
    const bool products = with_products && degree >= 2;
    const Columns columns{method_.components * degree, products ? Pairs(method_.components) : 0};
    const Sums train = sums_[0].Of(columns), tune = sums_[1].Of(columns), test = sums_[2].Of(columns);
    const Sums all = train + tune;
    PolynomialFinding finding{
        .degree = degree, .products = with_products, .features = columns.powers + columns.products};
    GH_ASSIGN_OR_RETURN(const Fit fit, all.Solve(method_.ridge));
    finding.r2 = TestR2(fit, degree, products);
    finding.r2_train = R2(all.Error(fit), all.yy);

    Sums shuffled = all;
    shuffled.fy = columns.Of(shuffled_, 0);
    GH_ASSIGN_OR_RETURN(const Fit chance, shuffled.Solve(method_.ridge));
    finding.shuffled = R2(test.Error(chance), test.yy);

    double least = std::numeric_limits<double>::infinity();
    for (const double multiple : kRidgeMultiples) {
      GH_ASSIGN_OR_RETURN(const Fit tried, train.Solve(multiple * method_.ridge));
      const double error = tune.Error(tried);
      if (!(error < least)) continue;
      least = error;
      finding.tuned = multiple;
    }
    if (finding.tuned == 1) {
      finding.tuned_r2 = finding.r2;
    } else {
      GH_ASSIGN_OR_RETURN(const Fit best, all.Solve(finding.tuned * method_.ridge));
      finding.tuned_r2 = TestR2(best, degree, products);
    }
    findings_.rows.push_back(finding);
    return absl::OkStatus();
  }

  const ProbeTokens& tokens_;
  const std::vector<ProbePart>& parts_;
  const PolynomialProbeMethod& method_;
  const int resamples_;
  const uint64_t seed_;
  std::set<int> degrees_;
  std::array<std::vector<int64_t>, kParts> rows_;  // of the tokens, by part
  at::Tensor z_;                                   // [n, components] float64
  Basis basis_;
  at::Tensor mean_;  // of δ over the training tokens, [d] float64
  std::array<Sums, kParts> sums_;
  at::Tensor shuffled_;  // Σ features · δ of another training token, [features, d] float64
  at::Tensor totals_;    // [test blocks] float64
  PolynomialFindings findings_;
};

}  // namespace

std::vector<ProbePart> DealProbeBlocks(int64_t blocks, uint64_t seed) {
  std::vector<int64_t> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed);
  Shuffle(order, random);
  const int64_t test = std::max<int64_t>(2, (3 * blocks + 5) / 10), tune = std::max<int64_t>(1, blocks / 5);
  std::vector<ProbePart> parts(blocks, ProbePart::kTrain);
  for (int64_t i = 0; i < blocks; ++i) {
    if (i < test + tune) parts[order[i]] = i < test ? ProbePart::kTest : ProbePart::kTune;
  }
  return parts;
}

int64_t PolynomialFeatures(int64_t components, int degree, bool products) {
  return components * degree + (products && degree >= 2 ? Pairs(components) : 0);
}

absl::StatusOr<PolynomialFindings> FitPolynomials(const ProbeTokens& tokens, const std::vector<ProbePart>& parts,
                                                  const PolynomialProbeMethod& method, int resamples, uint64_t seed,
                                                  const std::function<absl::Status()>& step) {
  if (!tokens.x.isfinite().all().item<bool>() || !tokens.delta.isfinite().all().item<bool>()) {
    return absl::FailedPreconditionError("what the layer reads or leaves over is not finite");
  }
  return Probe(tokens, parts, method, resamples, seed).Run(step);
}

}  // namespace gatehouse
