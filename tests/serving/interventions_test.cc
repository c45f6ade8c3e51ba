#include "server/serving/interventions.h"

#include <gmock/gmock.h>

#include <limits>
#include <numeric>

#include "server/engine/mlp_work.h"
#include "tests/serving/serving_fixture.h"

namespace gatehouse::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Intervention Zero(std::vector<int> layers, std::vector<int> positions = {}) {
  return {std::move(layers), std::move(positions), NeuronChange{.neurons = {3}}};
}

class Interventions : public ServingTest {
 protected:
  absl::Status StatusOfStart(const GenerateRequest& request) {
    return Start(request, std::make_shared<GenerationRecord>()).status();
  }

  absl::Status StatusOfStart(const ScoreRequest& request) {
    if (scheduler_ == nullptr) Run();
    return scheduler_->StartScore(request, {}, std::make_shared<ScoreRecord>()).status();
  }

  static ScoreRequest Text(int tokens, uint32_t window = 0) {
    ScoreRequest request;
    request.model = "m";
    request.input.token_ids.resize(tokens);
    std::iota(request.input.token_ids.begin(), request.input.token_ids.end(), 1);
    request.window_size = window;
    return request;
  }
};

TEST_F(Interventions, ChangeTheirOwnCallAndCountAsThePathsTheyTake) {
  const auto plain = Generate(Prompt({10, 20, 30}, 6));
  GenerateRequest request = Prompt({10, 20, 30}, 6);
  request.interventions = {{{1}, {}, ZeroMlp{}}};
  const auto skipped = Generate(request);
  EXPECT_NE(skipped->ids(), plain->ids());
  EXPECT_EQ(Generate(Prompt({10, 20, 30}, 6))->ids(), plain->ids());
  const RoutingReport& routing = skipped->summary->routing;
  EXPECT_EQ(routing.skip_decisions, 8u);
  EXPECT_THAT(routing.skip_tokens, ElementsAre(0, 8, 0));
  EXPECT_THAT(routing.full_tokens, ElementsAre(8, 0, 8));
  EXPECT_EQ(routing.decisions, 24u);
  EXPECT_NEAR(routing.mlp_work_saved, 1.0 / 3, 1e-12);
  EXPECT_THAT(routing.notes, IsEmpty());
  EXPECT_EQ(observer_.routed("m", Phase::kPrefill).skip[1] + observer_.routed("m", Phase::kDecode).skip[1], 8u);
}

TEST_F(Interventions, SayWhichLayersRanInFullWhereAPolicyRoutes) {
  GenerateRequest request = Prompt({10, 20, 30}, 3);
  request.interventions = {Zero({1})};
  request.captures = {{.layers = {2}, .site = ActivationSite::kNeurons}};
  EXPECT_THAT(Generate(request)->summary->routing.notes, IsEmpty());  // all is in full anyway
  request.gating.request.mode = GatingMode::kLinear;
  const auto sink = Generate(request);
  EXPECT_THAT(sink->summary->routing.notes, ElementsAre("layer 1 ran in full where its neurons were changed",
                                                        "layer 2 ran in full where its neurons were captured"));
  EXPECT_THAT(sink->summary->routing.linear_tokens, ElementsAre(4, 0, 0));  // one of five is a sink
}

