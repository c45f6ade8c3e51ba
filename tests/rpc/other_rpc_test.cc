// Scoring, analysis and models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "server/base/strings.h"
#include "tests/rpc/rpc_fixture.h"

namespace gatehouse::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class OtherRpcTest : public RpcTest {
 protected:
  struct Scored {
    grpc::Status status;
    std::vector<v1::ScoredToken> tokens;
    v1::ScoreSummary summary;
  };
  Scored Score(const v1::ScoreRequest& request) {
    grpc::ClientContext context;
    const auto reader = scoring_->Score(&context, request);
    Scored scored;
    for (const v1::ScoreResponse& response : ReadAll(*reader)) {
      scored.tokens.insert(scored.tokens.end(), response.tokens().tokens().begin(), response.tokens().tokens().end());
      if (response.has_summary()) scored.summary = response.summary();
    }
    scored.status = reader->Finish();
    return scored;
  }

  template <typename Response, typename Request, typename Method>
  std::vector<Response> Analyse(const Request& request, Method method, grpc::Status& status) {
    grpc::ClientContext context;
    const auto reader = (analysis_.get()->*method)(&context, request);
    std::vector<Response> responses = ReadAll(*reader);
    status = reader->Finish();
    return responses;
  }
};

TEST_F(OtherRpcTest, AScoreHasEveryTokenAndTheFirstWithoutALogprob) {
  StartServer();
  v1::ScoreRequest request;
  request.set_model("m");
  request.mutable_input()->set_text("hello");
  request.set_top_logprobs(2);
  const Scored scored = Score(request);
  ASSERT_TRUE(scored.status.ok()) << scored.status.error_message();
  ASSERT_THAT(scored.tokens, SizeIs(5));
  EXPECT_FALSE(scored.tokens[0].has_logprob());
  double total = 0;
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(scored.tokens[i].id(), "hello"[i]);
    EXPECT_EQ(scored.tokens[i].position(), i);
    if (i == 0) continue;
    ASSERT_TRUE(scored.tokens[i].has_logprob());
    EXPECT_THAT(scored.tokens[i].top(), SizeIs(2));
    total += scored.tokens[i].logprob();
  }
  EXPECT_NEAR(scored.summary.total_logprob(), total, 1e-6);
  EXPECT_NEAR(scored.summary.perplexity(), std::exp(-total / 4), 1e-6);
  EXPECT_EQ(scored.summary.tokens(), 5);
  EXPECT_EQ(scored.summary.scored_tokens(), 4);
}

TEST_F(OtherRpcTest, OneTokenHasNoPerplexity) {
  StartServer();
  v1::ScoreRequest request;
  request.set_model("m");
  request.mutable_input()->set_text("h");
  const Scored scored = Score(request);
  ASSERT_TRUE(scored.status.ok());
  EXPECT_THAT(scored.tokens, SizeIs(1));
  EXPECT_EQ(scored.summary.scored_tokens(), 0);
  EXPECT_EQ(scored.summary.total_logprob(), 0);
  EXPECT_FALSE(scored.summary.has_perplexity());
}

TEST_F(OtherRpcTest, ScoringIsCountedAsScored) {
  StartServer();
  v1::ScoreRequest request;
  request.set_model("m");
  request.mutable_input()->set_text(std::string(200, 'x'));  // over the context: windows
  request.mutable_gating()->set_mode(v1::GatingPolicy::MODE_GATED);
  request.mutable_gating()->set_ladder_threshold(0.3f);
  request.set_summary_only(true);
  const Scored scored = Score(request);
  ASSERT_TRUE(scored.status.ok());
  EXPECT_THAT(scored.tokens, SizeIs(0));
  EXPECT_EQ(scored.summary.scored_tokens(), 199);
  EXPECT_GT(scored.summary.routing().linear_decisions(), 0);
  EXPECT_GT(scored.summary.routing().ladder_decisions(), 0);
  EXPECT_GT(scored.summary.routing().mlp_work_saved(), 0);
  for (int layer = 0; layer < 3; ++layer) {
    const auto routed = [&](const char* path) {
      return Metric(
          StrCat("gatehouse_mlp_tokens_total{layer=\"", layer, "\",model=\"m\",path=\"", path, "\",phase=\"score\"}"));
    };
    EXPECT_EQ(routed("full"), scored.summary.routing().layers(layer).full_tokens());
    EXPECT_EQ(routed("linear"), scored.summary.routing().layers(layer).linear_tokens());
    EXPECT_EQ(routed("ladder"), scored.summary.routing().layers(layer).ladder_tokens());
  }
  EXPECT_EQ(Metric(R"(gatehouse_requests_total{code="OK",method="score",model="m"})"), 1);
}

TEST_F(OtherRpcTest, NonlinearityHasAScoreForEveryTokenAndLayer) {
  StartServer();
  v1::ScoreNonlinearityRequest request;
  request.set_model("m");
  request.add_inputs()->set_text("abc");
  request.add_inputs()->set_text("defgh");
  grpc::Status status;
  const auto responses =
      Analyse<v1::ScoreNonlinearityResponse>(request, &v1::AnalysisService::Stub::ScoreNonlinearity, status);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(responses.front().start().calibration(), "cal");
  EXPECT_THAT(responses.front().start().layers(), SizeIs(3));
  std::string text[2];
  for (const auto& response : responses) {
    for (const v1::TokenInsight& token : response.tokens().tokens()) {
      text[response.tokens().input()] += token.raw();
      EXPECT_THAT(token.nonlinearity(), SizeIs(3));
      EXPECT_THAT(token.consensus(), SizeIs(0));
    }
  }
  EXPECT_THAT(text, ElementsAre("abc", "defgh"));
  EXPECT_EQ(responses.back().summary().tokens(), 8);
  EXPECT_EQ(Metric(R"(gatehouse_requests_total{code="OK",method="nonlinearity",model="m"})"), 1);
}

