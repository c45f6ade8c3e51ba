#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <tuple>

#include "tests/engine/test_models.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::InfoOf;
using ::gatehouse::testing::MakePolicy;
using ::gatehouse::testing::MakeTestCalibration;
using ::gatehouse::testing::MakeTestModel;
using ::gatehouse::testing::RandomTokens;
using ::gatehouse::testing::TestEngine;

// One request: its prompt, policy, sampler and what it wants recorded.
struct Request {
  std::vector<int32_t> prompt;
  const RoutingPolicy* policy = nullptr;
  SamplingParams sampling;
  RecordRequest records;
  std::shared_ptr<const InterventionPlan> interventions;
  std::vector<CaptureSite> captures;
};

// All numbers a request was answered with.
struct Answer {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  std::vector<float> margins;
  std::vector<float> norms, probabilities, captured;
  std::vector<int16_t> levels;
  std::vector<uint32_t> linear_tokens, ladder_tokens, skip_tokens;

  bool operator==(const Answer&) const = default;
};

void Append(const RowResult& result, Answer& answer) {
  answer.ids.push_back(result.sampled->token.id);
  answer.logprobs.push_back(result.sampled->token.logprob);
  for (const TokenLogprob& other : result.sampled->top) {
    answer.ids.push_back(other.id);
    answer.logprobs.push_back(other.logprob);
  }
  for (const float margin : result.records.gate_margin) answer.margins.push_back(margin == margin ? margin : -9);
  for (const float norm : result.records.output_norm) answer.norms.push_back(norm);
  const auto append = [](const auto& values, auto& all) { all.insert(all.end(), values.begin(), values.end()); };
  append(result.records.gate_probability, answer.probabilities);
  append(result.records.level, answer.levels);
  for (const CapturedSite& captured : result.captured) append(captured.values, answer.captured);
  append(result.skip_tokens, answer.skip_tokens);
  answer.linear_tokens.insert(answer.linear_tokens.end(), result.linear_tokens.begin(), result.linear_tokens.end());
  answer.ladder_tokens.insert(answer.ladder_tokens.end(), result.ladder_tokens.begin(), result.ladder_tokens.end());
}

// Runs the requests in shared steps, each for `steps` tokens.
std::vector<Answer> RunTogether(TestEngine& engine, const std::vector<Request>& requests, int steps) {
  std::vector<SamplingState> samplers;
  std::vector<std::vector<int32_t>> next;
  std::vector<SequenceId> sequences;
  for (const Request& request : requests) {
    samplers.push_back(SamplingState::Create(request.sampling, engine.model().config.vocab_size).value());
    next.push_back(request.prompt);
    sequences.push_back(engine.Open());
  }
  std::vector<Answer> answers(requests.size());
  for (int step = 0; step < steps; ++step) {
    std::vector<Row> rows(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      rows[i].sequence = sequences[i];
      rows[i].tokens = next[i];
      rows[i].policy = requests[i].policy;
      rows[i].sampling = &samplers[i];
      rows[i].top_alternatives = 3;
      rows[i].records = requests[i].records;
      rows[i].interventions = requests[i].interventions.get();
      rows[i].captures = requests[i].captures;
    }
    const std::vector<RowResult> results = engine.decoder().Step(rows);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(results[i].status.ok()) << results[i].status;
      if (!results[i].status.ok()) return answers;
      Append(results[i], answers[i]);
      next[i] = {results[i].sampled->token.id};
    }
  }
  for (const SequenceId sequence : sequences) engine.cache().Close(sequence);
  return answers;
}

class RowsOf : public ::testing::TestWithParam<std::tuple<Architecture, at::ScalarType, std::string>> {};

INSTANTIATE_TEST_SUITE_P(
    All, RowsOf,
    ::testing::Combine(::testing::Values(Architecture::kGpt2, Architecture::kGptNeoX, Architecture::kLlama),
                       ::testing::Values(at::kFloat, at::kBFloat16), ::testing::Values("portable", "auto")),
    [](const auto& info) {
      const Architecture architecture = std::get<0>(info.param);
      return std::string(architecture == Architecture::kGpt2      ? "gpt2"
                         : architecture == Architecture::kGptNeoX ? "neox"
                                                                  : "llama") +
             (std::get<1>(info.param) == at::kFloat ? "_float32_" : "_bfloat16_") + std::get<2>(info.param);
    });