TEST_F(Interventions, SkippingByQuorumCountsItsDotProducts) {
  GenerateRequest request = Prompt({10, 20, 30, 40}, 5);
  request.gating.request.mode = GatingMode::kQuorum;
  request.gating.request.quorum = 2;
  request.gating.request.quorum_path = MlpPath::kSkip;
  request.records = {.routing = true, .consensus = true};
  request.record_prompt = true;
  const auto sink = Generate(request);
  const RoutingReport& routing = sink->summary->routing;
  uint64_t skipped = 0;
  std::vector<TokenInsight> insights = sink->prompt;
  for (const GeneratedToken& token : sink->tokens) {
    if (token.insight.has_value()) insights.push_back(*token.insight);
  }
  ASSERT_EQ(insights.size(), 8u);
  for (const TokenInsight& insight : insights) {
    for (int layer = 0; layer < 3; ++layer) {
      const bool skips = insight.position >= 1 && insight.level[layer] >= 2;
      EXPECT_EQ(insight.paths[layer], skips ? MlpPath::kSkip : MlpPath::kFull);
      skipped += skips ? 1 : 0;
    }
  }
  EXPECT_EQ(routing.skip_decisions, skipped);
  EXPECT_GT(skipped, 0u);
  EXPECT_LT(skipped, 21u);
  // 3 consensus neurons, asked of all but the sink, in 3 layers.
  const ModelInfo& info = engine_->info();
  const double full = static_cast<double>(FullMlpWork(info));
  EXPECT_NEAR(routing.mlp_work_saved,
              1 - ((24.0 - static_cast<double>(skipped)) * full + 21.0 * static_cast<double>(QuorumWork(info, 3))) /
                      (24 * full),
              1e-12);
}

TEST_F(Interventions, CapturesArriveForEveryTokenThatPassesThroughTheModel) {
  Run({.prefill_chunk = 4});
  GenerateRequest request = Prompt({1, 2, 3, 4, 5, 6}, 3);
  request.captures = {{.layers = {2, 0}, .site = ActivationSite::kNeurons},
                      {.layers = {1}, .site = ActivationSite::kMlpOut, .positions = {7, 1}}};
  const auto sink = Generate(request);
  std::map<std::pair<int, ActivationSite>, std::vector<int>> positions;
  for (const Activations& captured : sink->activations) {
    EXPECT_EQ(captured.width, SiteWidth(captured.site, engine_->info()));
    EXPECT_EQ(captured.values.size(), captured.positions.size() * captured.width);
    auto& list = positions[{captured.layer, captured.site}];
    list.insert(list.end(), captured.positions.begin(), captured.positions.end());
  }
  const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7};  // the last token is never fed
  ASSERT_EQ(positions.size(), 3u);
  EXPECT_EQ((positions[{0, ActivationSite::kNeurons}]), all);
  EXPECT_EQ((positions[{2, ActivationSite::kNeurons}]), all);
  EXPECT_THAT((positions[{1, ActivationSite::kMlpOut}]), ElementsAre(1, 7));
}

TEST_F(Interventions, PositionsAreThoseOfTheTextInEveryWindow) {
  ScoreRequest request = Text(20, 8);
  request.stride = 4;
  request.interventions = {{{0}, {6}, ZeroMlp{}}};
  // Position 6 is read by the windows at 0 and 4; those go over 8 tokens each.
  EXPECT_EQ(Score(request)->summary->routing.skip_decisions, 2u);
  request.interventions = {{{0}, {19}, ZeroMlp{}}};
  EXPECT_EQ(Score(request)->summary->routing.skip_decisions, 1u);
}

TEST_F(Interventions, AScoreCapturesTextsOfOneWindowOnly) {
  ScoreRequest request = Text(12);
  request.captures = {{.site = ActivationSite::kResidualPost}};
  const auto sink = Score(request);
  EXPECT_EQ(sink->activations.size(), 3u);
  request.window_size = 8;
  EXPECT_THAT(StatusOfStart(request),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("captures needs a text of one window")));
}

TEST_F(Interventions, ACallThatCapturesMuchReadsItsPromptInSmallerPieces) {
  ModelInfo wide;
  wide.layers = 24;
  wide.d_model = 4096;
  wide.d_mlp = 16384;
  const RoutingPolicy policy = RoutingPolicy::Full(wide);
  const auto of = [&](std::vector<ActivationCapture> captures) {
    return ResolveInterventions({}, captures, policy, wide, 100).value().most_positions;
  };
  EXPECT_EQ(of({}), std::numeric_limits<int>::max());
  EXPECT_EQ(of({{.layers = {0}, .site = ActivationSite::kMlpOut}}), 2048);
  EXPECT_EQ(of({{.site = ActivationSite::kNeurons}}), 21);
}