TEST_F(OtherRpcTest, AConsensusTraceNamesTheNeuronsAndWhichFired) {
  StartServer();
  v1::TraceConsensusRequest request;
  request.set_model("m");
  request.add_inputs()->mutable_token_ids()->add_ids(65);
  request.mutable_inputs(0)->mutable_token_ids()->add_ids(66);
  grpc::Status status;
  const auto responses =
      Analyse<v1::TraceConsensusResponse>(request, &v1::AnalysisService::Stub::TraceConsensus, status);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_THAT(responses.front().start().layers(), SizeIs(3));
  EXPECT_THAT(responses.front().start().layers(1).consensus(), ElementsAre(3, 5, 7));
  EXPECT_THAT(responses.front().start().layers(1).exception(), ElementsAre(9));
  int tokens = 0;
  for (const auto& response : responses) {
    for (const v1::TokenInsight& token : response.tokens().tokens()) {
      ++tokens;
      ASSERT_THAT(token.consensus(), SizeIs(3));
      for (const v1::LayerConsensus& layer : token.consensus()) {
        EXPECT_TRUE(layer.has_level());
        EXPECT_EQ(layer.fired_size(), static_cast<int>(layer.level()));
      }
    }
  }
  EXPECT_EQ(tokens, 2);
}

TEST_F(OtherRpcTest, AnAnalysisTakesOneTo256Texts) {
  StartServer();
  v1::TraceConsensusRequest request;
  request.set_model("m");
  grpc::Status status;
  (void)Analyse<v1::TraceConsensusResponse>(request, &v1::AnalysisService::Stub::TraceConsensus, status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("inputs has 0 entries"));
  for (int i = 0; i < 257; ++i) request.add_inputs()->set_text("a");
  (void)Analyse<v1::TraceConsensusResponse>(request, &v1::AnalysisService::Stub::TraceConsensus, status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.mutable_inputs()->RemoveLast();
  (void)Analyse<v1::TraceConsensusResponse>(request, &v1::AnalysisService::Stub::TraceConsensus, status);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(OtherRpcTest, ModelsAreListedAndDescribed) {
  StartServer();
  grpc::ClientContext list_context, describe_context, missing_context;
  v1::ListModelsResponse list;
  ASSERT_TRUE(models_->ListModels(&list_context, {}, &list).ok());
  EXPECT_EQ(list.replica(), "r1");
  ASSERT_THAT(list.models(), SizeIs(1));
  EXPECT_EQ(list.models(0).name(), "m");
  EXPECT_EQ(list.models(0).calibration(), "cal");

  v1::DescribeModelRequest request;
  request.set_model("m");
  v1::DescribeModelResponse model;
  ASSERT_TRUE(models_->DescribeModel(&describe_context, request, &model).ok());
  EXPECT_EQ(model.layers(), 3);
  EXPECT_EQ(model.context_tokens(), 64);
  EXPECT_EQ(model.fingerprint(), "sha256:fake");
  EXPECT_THAT(model.eos_token_ids(), ElementsAre(256));
  ASSERT_THAT(model.calibrations(), SizeIs(1));
  EXPECT_TRUE(model.calibrations(0).active());
  ASSERT_THAT(model.calibration().layers(), SizeIs(3));
  EXPECT_EQ(model.calibration().layers(2).layer(), 2);
  EXPECT_EQ(model.calibration().layers(2).consensus(1).neuron(), 5);
  EXPECT_EQ(model.calibration().layers(2).surrogate_r2(), 0.5);

  request.set_model("nobody");
  const grpc::Status missing = models_->DescribeModel(&missing_context, request, &model);
  EXPECT_EQ(missing.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(ReasonIn(missing), "MODEL_NOT_FOUND");
}

TEST_F(OtherRpcTest, ACalibrationIsSelectedWithoutARestart) {
  ASSERT_TRUE(WriteFakeCalibration(folder_ + "/calibrations/m/newer.safetensors",
                                   FakeCalibrationInfo("newer", engine_options_, "2026-02-01T00:00:00Z"))
                  .ok());
  StartServer();
  const auto info = [](const std::string& name) {
    return StrCat("gatehouse_calibration_info{calibration=\"", name, "\",fingerprint=\"");
  };
  EXPECT_THAT(metrics_->Page(), HasSubstr(info("newer")));
  v1::SelectCalibrationRequest request;
  request.set_model("m");
  request.set_calibration("cal");
  grpc::ClientContext context;
  v1::SelectCalibrationResponse response;
  ASSERT_TRUE(models_->SelectCalibration(&context, request, &response).ok());
  EXPECT_EQ(response.calibration().name(), "cal");
  EXPECT_TRUE(response.calibration().active());
  EXPECT_THAT(metrics_->Page(), HasSubstr(info("cal")));
  EXPECT_THAT(metrics_->Page(), ::testing::Not(HasSubstr(info("newer"))));
  v1::GenerateRequest linear = Prompt("abc", 1);
  linear.mutable_gating()->set_mode(v1::GatingPolicy::MODE_LINEAR);
  EXPECT_EQ(Generate(linear).summary().routing().calibration(), "cal");

  request.set_calibration("nobody's");
  grpc::ClientContext missing;
  const grpc::Status status = models_->SelectCalibration(&missing, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(ReasonIn(status), "CALIBRATION_NOT_FOUND");
}

}  // namespace
}  // namespace gatehouse::testing
