#include <gmock/gmock.h>

#include <cmath>

#include "tests/client/cli_answers.h"
#include "tests/client/run_program.h"

namespace gatehouse::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Generate, SendsWhatTheFlagsSay) {
  v1::GenerateRequest got;
  FakeHandlers handlers = Handlers();
  handlers.generate = [&](const auto& request, const auto& stream) {
    got = request;
    return GenerateThree(request, stream);
  };
  FakeServer server(handlers);
  const Finished run = Gatehouse({"--server",
                                  server.address(),
                                  "generate",
                                  "--model",
                                  "m",
                                  "--prompt",
                                  "[a, b]",
                                  "--plain-text",
                                  "--max-tokens",
                                  "40",
                                  "--temperature",
                                  "0",
                                  "--top-k",
                                  "5",
                                  "--top-p",
                                  "0.9",
                                  "--min-p",
                                  "0.1",
                                  "--repetition-penalty",
                                  "1.5",
                                  "--logit-bias",
                                  "11=-inf",
                                  "--logit-bias",
                                  "12=2.5",
                                  "--seed",
                                  "0",
                                  "--stop",
                                  "END",
                                  "--stop",
                                  "[x]",
                                  "--stop-token-id",
                                  "13,198",
                                  "--stop-token-id",
                                  "14",
                                  "--ignore-eos",
                                  "--gating",
                                  "gated",
                                  "--threshold",
                                  "0.7",
                                  "--ladder-threshold",
                                  "0.4",
                                  "--layers",
                                  "1,3-4",
                                  "--layer-threshold",
                                  "3=0.9",
                                  "--calibration",
                                  "careful",
                                  "--record",
                                  "routing,consensus",
                                  "--record-prompt",
                                  "--top-logprobs",
                                  "3"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(got.model(), "m");
  EXPECT_EQ(got.prompt().text(), "[a, b]");
  EXPECT_TRUE(got.prompt().plain_text());
  EXPECT_EQ(got.max_tokens(), 40u);
  EXPECT_TRUE(got.sampling().has_temperature());
  EXPECT_EQ(got.sampling().temperature(), 0);
  EXPECT_EQ(got.sampling().top_k(), 5u);
  EXPECT_EQ(got.sampling().top_p(), 0.9f);
  EXPECT_EQ(got.sampling().min_p(), 0.1f);
  EXPECT_EQ(got.sampling().repetition_penalty(), 1.5f);
  EXPECT_EQ(got.sampling().logit_bias().at(11), -INFINITY);
  EXPECT_EQ(got.sampling().logit_bias().at(12), 2.5f);
  EXPECT_TRUE(got.sampling().has_seed());
  EXPECT_THAT(got.stop().strings(), ElementsAre("END", "[x]"));
  EXPECT_THAT(got.stop().token_ids(), ElementsAre(13, 198, 14));
  EXPECT_TRUE(got.stop().ignore_eos());
  EXPECT_EQ(got.gating().mode(), v1::GatingPolicy::MODE_GATED);
  EXPECT_EQ(got.gating().threshold(), 0.7f);
  EXPECT_EQ(got.gating().ladder_threshold(), 0.4f);
  EXPECT_EQ(got.gating().operating_point(), "");
  EXPECT_THAT(got.gating().layers(), ElementsAre(1, 3, 4));
  EXPECT_EQ(got.gating().layer_thresholds().at(3), 0.9f);
  EXPECT_EQ(got.gating().calibration(), "careful");
  EXPECT_TRUE(got.records().routing() && got.records().consensus() && !got.records().nonlinearity());
  EXPECT_TRUE(got.record_prompt());
  EXPECT_EQ(got.top_logprobs(), 3u);
}

TEST(Generate, LeavesUnsetWhatNoFlagSays) {
  v1::GenerateRequest got;
  FakeHandlers handlers = Handlers();
  handlers.generate = [&](const auto& request, const auto& stream) {
    got = request;
    return GenerateThree(request, stream);
  };
  FakeServer server(handlers);
  ASSERT_EQ(
      Gatehouse({"generate", "-m", "m", "--prompt-file", "-", "--server", server.address()}, {.in = "{}"}).exit_code,
      0);
  EXPECT_EQ(got.prompt().text(), "{}");
  EXPECT_FALSE(got.has_max_tokens());
  EXPECT_FALSE(got.sampling().has_temperature());
  EXPECT_FALSE(got.sampling().has_seed());
  EXPECT_FALSE(got.gating().has_threshold());
  EXPECT_FALSE(got.gating().has_ladder_threshold());
  EXPECT_EQ(got.gating().mode(), v1::GatingPolicy::MODE_UNSPECIFIED);
}

TEST(Generate, AnOperatingPointMeansGatedUnlessAnotherModeIsSaid) {
  v1::GenerateRequest got;
  FakeHandlers handlers = Handlers();
  handlers.generate = [&](const auto& request, const auto& stream) {
    got = request;
    return GenerateThree(request, stream);
  };
  FakeServer server(handlers);
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"generate", "-m", "m", "--prompt", "x", "--server", server.address()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_EQ(Gatehouse(arguments).exit_code, 0);
  };
  run({"--operating-point", "1%"});
  EXPECT_EQ(got.gating().operating_point(), "1%");
  EXPECT_EQ(got.gating().mode(), v1::GatingPolicy::MODE_GATED);
  run({"--operating-point", "1%", "--gating", "linear"});  // the server says what is wrong
  EXPECT_EQ(got.gating().mode(), v1::GatingPolicy::MODE_LINEAR);
  run({"--gating", "ladder"});
  EXPECT_EQ(got.gating().mode(), v1::GatingPolicy::MODE_LADDER);
}

TEST(Generate, SaysWhatShareTookTheLadderAndWhatWorkWasSaved) {
  FakeHandlers handlers = Handlers();
  handlers.generate = [&](const auto& request, const auto& stream) {
    auto changed = stream;
    changed.write = [&](v1::GenerateResponse response) {
      if (response.has_summary()) {
        v1::RoutingSummary& routing = *response.mutable_summary()->mutable_routing();
        routing.set_ladder_decisions(1);
        routing.set_mlp_work_saved(0.4);
        routing.mutable_layers(0)->set_ladder_tokens(1);
      }
      return stream.write(response);
    };
    return GenerateThree(request, changed);
  };
  FakeServer server(handlers);
  const Finished run =
      Gatehouse({"generate", "-m", "m", "--prompt", "x", "--temperature", "0", "--server", server.address()});
  EXPECT_THAT(run.err, HasSubstr(" · 37.5% linear · 12.5% ladder · 40.0% of the MLP work saved · "));
  const Finished json = Gatehouse({"generate", "--json", "-m", "m", "--prompt", "x", "--server", server.address()});
  const auto routing = nlohmann::json::parse(json.out)["routing"];
  EXPECT_EQ(routing["ladder_decisions"], 1);
  EXPECT_EQ(routing["mlp_work_saved"], 0.4);
  EXPECT_EQ(routing["layers"][0]["ladder_tokens"], 1);
}

TEST(Generate, PrintsOneJsonObjectOfTheDocumentedShape) {
  FakeHandlers handlers = Handlers();
  handlers.generate = GenerateThree;
  FakeServer server(handlers);
  const Finished run = Gatehouse({"generate", "--json", "--model", "m", "--prompt", "x", "--raw", "--top-logprobs", "1",
                                  "--record", "routing,nonlinearity", "--server", server.address()});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(nlohmann::ordered_json::parse(run.out), nlohmann::ordered_json::parse(R"({
    "model": "m", "text": " a歪\u001b[2J!", "finish_reason": "stop_string", "matched_stop": "END",
    "prompt_tokens": 2, "generated_tokens": 3, "seed": 18446744073709551615,
    "tokens": [
      {"id": 5, "text": " a", "raw": "IGE=", "logprob": -0.7,
       "top": [{"id": 5, "text": " a", "raw": "IGE=", "logprob": -0.1}],
       "insight": {"position": 2, "paths": ["linear", "full"], "gate_margin": [0.25, null],
                   "nonlinearity": [null, 2.0], "output_norm": [null, 3.0]}},
      {"id": 6, "text": "�", "raw": "5q0=", "logprob": null,
       "top": [{"id": 5, "text": " a", "raw": "IGE=", "logprob": -0.1}],
       "insight": {"position": 3, "paths": ["full", "full"], "gate_margin": [null, null],
                   "nonlinearity": [1.0, 2.0], "output_norm": [2.0, 3.0]}},
      {"id": 7, "text": "�\u001b[2J", "raw": "qhtbMko=", "logprob": -0.7,
       "top": [{"id": 5, "text": " a", "raw": "IGE=", "logprob": -0.1}]}],
    "routing": {"linear_fraction": 0.375, "decisions": 8, "linear_decisions": 3, "ladder_decisions": 0,
                "skip_decisions": 0, "mlp_work_saved": 0.0, "calibration": "cal",
                "notes": ["no layer is gateable: ran in full"],
                "layers": [{"layer": 0, "full_tokens": 5, "linear_tokens": 3, "ladder_tokens": 0, "skip_tokens": 0}]},
    "timing": {"queue_seconds": 0.0, "prefill_seconds": 0.0125, "decode_seconds": 0.5}})"));
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 1);
  EXPECT_EQ(run.err, "");
}