TEST_F(Interventions, WhatIsOutOfBoundsIsRefusedAndNamed) {
  const auto refuses = [&](auto change, std::string_view message) {
    GenerateRequest request = Prompt({1, 2, 3}, 4);  // positions 0 to 5
    change(request);
    EXPECT_THAT(StatusOfStart(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  refuses([](auto& r) { r.interventions = {Zero({0}), Zero({3})}; }, "interventions[1].layers names layer 3");
  refuses(
      [](auto& r) {
        r.interventions = {Zero({0}, {2, 6})};
      },
      "interventions[0].positions names position 6, must be in [0, 6)");
  refuses([](auto& r) { r.captures.resize(17); }, "captures has 17 entries, at most 16");
  refuses([](auto& r) { r.captures = {{.layers = {3}}}; }, "captures[0].layers names layer 3, must be in [0, 3)");
  refuses([](auto& r) { r.captures = {{.layers = {1, 1}}}; }, "captures[0].layers names layer 1 twice");
  refuses([](auto& r) { r.captures = {{.positions = {6}}}; }, "captures[0].positions names position 6");
  refuses([](auto& r) { r.captures = {{.positions = {2, 2}}}; }, "captures[0].positions names position 2 twice");
  refuses(
      [](auto& r) {
        r.captures = {{.layers = {1}}, {}};
      },
      "captures[1] names RESIDUAL_PRE of layer 1, as one before it does");
  refuses(
      [](auto& r) {
        r.interventions = {{{1}, {2}, ForcePath{MlpPath::kSkip}}};
        r.captures = {{.site = ActivationSite::kNeurons}};
      },
      "captures[0] wants neurons of layer 1");
  GenerateRequest apart = Prompt({1, 2, 3}, 4);
  apart.interventions = {{{1}, {2}, ForcePath{MlpPath::kSkip}}};
  apart.captures = {{.site = ActivationSite::kNeurons, .positions = {1, 3}}};
  EXPECT_TRUE(StatusOfStart(apart).ok());
}

TEST_F(Interventions, MeansAndForcedPathsTakeTheActiveCalibration) {
  GenerateRequest request = Prompt({1, 2, 3}, 4);
  request.interventions = {{{0, 1}, {}, NeuronChange{.neurons = {3}, .kind = NeuronChange::Kind::kMean}},
                           {{2}, {}, ForcePath{MlpPath::kLinear}}};
  const auto sink = Generate(request);
  EXPECT_EQ(sink->summary->routing.calibration, "cal");
  EXPECT_THAT(sink->summary->routing.linear_tokens, ElementsAre(0, 0, 6));
  request.interventions = {{{2}, {}, NeuronChange{.neurons = {3}, .kind = NeuronChange::Kind::kMean}}};
  EXPECT_THAT(StatusOfStart(request),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("interventions[0].neurons.mean"), HasSubstr("layer 2"))));
  request.interventions = {{{2}, {}, ForcePath{MlpPath::kLadder}}};
  EXPECT_THAT(StatusOfStart(request),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("interventions[0].force_path")));
}

TEST_F(Interventions, TheGatesRecordNeedsACalibrationAndNoMode) {
  GenerateRequest request = Prompt({1, 2, 3}, 4);
  request.records.gate = true;
  const auto sink = Generate(request);
  ASSERT_TRUE(sink->tokens[0].insight.has_value());
  EXPECT_EQ(sink->tokens[0].insight->gate_probability.size(), 3u);
  EXPECT_THAT(sink->tokens[0].insight->paths, IsEmpty());
  EXPECT_EQ(sink->summary->routing.linear_decisions, 0u);
}

}  // namespace
}  // namespace gatehouse::testing
