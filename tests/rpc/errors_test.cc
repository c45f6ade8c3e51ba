#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "server/rpc/grpc_status.h"
#include "tests/rpc/rpc_fixture.h"

namespace gatehouse::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::SizeIs;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct BadRequest {
  std::string what;
  std::function<void(v1::GenerateRequest&)> change;
  grpc::StatusCode code = grpc::StatusCode::INVALID_ARGUMENT;
  std::string reason = "INVALID_FIELD";
  std::string message;  // a part of it
};

std::vector<BadRequest> BadRequests() {
  const auto invalid = grpc::StatusCode::INVALID_ARGUMENT;
  return {
      {"unknown model", [](auto& r) { r.set_model("nobody"); }, grpc::StatusCode::NOT_FOUND, "MODEL_NOT_FOUND", "m"},
      {"no model", [](auto& r) { r.clear_model(); }, grpc::StatusCode::NOT_FOUND, "MODEL_NOT_FOUND", "m"},
      {"no prompt", [](auto& r) { r.clear_prompt(); }, invalid, "EMPTY_INPUT", "prompt"},
      {"empty prompt", [](auto& r) { r.mutable_prompt()->set_text(std::string()); }, invalid, "EMPTY_INPUT", "prompt"},
      {"no ids", [](auto& r) { r.mutable_prompt()->mutable_token_ids(); }, invalid, "EMPTY_INPUT", "prompt"},
      {"long prompt", [](auto& r) { r.mutable_prompt()->set_text(std::string(65, 'x')); }, invalid, "PROMPT_TOO_LONG",
       "prompt"},
      {"id of V", [](auto& r) { r.mutable_prompt()->mutable_token_ids()->add_ids(260); }, invalid, "TOKEN_OUT_OF_RANGE",
       "260"},
      {"id of -1", [](auto& r) { r.mutable_prompt()->mutable_token_ids()->add_ids(-1); }, invalid, "TOKEN_OUT_OF_RANGE",
       "-1"},
      {"max_tokens of 0", [](auto& r) { r.set_max_tokens(0); }, invalid, "INVALID_FIELD", "max_tokens"},
      {"NaN temperature", [](auto& r) { r.mutable_sampling()->set_temperature(kNan); }, invalid, "INVALID_FIELD",
       "temperature"},
      {"negative temperature", [](auto& r) { r.mutable_sampling()->set_temperature(-1); }, invalid, "INVALID_FIELD",
       "temperature"},
      {"top_p over 1", [](auto& r) { r.mutable_sampling()->set_top_p(1.1F); }, invalid, "INVALID_FIELD", "top_p"},
      {"NaN min_p", [](auto& r) { r.mutable_sampling()->set_min_p(kNan); }, invalid, "INVALID_FIELD", "min_p"},
      {"penalty of 0", [](auto& r) { r.mutable_sampling()->set_repetition_penalty(0); }, invalid, "INVALID_FIELD",
       "repetition_penalty"},
      {"bias of an id out of range", [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[260] = 1; }, invalid,
       "", "logit_bias"},
      {"NaN bias", [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[1] = kNan; }, invalid, "INVALID_FIELD",
       "logit_bias"},
      {"too many biases",
       [](auto& r) {
         for (int i = 0; i < 1025; ++i) (*r.mutable_sampling()->mutable_logit_bias())[i] = 1;
       },
       invalid, "INVALID_FIELD", "logit_bias has 1025 entries"},
      {"empty stop string", [](auto& r) { r.mutable_stop()->add_strings(std::string()); }, invalid, "INVALID_FIELD",
       "stop.strings"},
      {"long stop string", [](auto& r) { r.mutable_stop()->add_strings(std::string(1 << 20, 'x')); }, invalid,
       "INVALID_FIELD", "stop.strings"},
      {"too many stop strings",
       [](auto& r) {
         for (int i = 0; i < 100'000; ++i) r.mutable_stop()->add_strings(std::string(1, 'x'));
       },
       invalid, "INVALID_FIELD", "stop.strings"},
      {"stop id out of range", [](auto& r) { r.mutable_stop()->add_token_ids(1 << 30); }, invalid, "TOKEN_OUT_OF_RANGE",
       "stop.token_ids"},
      {"top_logprobs of 21", [](auto& r) { r.set_top_logprobs(21); }, invalid, "INVALID_FIELD", "top_logprobs"},
      {"top_logprobs over an int", [](auto& r) { r.set_top_logprobs(4'000'000'000U); }, invalid, "INVALID_FIELD",
       "top_logprobs is 4000000000"},
      {"unknown mode", [](auto& r) { r.mutable_gating()->set_mode(static_cast<v1::GatingPolicy::Mode>(99)); }, invalid,
       "INVALID_FIELD", "gating.mode has the unknown value 99"},
      {"NaN threshold",
       [](auto& r) {
         r.mutable_gating()->set_mode(v1::GatingPolicy::MODE_GATED);
         r.mutable_gating()->set_threshold(kNan);
       },
       invalid, "INVALID_FIELD", "threshold"},
      {"threshold without a mode", [](auto& r) { r.mutable_gating()->set_threshold(0.5f); }, invalid, "INVALID_FIELD",
       "threshold is only for gated mode"},
      {"layers in full", [](auto& r) { r.mutable_gating()->add_layers(1); }, invalid, "INVALID_FIELD",
       "layers is not for full mode"},
      {"layer out of range",
       [](auto& r) {
         r.mutable_gating()->set_mode(v1::GatingPolicy::MODE_GATED);
         r.mutable_gating()->add_layers(3);
       },
       invalid, "LAYER_OUT_OF_RANGE", "layers names layer 3"},
      {"layer over an int",
       [](auto& r) {
         r.mutable_gating()->set_mode(v1::GatingPolicy::MODE_GATED);
         r.mutable_gating()->add_layers(4'000'000'000U);
       },
       invalid, "LAYER_OUT_OF_RANGE", "gating.layers"},
      {"layer without a ladder",
       [](auto& r) {
         r.mutable_gating()->set_mode(v1::GatingPolicy::MODE_LADDER);
         r.mutable_gating()->add_layers(2);
       },
       invalid, "INVALID_FIELD", "layer 2, which has no ladder"},
      {"NaN ladder threshold",
       [](auto& r) {
         r.mutable_gating()->set_mode(v1::GatingPolicy::MODE_GATED);
         r.mutable_gating()->set_ladder_threshold(kNan);
       },
       invalid, "INVALID_FIELD", "ladder_threshold"},
      {"operating point and threshold",
       [](auto& r) {
         r.mutable_gating()->set_mode(v1::GatingPolicy::MODE_GATED);
         r.mutable_gating()->set_operating_point("1%");
         r.mutable_gating()->set_threshold(0.5f);
       },
       invalid, "INVALID_FIELD", "operating_point and threshold"},
      {"operating point in full", [](auto& r) { r.mutable_gating()->set_operating_point("1%"); }, invalid,
       "INVALID_FIELD", "operating_point is only for gated mode"},
      {"unknown operating point",
       [](auto& r) {
         r.mutable_gating()->set_mode(v1::GatingPolicy::MODE_GATED);
         r.mutable_gating()->set_operating_point("nobody's");
       },
       grpc::StatusCode::NOT_FOUND, "OPERATING_POINT_NOT_FOUND", "1%, 5%"},
      {"unknown calibration",
       [](auto& r) {
         r.mutable_gating()->set_mode(v1::GatingPolicy::MODE_GATED);
         r.mutable_gating()->set_calibration("nobody's");
       },
       grpc::StatusCode::NOT_FOUND, "CALIBRATION_NOT_FOUND", "cal"},
  };
}

TEST_F(RpcTest, EveryBadFieldIsNamedAndTheServerGoesOn) {
  StartServer();
  for (const BadRequest& bad : BadRequests()) {
    SCOPED_TRACE(bad.what);
    v1::GenerateRequest request = Prompt("abc", 1);
    bad.change(request);
    const Generated generated = Generate(request);
    EXPECT_EQ(generated.status.error_code(), bad.code) << generated.status.error_message();
    EXPECT_THAT(generated.status.error_message(), HasSubstr(bad.message));
    EXPECT_THAT(generated.responses, SizeIs(0));
    if (!bad.reason.empty()) {
      EXPECT_EQ(ReasonIn(generated.status), bad.reason);
    }
  }
  EXPECT_TRUE(Generate(Prompt("abc", 1)).status.ok());
  EXPECT_EQ(Metric(R"(gatehouse_requests_total{code="NOT_FOUND",method="generate",model=""})"), 2);
  EXPECT_EQ(Metric(R"(gatehouse_requests_total{code="INVALID_ARGUMENT",method="generate",model="m"})"),
            static_cast<double>(BadRequests().size()) - 4);  // those that were not found
}

TEST_F(RpcTest, GatingWithoutACalibrationIsAFailedPrecondition) {
  with_calibration_ = false;
  StartServer();
  v1::GenerateRequest request = Prompt("abc", 1);
  request.mutable_gating()->set_mode(v1::GatingPolicy::MODE_LINEAR);
  const Generated generated = Generate(request);
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ReasonIn(generated.status), "NOT_CALIBRATED");
  EXPECT_TRUE(Generate(Prompt("abc", 1)).status.ok());
}

TEST_F(RpcTest, ANanOfTheModelIsInternalAndNamesNoText) {
  StartServer();
  engine_->ProduceNanAt('q');
  const Generated generated = Generate(Prompt("secret q", 1));
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(generated.status.error_message().find("secret"), std::string::npos);
  EXPECT_TRUE(Generate(Prompt("abc", 1)).status.ok());
}

// Else the client would see RESOURCE_EXHAUSTED, "received initial metadata size
// exceeds limit".
TEST_F(RpcTest, ALongNameDoesNotMakeALongErrorMessage) {
  StartServer();
  v1::GenerateRequest request = Prompt("abc", 1);
  request.set_model(std::string(20'000, 'x'));
  const Generated generated = Generate(request);
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(generated.status.error_message(), SizeIs(Le(kMaxErrorMessageBytes)));
}

TEST(GrpcStatus, CutsLongMessagesBetweenCharacters) {
  std::string message;
  for (int i = 0; i < 10'000; ++i) message += "é";
  const grpc::Status status = ToGrpcStatus(absl::InvalidArgumentError(message));
  EXPECT_THAT(status.error_message(), SizeIs(Le(kMaxErrorMessageBytes)));
  EXPECT_EQ(ValidUtf8(status.error_message()), status.error_message());
  EXPECT_THAT(status.error_message(), ::testing::EndsWith("é…"));
  EXPECT_LT(status.error_details().size(), 1000U);
}

TEST(GrpcStatus, SendsNoControlCharactersAndNoBrokenText) {
  const grpc::Status status = ToGrpcStatus(absl::InternalError("a\nb\xFF\x01"));
  EXPECT_EQ(status.error_message(), "a b\xEF\xBF\xBD ");
}

}  // namespace
}  // namespace gatehouse::testing
