#include "server/page/trace_request.h"

#include <gtest/gtest.h>

#include "server/page/page_error.h"

namespace gatehouse {
namespace {

TEST(TraceRequest, BecomesAGenerationWithAllRecords) {
  const auto request = ParseTraceRequest(
      R"({"model": "m", "prompt": "It was \"é\"", "max_tokens": 7, "temperature": 0, "seed": 18446744073709551615,
          "gating": "gated", "threshold": 0.25, "timeout_seconds": 1.5})");
  ASSERT_TRUE(request.ok()) << request.status();
  const v1::GenerateRequest& generate = request->generate;
  EXPECT_EQ(generate.model(), "m");
  EXPECT_EQ(generate.prompt().text(), "It was \"é\"");
  EXPECT_EQ(generate.max_tokens(), 7u);
  EXPECT_EQ(generate.sampling().temperature(), 0);
  EXPECT_EQ(generate.sampling().seed(), 18446744073709551615u);
  EXPECT_EQ(generate.gating().mode(), v1::GatingPolicy::MODE_GATED);
  EXPECT_EQ(generate.gating().threshold(), 0.25f);
  EXPECT_TRUE(generate.record_prompt());
  const v1::TokenRecords& records = generate.records();
  EXPECT_TRUE(records.routing() && records.nonlinearity() && records.consensus() && records.gate());
  EXPECT_EQ(request->timeout, absl::Milliseconds(1500));
}

TEST(TraceRequest, LeavesDefaultsToTheCall) {
  const auto request = ParseTraceRequest("{}");
  ASSERT_TRUE(request.ok());
  EXPECT_FALSE(request->generate.has_max_tokens());
  EXPECT_FALSE(request->generate.sampling().has_temperature());
  EXPECT_FALSE(request->generate.gating().has_threshold());
  EXPECT_EQ(request->generate.gating().mode(), v1::GatingPolicy::MODE_FULL);
  EXPECT_EQ(request->timeout, absl::Minutes(5));
}

TEST(TraceRequest, NamesTheFieldThatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"model": 1})", "model"},
      {R"({"prompt": ["a"]})", "prompt"},
      {R"({"max_tokens": -1})", "max_tokens"},
      {R"({"max_tokens": 4294967296})", "max_tokens"},
      {R"({"max_tokens": 1.5})", "max_tokens"},
      {R"({"temperature": "hot"})", "temperature"},
      {R"({"seed": 1e30})", "seed"},
      {R"({"gating": "half"})", "gating"},
      {R"({"threshold": null})", "threshold"},
      {R"({"operating_point": 1})", "operating_point"},
      {R"({"timeout_seconds": 0})", "timeout_seconds"},
      {R"({"timeout_seconds": 3601})", "timeout_seconds"},
  };
  for (const auto& [json, field] : cases) {
    const auto request = ParseTraceRequest(json);
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_EQ(PageErrorJson(request.status())["error"]["field"], field) << json;
  }
}

TEST(TraceRequest, MustBeOneObjectOfKnownFields) {
  for (const char* json : {"", "{", "[]", "1", "null", "{} {}", "{\"prompt\": \"\xff\"}", R"({"prompts": "x"})"}) {
    EXPECT_EQ(ParseTraceRequest(json).status().code(), absl::StatusCode::kInvalidArgument) << json;
  }
  const std::string deep(200000, '[');
  EXPECT_EQ(ParseTraceRequest(deep).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PageError, CarriesCodeReasonFieldAndMessage) {
  const auto error =
      PageErrorJson(absl::InvalidArgumentError("sampling.temperature is -1, must be at least 0"))["error"];
  EXPECT_EQ(error["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(error["reason"], "INVALID_FIELD");
  EXPECT_EQ(error["field"], "temperature");
  EXPECT_EQ(error["message"], "sampling.temperature is -1, must be at least 0");
  EXPECT_EQ(PageErrorJson(absl::UnavailableError("model"))["error"]["field"], "");
  EXPECT_EQ(HttpStatusOf(absl::StatusCode::kResourceExhausted), 429);
}

}  // namespace
}  // namespace gatehouse