TEST(Generate, StreamsPlainTextToAPipeAndTheSummaryToStandardError) {
  FakeHandlers handlers = Handlers();
  handlers.generate = GenerateThree;
  FakeServer server(handlers);
  const Finished run =
      Gatehouse({"generate", "-m", "m", "--prompt", "x", "--temperature", "0", "--server", server.address()});
  EXPECT_EQ(run.out, " a\u6b6a\x1b[2J!\n");
  EXPECT_EQ(run.err,
            "3 tokens · 4.0 tok/s · 37.5% linear · ended by \"END\" · prefill 12 ms\n"
            "note: no layer is gateable: ran in full\n");
}

TEST(Generate, DoesNotLetAModelDriveTheTerminal) {
  FakeHandlers handlers = Handlers();
  handlers.generate = GenerateThree;
  FakeServer server(handlers);
  const Finished run =
      Gatehouse({"generate", "-m", "m", "--prompt", "x\x1b[31m", "--color", "never", "--server", server.address()},
                {.terminal = true});
  EXPECT_EQ(run.out, "x\\x1b[31m a\u6b6a\\x1b[2J!\n");
  EXPECT_THAT(run.err, HasSubstr("seed 18446744073709551615"));
}

TEST(Generate, ShowsWhatWasRecordedAsHeatStrips) {
  FakeHandlers handlers = Handlers();
  handlers.generate = GenerateThree;
  FakeServer server(handlers);
  const Finished run = Gatehouse(
      {"generate", "-m", "m", "--prompt", "x", "--record", "routing,nonlinearity", "--server", server.address()});
  EXPECT_THAT(run.out, HasSubstr("\n\nRouting, layers × tokens\n"
                                 "   2\n"
                                 "L0 ░█\n"
                                 "L1 ██\n"
                                 "█ full   ▒ ladder   ░ linear   ✕ skipped\n"));
  EXPECT_THAT(run.out, HasSubstr("L0 ·▃\nL1 ▅▅\n"));
}

}  // namespace
}  // namespace gatehouse::cli
