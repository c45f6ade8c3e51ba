#include "server/engine/analysis/polynomial_fit.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>

#include <cmath>

namespace gatehouse {
namespace {

constexpr int64_t kDims = 16, kTokens = 6'000, kBlockTokens = 100;

// Tokens whose standardised inputs have known principal axes: orthogonal directions in which
// they vary most along the first, less along the second, and so on.
struct Planted {
  at::Tensor z;  // [tokens, kDims] float64, the coordinates, each of deviation 1
  ProbeTokens tokens;
  std::vector<ProbePart> parts = DealProbeBlocks(kTokens / kBlockTokens, 1);
};

Planted MakeInputs(uint64_t seed = 1) {
  at::Generator random = at::detail::createCPUGenerator(seed);
  Planted planted;
  planted.z = at::randn({kTokens, kDims}, random, at::kDouble);
  planted.z.select(1, 0).copy_((at::rand({kTokens}, random, at::kDouble) * 2 - 1) * std::sqrt(3.0));
  at::Tensor axes = at::ones({1, 1}, at::kDouble);  // Hadamard's, so that every input varies alike
  while (axes.size(0) < kDims) axes = at::cat({at::cat({axes, axes}, 1), at::cat({axes, -axes}, 1)});
  const at::Tensor deviations = at::linspace(2, 0.5, kDims, at::kDouble);
  deviations[0] = 6;  // well apart, so that the sample's first axis is the planted one
  planted.tokens.x = (at::mm(planted.z * deviations, axes.t()) + 5).to(at::kFloat);
  for (int64_t i = 0; i < kTokens; ++i) planted.tokens.blocks.push_back(i / kBlockTokens);
  return planted;
}

// δ = target · direction, of every token.  target: [tokens] float64.
void PlantResidual(Planted& planted, const at::Tensor& target) {
  const at::Tensor direction = at::linspace(-1, 2, 5, at::kDouble);
  planted.tokens.delta = at::outer(target, direction).to(at::kFloat);
}

// Orthogonal to every polynomial of lower degree over numbers spread evenly in [−√3, √3].
at::Tensor Legendre(const at::Tensor& z, int degree) {
  const at::Tensor t = z / std::sqrt(3.0);
  at::Tensor before = at::ones_like(t), last = t;
  for (int p = 1; p < degree; ++p) {
    const at::Tensor next = ((2 * p + 1) * t * last - p * before) / (p + 1);
    before = last;
    last = next;
  }
  return last;
}

PolynomialFindings Fit(const Planted& planted, const PolynomialProbeMethod& method) {
  auto findings = FitPolynomials(planted.tokens, planted.parts, method, 200, 3, [] { return absl::OkStatus(); });
  EXPECT_TRUE(findings.ok()) << findings.status();
  return *std::move(findings);
}

TEST(PolynomialFit, FindsAPlantedDegreeAlongAnAxisAtExactlyThatDegree) {
  for (int degree = 2; degree <= 7; ++degree) {
    Planted planted = MakeInputs();
    PlantResidual(planted, Legendre(planted.z.select(1, 0), degree));
    const PolynomialFindings findings = Fit(planted, {.components = 4});
    ASSERT_EQ(findings.rows.size(), 14u);
    EXPECT_GT(findings.variance, 0.3);
    for (const PolynomialFinding& row : findings.rows) {
      if (row.degree < degree) {
        EXPECT_LT(row.r2.estimate, 0.1) << degree << " at " << row.degree;
        EXPECT_LT(row.tuned_r2.estimate, 0.1) << degree << " at " << row.degree;
      } else {
        EXPECT_GT(row.r2.estimate, 0.97) << degree << " at " << row.degree;
        EXPECT_GT(row.tuned_r2.low, 0.95) << degree << " at " << row.degree;
        EXPECT_LT(row.shuffled, 0.1) << degree << " at " << row.degree;
      }
    }
  }
}

TEST(PolynomialFit, SeesAProductOfTwoCoordinatesOnlyWithProducts) {
  Planted planted = MakeInputs();
  PlantResidual(planted, planted.z.select(1, 0) * planted.z.select(1, 2));
  for (const PolynomialFinding& row : Fit(planted, {.degrees = {3, 2}, .components = 4}).rows) {
    if (row.products && row.degree >= 2) {
      EXPECT_GT(row.r2.estimate, 0.95) << row.degree;
      EXPECT_EQ(row.features, 4 * row.degree + 6);
    } else {
      EXPECT_LT(row.r2.estimate, 0.1) << row.degree;
      EXPECT_EQ(row.features, 4 * row.degree);
    }
  }
}

TEST(PolynomialFit, DoesNotSeeAProductOfThreeCoordinates) {
  Planted planted = MakeInputs();
  PlantResidual(planted, planted.z.select(1, 0) * planted.z.select(1, 1) * planted.z.select(1, 2));
  for (const PolynomialFinding& row : Fit(planted, {.components = 4}).rows) {
    EXPECT_LT(row.tuned_r2.estimate, 0.1) << row.degree;
  }
}

TEST(PolynomialFit, ExplainsNothingOfRandomTargetsOnTokensItHasNotSeen) {
  Planted planted = MakeInputs();
  at::Generator random = at::detail::createCPUGenerator(7);
  planted.tokens.delta = at::randn({kTokens, 5}, random);
  for (const PolynomialFinding& row : Fit(planted, {.components = 8}).rows) {
    EXPECT_LT(row.r2.estimate, 0.01) << row.degree;
    EXPECT_GT(row.tuned_r2.estimate, -0.02) << row.degree;
    EXPECT_LT(row.tuned_r2.low, 0.001) << row.degree;
    EXPECT_GT(row.r2_train, row.r2.estimate) << row.degree;
  }
}

TEST(PolynomialFit, HasNoFindingsWithoutEnoughTokens) {
  Planted planted = MakeInputs();
  PlantResidual(planted, planted.z.select(1, 0));
  for (ProbePart& part : planted.parts) part = ProbePart::kTest;
  EXPECT_TRUE(Fit(planted, {.components = 4}).rows.empty());
}

TEST(PolynomialFit, DealsTwoTestBlocksAtLeastAndThirtyPercentOfMany) {
  for (const int64_t blocks : {4, 10, 100}) {
    const std::vector<ProbePart> parts = DealProbeBlocks(blocks, 5);
    ASSERT_EQ(static_cast<int64_t>(parts.size()), blocks);
    const auto count = [&](ProbePart part) { return std::count(parts.begin(), parts.end(), part); };
    EXPECT_EQ(count(ProbePart::kTest), std::max<int64_t>(2, blocks * 3 / 10)) << blocks;
    EXPECT_EQ(count(ProbePart::kTune), std::max<int64_t>(1, blocks / 5)) << blocks;
    EXPECT_GE(count(ProbePart::kTrain), 1) << blocks;
  }
}

TEST(PolynomialFit, CountsFeatures) {
  EXPECT_EQ(PolynomialFeatures(50, 7, true), 7 * 50 + 1225);
  EXPECT_EQ(PolynomialFeatures(50, 7, false), 350);
  EXPECT_EQ(PolynomialFeatures(50, 1, true), 50);
}

}  // namespace
}  // namespace gatehouse