// Each row's tokens and numbers are the bits of its solo run, whatever runs beside it:
// other policies (all paths), other calibrations, prefills long and short, records, interventions and captures.  Also
// N12: the same seed gives the same draws alone, again, and with others.
TEST_P(RowsOf, HaveTheBitsOfTheirSoloRunAmongOthers) {
  TestEngine engine(MakeTestModel({.architecture = std::get<0>(GetParam()), .dtype = std::get<1>(GetParam())}),
                    std::get<2>(GetParam()));
  const auto calibration = MakeTestCalibration(engine.model(), {});
  const auto other = MakeTestCalibration(engine.model(), {.sink_positions = 1, .seed = 20, .gate_bias = 0.5f});
  GatingRequest linear, ladder, gated, mixed, quorum;
  linear.mode = GatingMode::kLinear;
  ladder.mode = GatingMode::kLadder;
  gated.mode = mixed.mode = GatingMode::kGated;
  gated.threshold = 0.6f;
  gated.ladder_threshold = 0.35f;
  mixed.threshold = 0.4f;
  mixed.layer_thresholds = {{1, 0.6f}};
  mixed.layers = {0, 1};
  quorum.mode = GatingMode::kQuorum;
  quorum.quorum = 3;
  quorum.quorum_path = MlpPath::kSkip;
  const std::vector<RoutingPolicy> policies = {
      RoutingPolicy::Full(InfoOf(engine.model())),    MakePolicy(engine.model(), linear, calibration),
      MakePolicy(engine.model(), gated, calibration), MakePolicy(engine.model(), gated, other),
      MakePolicy(engine.model(), mixed, other),       RoutingPolicy::Full(InfoOf(engine.model()), other),
      MakePolicy(engine.model(), ladder, other),      MakePolicy(engine.model(), mixed, calibration),
      MakePolicy(engine.model(), quorum, other),      RoutingPolicy::Full(InfoOf(engine.model()), calibration),
      MakePolicy(engine.model(), gated, calibration)};
  std::vector<Request> requests(policies.size());
  const std::vector<int> lengths = {1, 40, 16, 17, 9, 30, 2, 5, 12, 8, 21};
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = RandomTokens(engine.model(), lengths[i], 100 + i);
    requests[i].policy = &policies[i];
    requests[i].sampling.temperature = i % 3 == 0 ? 0.0f : 0.9f;
    requests[i].sampling.seed = i / 2;
    requests[i].records.routing = true;
    requests[i].records.nonlinearity = requests[i].records.consensus = i % 2 == 1;
    requests[i].records.gate = i % 4 == 3;
  }
  const auto plan = [&](std::vector<Intervention> interventions) {
    return InterventionPlan::Create(std::move(interventions), InfoOf(engine.model()), calibration).value();
  };
  const std::vector<float> vector(engine.model().config.d_model, 0.3f);
  requests[2].interventions =
      plan({{{0, 1}, {}, NeuronChange{{5, 9}, NeuronChange::Kind::kMean}}, {{2}, {3, 17}, ZeroMlp{}}});
  requests[7].interventions = plan({{{1}, {}, NeuronChange{{8}, NeuronChange::Kind::kScale, 3}}});
  requests[9].interventions =
      plan({{{1}, {2, 10}, Patch{ActivationSite::kResidualPre, vector}}, {{2}, {}, ForcePath{MlpPath::kLinear}}});
  requests[6].captures = {{1, ActivationSite::kNeurons, {}}, {0, ActivationSite::kMlpOut, {0, 5}}};
  requests[10].captures = {{2, ActivationSite::kNeurons, {}}, {1, ActivationSite::kAttentionOut, {}}};
  const std::vector<Answer> together = RunTogether(engine, requests, 12);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(RunTogether(engine, {requests[i]}, 12).front(), together[i]) << "request " << i;
  }
  EXPECT_EQ(RunTogether(engine, requests, 12), together);
  // Three ways in one batch.
  for (const size_t i : {2, 3}) {
    const uint32_t linear_tokens = std::reduce(together[i].linear_tokens.begin(), together[i].linear_tokens.end());
    const uint32_t ladder_tokens = std::reduce(together[i].ladder_tokens.begin(), together[i].ladder_tokens.end());
    EXPECT_GT(linear_tokens, 0u);
    EXPECT_GT(ladder_tokens, 0u);
    EXPECT_LT(linear_tokens + ladder_tokens, together[i].linear_tokens.size() / 12 * (requests[i].prompt.size() + 11));
  }
}

}  // namespace
}  // namespace gatehouse
