#include <ATen/TensorIndexing.h>
#include <ATen/ops/index_fill.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "server/engine/training/plain_forward.h"
#include "tests/engine/test_models.h"
#include "tests/support/planted_model.h"
#include "tests/support/status_matchers.h"

namespace gatehouse {
namespace {

using ::gatehouse::testing::IdTensor;
using ::gatehouse::testing::InfoOf;
using ::gatehouse::testing::LogprobsOf;
using ::gatehouse::testing::MakePolicy;
using ::gatehouse::testing::MakeTestCalibration;
using ::gatehouse::testing::MakeTestModel;
using ::gatehouse::testing::MaxDifference;
using ::gatehouse::testing::RandomTokens;
using ::gatehouse::testing::StatusIs;
using ::gatehouse::testing::TestEngine;
using ::testing::_;
using ::testing::ElementsAre;

constexpr ActivationSite kSites[] = {ActivationSite::kResidualPre, ActivationSite::kAttentionOut,
                                     ActivationSite::kMlpIn,       ActivationSite::kNeurons,
                                     ActivationSite::kMlpOut,      ActivationSite::kResidualPost};

std::shared_ptr<const InterventionPlan> PlanOf(const ModelWeights& model, std::vector<Intervention> interventions,
                                               std::shared_ptr<const Calibration> calibration = nullptr) {
  return InterventionPlan::Create(std::move(interventions), InfoOf(model), std::move(calibration)).value();
}

// All neurons of the layers that a plain pass may change: neurons [1, tokens, d_mlp].
using EditNeurons = std::function<void(int layer, at::Tensor& neurons)>;

std::vector<float> PlainLogprobs(const ModelWeights& model, const std::vector<int32_t>& tokens,
                                 const EditNeurons& edit) {
  const at::Tensor logits = PlainForward(model, IdTensor(tokens), [&](int layer, const at::Tensor& x) {
    at::Tensor neurons = PlainNeurons(model, layer, x);
    edit(layer, neurons);
    return PlainDown(model, layer, neurons);
  });
  return LogprobsOf(logits[0], tokens);
}

class InterventionsOn : public ::testing::TestWithParam<Architecture> {
 protected:
  InterventionsOn()
      : engine_(MakeTestModel({.architecture = GetParam()})),
        model_(engine_.model()),
        calibration_(MakeTestCalibration(model_, {.sink_positions = 0})),
        full_(RoutingPolicy::Full(InfoOf(model_), calibration_)),
        tokens_(RandomTokens(model_, 60, 3)) {}

  TestEngine::Run Score(std::vector<Intervention> interventions, int chunk, const RoutingPolicy* policy = nullptr,
                        const RecordRequest& records = {}) {
    const auto plan = PlanOf(model_, std::move(interventions), calibration_);
    TestEngine::Run run =
        engine_.Score(tokens_, policy == nullptr ? full_ : *policy, {chunk}, records, {.interventions = plan.get()});
    EXPECT_TRUE(run.status.ok()) << run.status;
    return run;
  }

  RoutingPolicy Policy(GatingMode mode, std::vector<int> layers = {}) {
    GatingRequest request;
    request.mode = mode;
    request.layers = std::move(layers);
    return MakePolicy(model_, request, calibration_);
  }

  TestEngine engine_;
  const ModelWeights& model_;
  std::shared_ptr<const LoadedCalibration> calibration_;
  const RoutingPolicy full_;
  const std::vector<int32_t> tokens_;
};

INSTANTIATE_TEST_SUITE_P(All, InterventionsOn,
                         ::testing::Values(Architecture::kGpt2, Architecture::kGptNeoX, Architecture::kLlama),
                         [](const auto& info) {
                           return std::string(info.param == Architecture::kGpt2      ? "gpt2"
                                              : info.param == Architecture::kGptNeoX ? "neox"
                                                                                     : "llama");
                         });

TEST_P(InterventionsOn, ZeroedNeuronsAreNeuronsWhoseWeightsAreZero) {
  ModelWeights edited = model_;
  const std::vector<int> neurons = {3, 17, 79};
  const at::Tensor columns = at::tensor(std::vector<int64_t>(neurons.begin(), neurons.end()), at::kLong);
  for (const int layer : {0, 2}) {
    edited.layers[layer].mlp_out.weight = at::index_fill(edited.layers[layer].mlp_out.weight, 1, columns, 0);
  }
  TestEngine other(edited);
  const RoutingPolicy full = RoutingPolicy::Full(InfoOf(edited));
  for (const int chunk : {1, 16, 60}) {
    const std::vector<float> zeroed = Score({{{0, 2}, {}, NeuronChange{.neurons = neurons}}}, chunk).logprobs;
    EXPECT_EQ(zeroed, other.Score(tokens_, full, {chunk}).logprobs);
    EXPECT_LE(MaxDifference(zeroed, LogprobsOf(PlainForward(edited, IdTensor(tokens_))[0], tokens_)), 1e-4);
    EXPECT_GT(MaxDifference(zeroed, engine_.Score(tokens_, full_, {chunk}).logprobs), 1e-3);
  }
}

TEST_P(InterventionsOn, ScaleSetAndMeanChangeTheNamedNeuronsAtTheNamedPositions) {
  using Kind = NeuronChange::Kind;
  const std::vector<int> neurons = {40, 5}, positions = {21, 0, 20, 59};
  for (const Kind kind : {Kind::kScale, Kind::kSet, Kind::kMean}) {
    for (const bool everywhere : {true, false}) {
      const auto edit = [&](int layer, at::Tensor& values) {
        if (layer != 1) return;
        for (int position = 0; position < 60; ++position) {
          if (!everywhere && std::find(positions.begin(), positions.end(), position) == positions.end()) continue;
          for (const int neuron : neurons) {
            at::Tensor cell = values[0][position][neuron];
            if (kind == Kind::kScale) cell.mul_(-1.5);
            if (kind == Kind::kSet) cell.fill_(-1.5);
            if (kind == Kind::kMean) cell.copy_(calibration_->layer(1).neuron_mean[neuron]);
          }
        }
      };
      const std::vector<float> expected = PlainLogprobs(model_, tokens_, edit);
      const Intervention change = {
          {1}, everywhere ? std::vector<int>() : positions, NeuronChange{neurons, kind, -1.5f}};
      for (const int chunk : {1, 16, 60}) {
        const std::vector<float> found = Score({change}, chunk).logprobs;
        EXPECT_LE(MaxDifference(found, expected), 1e-4);
      }
      EXPECT_GT(MaxDifference(expected, engine_.Score(tokens_, full_, {60}).logprobs), 1e-3);
    }
  }
}

TEST_P(InterventionsOn, LaterChangesSeeWhatEarlierOnesMade) {
  using Kind = NeuronChange::Kind;
  const Intervention set = {{0}, {}, NeuronChange{{7}, Kind::kSet, 2}},
                     halve = {{0}, {}, NeuronChange{{7}, Kind::kScale, 0.5}};
  EXPECT_EQ(Score({set, halve}, 60).logprobs, Score({{{0}, {}, NeuronChange{{7}, Kind::kSet, 1}}}, 60).logprobs);
  EXPECT_EQ(Score({halve, set}, 60).logprobs, Score({set}, 60).logprobs);
}

TEST_P(InterventionsOn, AForcedPathIsThePathOfItsMode) {
  for (const int chunk : {1, 16, 60}) {
    const auto forced = [&](MlpPath path) { return Score({{{0, 1, 2}, {}, ForcePath{path}}}, chunk); };
    const auto mode = [&](GatingMode gating) { return engine_.Score(tokens_, Policy(gating), {chunk}); };
    EXPECT_EQ(forced(MlpPath::kLinear).logprobs, mode(GatingMode::kLinear).logprobs);
    EXPECT_EQ(forced(MlpPath::kLinear).linear_tokens, mode(GatingMode::kLinear).linear_tokens);
    EXPECT_EQ(forced(MlpPath::kLadder).logprobs, mode(GatingMode::kLadder).logprobs);
    EXPECT_EQ(forced(MlpPath::kFull).logprobs, mode(GatingMode::kFull).logprobs);
    // Before the policy, whatever it is.
    const RoutingPolicy linear = Policy(GatingMode::kLinear);
    EXPECT_EQ(Score({{{0, 1, 2}, {}, ForcePath{MlpPath::kFull}}}, chunk, &linear).logprobs,
              mode(GatingMode::kFull).logprobs);
  }
}

TEST_P(InterventionsOn, AForcedPathComesBeforeSinks) {
  const auto calibration = MakeTestCalibration(model_, {.sink_positions = 4});
  const auto plan = PlanOf(model_, {{{1}, {2, 3}, ForcePath{MlpPath::kLinear}}}, calibration);
  const RoutingPolicy full = RoutingPolicy::Full(InfoOf(model_), calibration);
  EXPECT_THAT(engine_.Score(tokens_, full, {60}, {}, {.interventions = plan.get()}).linear_tokens,
              ElementsAre(0, 2, 0));
}

TEST_P(InterventionsOn, ASkippedMlpAddsNothing) {
  const std::vector<int> some = {0, 7, 30};
  for (const bool everywhere : {true, false}) {
    const at::Tensor logits = PlainForward(model_, IdTensor(tokens_), [&](int layer, const at::Tensor& x) {
      at::Tensor y = PlainMlp(model_, layer, x);
      if (layer != 1) return y;
      if (everywhere) return at::zeros_like(y);
      for (const int position : some) y[0][position].zero_();
      return y;
    });
    const std::vector<float> expected = LogprobsOf(logits[0], tokens_);
    const std::vector<int> positions = everywhere ? std::vector<int>() : some;
    for (const int chunk : {1, 16, 60}) {
      const TestEngine::Run zeroed = Score({{{1}, positions, ZeroMlp{}}}, chunk, nullptr, {.routing = true});
      EXPECT_LE(MaxDifference(zeroed.logprobs, expected), 1e-4);
      EXPECT_THAT(zeroed.skip_tokens, ElementsAre(0, everywhere ? 60 : 3, 0));
      EXPECT_EQ(Score({{{1}, positions, ForcePath{MlpPath::kSkip}}}, chunk).logprobs, zeroed.logprobs);
      EXPECT_EQ(zeroed.records[0].path[1], MlpPath::kSkip);
    }
  }
}

TEST_P(InterventionsOn, ChangedNeuronsRunInFullWhateverThePolicy) {
  const RoutingPolicy linear = Policy(GatingMode::kLinear);
  const TestEngine::Run run =
      Score({{{1}, {4, 5}, NeuronChange{.neurons = {3}}}}, 60, &linear, {.routing = true, .consensus = true});
  EXPECT_THAT(run.linear_tokens, ElementsAre(60, 58, 60));
  for (int position = 0; position < 60; ++position) {
    const bool full = position == 4 || position == 5;
    EXPECT_EQ(run.records[0].path[position * 3 + 1], full ? MlpPath::kFull : MlpPath::kLinear);
    EXPECT_EQ(run.records[0].level[position * 3 + 1] >= 0, full);
  }
}

TEST_P(InterventionsOn, RecordsTellWhatTheNeuronsDidBeforeTheirChange) {
  const RecordRequest records{.nonlinearity = true, .consensus = true};
  std::vector<int> consensus;
  for (const NeuronFinding& found : calibration_->info().layers[0].consensus) {
    if (std::find(consensus.begin(), consensus.end(), found.neuron) == consensus.end())
      consensus.push_back(found.neuron);
  }
  const TestEngine::Run changed = Score({{{0}, {}, NeuronChange{.neurons = consensus}}}, 60, nullptr, records);
  const TestEngine::Run plain = engine_.Score(tokens_, full_, {60}, records);
  for (int position = 0; position < 60; ++position) {
    EXPECT_EQ(changed.records[0].fired[position * 3], plain.records[0].fired[position * 3]);
  }
  EXPECT_NE(changed.records[0].output_norm, plain.records[0].output_norm);
}

// Everything that a sequence computed, by layer and site.
using Activations = std::map<std::pair<int, ActivationSite>, CapturedSite>;

std::vector<CaptureSite> AllSites(const ModelWeights& model, std::vector<int> positions = {}) {
  std::vector<CaptureSite> captures;
  for (int layer = 0; layer < model.config.layers; ++layer) {
    for (const ActivationSite site : kSites) captures.push_back({layer, site, positions});
  }
  return captures;
}

Activations ByLayerAndSite(const std::vector<CaptureSite>& captures, std::vector<CapturedSite> captured) {
  Activations activations;
  for (size_t i = 0; i < captures.size(); ++i) {
    activations[{captures[i].layer, captures[i].site}] = std::move(captured[i]);
  }
  return activations;
}

TEST_P(InterventionsOn, CapturesAddUpToTheResidualStream) {
  const std::vector<CaptureSite> captures = AllSites(model_);
  const TestEngine::Run run = engine_.Score(tokens_, full_, {60}, {}, {.captures = captures});
  ASSERT_TRUE(run.status.ok()) << run.status;
  EXPECT_EQ(run.logprobs, engine_.Score(tokens_, full_, {60}).logprobs);
  const Activations all = ByLayerAndSite(captures, run.captured);
  for (int layer = 0; layer < model_.config.layers; ++layer) {
    const auto of = [&](ActivationSite site) -> const CapturedSite& { return all.at({layer, site}); };
    for (const ActivationSite site : kSites) {
      ASSERT_EQ(of(site).positions.size(), 60u);
      ASSERT_EQ(of(site).values.size(), 60u * SiteWidth(site, InfoOf(model_)));
    }
    std::vector<float> sum = of(ActivationSite::kResidualPre).values;
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += of(ActivationSite::kAttentionOut).values[i];
      sum[i] += of(ActivationSite::kMlpOut).values[i];
    }
    EXPECT_EQ(sum, of(ActivationSite::kResidualPost).values);
    if (layer > 0) {
      EXPECT_EQ(of(ActivationSite::kResidualPre).values, all.at({layer - 1, ActivationSite::kResidualPost}).values);
    }
    // What the MLP does with what it reads.
    const auto matrix = [&](const CapturedSite& captured) { return at::tensor(captured.values).view({60, -1}); };
    const at::Tensor neurons = PlainNeurons(model_, layer, matrix(of(ActivationSite::kMlpIn)));
    EXPECT_LE((neurons - matrix(of(ActivationSite::kNeurons))).abs().max().item<float>(), 1e-4);
    EXPECT_LE((PlainDown(model_, layer, neurons) - matrix(of(ActivationSite::kMlpOut))).abs().max().item<float>(),
              1e-4);
  }
}

TEST_P(InterventionsOn, CapturesTheNamedPositionsInWhateverChunkTheyAre) {
  const std::vector<int> positions = {0, 15, 16, 59};
  const std::vector<CaptureSite> captures = AllSites(model_, positions), everything = AllSites(model_);
  const TestEngine::Run all = engine_.Score(tokens_, full_, {16}, {}, {.captures = everything});
  for (const int chunk : {1, 16, 60}) {
    const TestEngine::Run run = engine_.Score(tokens_, full_, {chunk}, {}, {.captures = captures});
    ASSERT_TRUE(run.status.ok()) << run.status;
    for (size_t i = 0; i < captures.size(); ++i) {
      ASSERT_EQ(run.captured[i].positions, positions);
      const size_t width = SiteWidth(captures[i].site, InfoOf(model_));
      for (size_t at = 0; at < positions.size(); ++at) {
        const auto row = [&](const CapturedSite& from, size_t index) {
          return std::vector<float>(from.values.begin() + index * width, from.values.begin() + (index + 1) * width);
        };
        EXPECT_LE(MaxDifference(row(run.captured[i], at), row(all.captured[i], positions[at])), 1e-4);
      }
    }
  }
}

TEST_P(InterventionsOn, CapturedNeuronsMakeTheLayerRunInFull) {
  const RoutingPolicy linear = Policy(GatingMode::kLinear);
  const std::vector<CaptureSite> captures = {{1, ActivationSite::kNeurons, {10, 11}}, {2, ActivationSite::kMlpOut, {}}};
  const TestEngine::Run run = engine_.Score(tokens_, linear, {16}, {}, {.captures = captures});
  EXPECT_THAT(run.linear_tokens, ElementsAre(60, 58, 60));
  EXPECT_THAT(run.captured[0].positions, ElementsAre(10, 11));
  EXPECT_EQ(run.captured[1].positions.size(), 60u);
}

// The continuation of a prompt, token by token.
struct Continuation {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  std::vector<CapturedSite> captured;  // of the prompt
  bool operator==(const Continuation& other) const { return ids == other.ids && logprobs == other.logprobs; }
};

Continuation Continue(TestEngine& engine, const std::vector<int32_t>& prompt, const RoutingPolicy& policy,
                      const InterventionPlan* plan, std::span<const CaptureSite> captures = {}) {
  SamplingParams greedy;
  greedy.temperature = 0;
  SamplingState sampling = SamplingState::Create(greedy, engine.model().config.vocab_size).value();
  const SequenceId sequence = engine.Open();
  Continuation continuation;
  std::vector<int32_t> next = prompt;
  for (int step = 0; step < 10; ++step) {
    Row row;
    row.sequence = sequence;
    row.tokens = next;
    row.policy = &policy;
    row.sampling = &sampling;
    row.interventions = plan;
    row.captures = captures;
    RowResult result = engine.StepOne(row);
    EXPECT_TRUE(result.status.ok()) << result.status;
    if (!result.status.ok()) return continuation;
    continuation.ids.push_back(result.sampled->token.id);
    continuation.logprobs.push_back(result.sampled->token.logprob);
    if (step == 0) continuation.captured = std::move(result.captured);
    next = {result.sampled->token.id};
  }
  engine.cache().Close(sequence);
  return continuation;
}

TEST_P(InterventionsOn, APatchFromOneRunMakesAnotherContinueLikeIt) {
  const std::vector<int32_t> a = RandomTokens(model_, 30, 8), b = RandomTokens(model_, 30, 9);
  const std::vector<CaptureSite> captures = {{0, ActivationSite::kResidualPre, {}}};
  const Continuation from_a = Continue(engine_, a, full_, nullptr, captures);
  const Continuation from_b = Continue(engine_, b, full_, nullptr);
  ASSERT_NE(from_a, from_b);
  std::vector<int> positions(30);
  for (int i = 0; i < 30; ++i) positions[i] = i;
  const auto plan = PlanOf(model_, {{{0}, positions, Patch{ActivationSite::kResidualPre, from_a.captured[0].values}}});
  EXPECT_EQ(Continue(engine_, b, full_, plan.get()), from_a);
}

TEST_P(InterventionsOn, APatchAtTheLastLayerMovesThePrediction) {
  const std::vector<int32_t> a = RandomTokens(model_, 20, 8), b = RandomTokens(model_, 20, 9);
  const int last = model_.config.layers - 1;
  const std::vector<CaptureSite> captures = {{last, ActivationSite::kResidualPost, {19}}};
  const Continuation from_a = Continue(engine_, a, full_, nullptr, captures);
  const auto plan = PlanOf(model_, {{{last}, {19}, Patch{ActivationSite::kResidualPost, from_a.captured[0].values}}});
  const Continuation patched = Continue(engine_, b, full_, plan.get());
  EXPECT_EQ(patched.ids[0], from_a.ids[0]);
  EXPECT_EQ(patched.logprobs[0], from_a.logprobs[0]);
}

TEST_P(InterventionsOn, EverySiteCanBePatchedWithItsOwnActivationsWithoutAnyChange) {
  const std::vector<CaptureSite> captures = AllSites(model_);
  const TestEngine::Run run = engine_.Score(tokens_, full_, {60}, {}, {.captures = captures});
  std::vector<int> positions(60);
  for (int i = 0; i < 60; ++i) positions[i] = i;
  for (size_t i = 0; i < captures.size(); ++i) {
    const Patch same{captures[i].site, run.captured[i].values};
    EXPECT_EQ(Score({{{captures[i].layer}, positions, same}}, 60).logprobs, run.logprobs);
    Patch other = same;
    for (float& value : other.values) value += 0.5f + 0.1f * static_cast<float>((&value - other.values.data()) % 3);
    EXPECT_GT(MaxDifference(Score({{{captures[i].layer}, positions, other}}, 60).logprobs, run.logprobs), 1e-3);
  }
}

TEST_P(InterventionsOn, PositionsCountFromTheRowsOffset) {
  const auto plan = PlanOf(model_, {{{1}, {102}, ZeroMlp{}}}), same = PlanOf(model_, {{{1}, {2}, ZeroMlp{}}});
  const std::vector<CaptureSite> captures = {{0, ActivationSite::kMlpOut, {103}}};
  const TestEngine::Run run = engine_.Score(
      tokens_, full_, {16}, {}, {.interventions = plan.get(), .captures = captures, .position_offset = 100});
  EXPECT_EQ(run.logprobs, engine_.Score(tokens_, full_, {16}, {}, {.interventions = same.get()}).logprobs);
  EXPECT_THAT(run.captured[0].positions, ElementsAre(103));
}

TEST_P(InterventionsOn, RowsThatDoNotFitTheModelAreRefused) {
  Row row;
  row.sequence = engine_.Open();
  row.tokens = tokens_;
  row.policy = &full_;
  const auto other = MakeTestCalibration(model_, {.seed = 5});
  const auto plan = PlanOf(model_, {{{1}, {}, ZeroMlp{}}}, other);
  row.interventions = plan.get();
  EXPECT_THAT(engine_.StepOne(row).status, StatusIs(absl::StatusCode::kInvalidArgument, _));
  ModelInfo deeper = InfoOf(model_);
  ++deeper.layers;
  const auto deep = InterventionPlan::Create({{{1}, {}, ZeroMlp{}}}, deeper, nullptr).value();
  row.interventions = deep.get();
  EXPECT_THAT(engine_.StepOne(row).status, StatusIs(absl::StatusCode::kInvalidArgument, _));
  row.interventions = nullptr;
  const std::vector<CaptureSite> captures = {{model_.config.layers, ActivationSite::kMlpOut, {}}};
  row.captures = captures;
  EXPECT_THAT(engine_.StepOne(row).status, StatusIs(absl::StatusCode::kInvalidArgument, _));
}

TEST(Interventions, ZeroingThePlantedNeuronsIsZeroingTheirWeights) {
  const std::string directory = ::testing::TempDir() + "/intervention-planted";
  const auto truth = testing::WritePlantedModel(directory, {}, 200);
  ASSERT_TRUE(truth.ok()) << truth.status();
  const auto model = LoadModelWeights(directory, at::kFloat, at::kCPU);
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<int> neurons = truth->consensus;
  neurons.insert(neurons.end(), truth->exception.begin(), truth->exception.end());
  ModelWeights edited = *model;
  const at::Tensor columns = at::tensor(std::vector<int64_t>(neurons.begin(), neurons.end()), at::kLong);
  at::Tensor& weight = edited.layers[truth->layer].mlp_out.weight;
  weight = at::index_fill(weight, 1, columns, 0);
  TestEngine engine(*model), other(edited);
  const std::vector<int32_t> tokens = testing::PlantedCorpus(100, 4);
  const auto plan = PlanOf(*model, {{{truth->layer}, {}, NeuronChange{.neurons = neurons}}});
  const RoutingPolicy full = RoutingPolicy::Full(InfoOf(*model));
  const std::vector<float> zeroed = engine.Score(tokens, full, {100}, {}, {.interventions = plan.get()}).logprobs;
  EXPECT_EQ(zeroed, other.Score(tokens, full, {100}).logprobs);
  EXPECT_LE(MaxDifference(zeroed, LogprobsOf(PlainForward(edited, IdTensor(tokens))[0], tokens)), 1e-4);
  EXPECT_GT(MaxDifference(zeroed, engine.Score(tokens, full, {100}).logprobs), 1e-3);
}

}  // namespace
}  // namespace gatehouse
