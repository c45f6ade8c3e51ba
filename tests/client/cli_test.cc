#include "client/cli/cli.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/client/fake_operation.h"
#include "tests/client/fake_server.h"
#include "tests/client/run_program.h"

namespace gatehouse::cli {
namespace {

using ::gatehouse::testing::FakeHandlers;
using ::gatehouse::testing::FakeServer;
using ::gatehouse::testing::FakeStatus;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::string Word(size_t index) {
  constexpr const char* kWords[] = {"The", " ship", " sailed", "\n", " home", "."};
  return kWords[index % 6];
}

// A model of two layers whose second layer has consensus neurons.
v1::DescribeModelResponse Description() {
  v1::DescribeModelResponse model;
  model.set_name("m");
  model.set_architecture("gpt2");
  model.set_parameters(7123456);
  model.set_layers(2);
  model.set_d_model(64);
  model.set_d_mlp(256);
  model.set_heads(1);
  model.set_vocab_size(500);
  model.set_context_tokens(128);
  model.set_dtype("float32");
  model.set_device("cpu");
  model.set_kernels("portable");
  model.set_weight_bytes(3 << 20);
  model.set_fingerprint("sha256:abc");
  model.add_eos_token_ids(0);
  auto& calibration = *model.mutable_calibration();
  calibration.set_name("cal");
  calibration.set_corpus("novel.txt");
  calibration.set_sink_positions(4);
  calibration.set_gateable_cost_limit(0.05);
  for (uint32_t i = 0; i < 2; ++i) {
    auto& layer = *calibration.add_layers();
    layer.set_layer(i);
    layer.set_linear_cost(i == 0 ? 0.012 : std::nan(""));
    layer.set_surrogate_r2(0.875);
    layer.set_gateable(i == 0);
    layer.set_p25(1);
    layer.set_p50(2);
    layer.set_p70(4);
    layer.set_p95(8);
  }
  auto& last = *calibration.mutable_layers(1);
  for (uint32_t neuron : {12u, 7u}) last.add_consensus()->set_neuron(neuron);
  last.add_exception()->set_neuron(99);
  last.set_consensus_null(0.3);
  last.set_consensus_random(3);
  auto& entry = *model.add_calibrations();
  entry.set_name("cal");
  entry.set_active(true);
  return model;
}

v1::TokenInsight Insight(uint32_t position, std::vector<float> scores) {
  v1::TokenInsight insight;
  insight.set_id(static_cast<int32_t>(position) + 10);
  insight.set_position(position);
  insight.set_raw(Word(position));
  for (float score : scores) {
    insight.add_nonlinearity(score);
    insight.add_output_norm(score + 1);
    insight.add_paths(std::isnan(score) ? v1::MLP_PATH_LINEAR : v1::MLP_PATH_FULL);
    insight.add_gate_margin(std::isnan(score) ? 0.25f : kNaN);
  }
  return insight;
}

FakeHandlers Handlers() {
  FakeHandlers handlers;
  handlers.list_models = [](const auto&, v1::ListModelsResponse& response) {
    response.set_replica("r1");
    response.add_models()->set_name("m");
    return FakeStatus{};
  };
  handlers.describe_model = [](const auto&, v1::DescribeModelResponse& response) {
    response = Description();
    return FakeStatus{};
  };
  handlers.nonlinearity = [](const v1::ScoreNonlinearityRequest& request, const auto& stream) {
    v1::ScoreNonlinearityResponse response;
    response.mutable_start()->set_calibration("cal");
    for (uint32_t layer = 0; layer < 2; ++layer) {
      auto& percentiles = *response.mutable_start()->add_layers();
      percentiles.set_layer(layer);
      percentiles.set_p25(1);
      percentiles.set_p50(2);
      percentiles.set_p70(4);
      percentiles.set_p95(8);
    }
    stream.write(response);
    for (int input = 0; input < request.inputs_size(); ++input) {
      for (uint32_t position = 0; position < 6; ++position) {
        response.mutable_tokens()->set_input(static_cast<uint32_t>(input));
        response.mutable_tokens()->clear_tokens();
        *response.mutable_tokens()->add_tokens() = Insight(
            position, {position == 1 ? kNaN : static_cast<float>(position), 20.f - 4 * static_cast<float>(position)});
        stream.write(response);
      }
    }
    response.mutable_summary()->set_tokens(6);
    stream.write(response);
    return FakeStatus{};
  };
  handlers.consensus = [](const v1::TraceConsensusRequest&, const auto& stream) {
    v1::TraceConsensusResponse response;
    response.mutable_start()->set_calibration("cal");
    response.mutable_start()->add_layers()->set_layer(0);
    auto& last = *response.mutable_start()->add_layers();
    last.set_layer(1);
    last.add_consensus(12);
    last.add_consensus(7);
    last.add_exception(99);
    stream.write(response);
    auto& tokens = *response.mutable_tokens();
    for (uint32_t position = 0; position < 6; ++position) {
      v1::TokenInsight& insight = *tokens.add_tokens();
      insight = Insight(position, {1, 2});
      insight.clear_nonlinearity();
      insight.add_consensus()->set_layer(0);
      auto& consensus = *insight.add_consensus();
      consensus.set_layer(1);
      if (position == 5) continue;  // went linear
      consensus.set_level(position % 3);
      if (position % 3 > 0) consensus.add_fired(12);
      if (position == 3) consensus.add_exceptions_fired(99);
    }
    stream.write(response);
    response.mutable_summary()->set_tokens(6);
    stream.write(response);
    return FakeStatus{};
  };
  return handlers;
}

// Answers with three tokens: plain, a cut character, and one with control characters.
FakeStatus GenerateThree(const v1::GenerateRequest& request, const testing::FakeStream<v1::GenerateResponse>& stream) {
  v1::GenerateResponse response;
  response.mutable_start()->set_prompt_tokens(2);
  stream.write(response);
  const std::vector<std::pair<std::string, std::string>> pieces = {
      {" a", " a"}, {"", "\xE6\xAD"}, {"\u6b6a\x1b[2J", "\xAA\x1b[2J"}};
  for (size_t i = 0; i < pieces.size(); ++i) {
    auto& token = *response.mutable_token();
    token.Clear();
    token.set_id(static_cast<int32_t>(i) + 5);
    token.set_text(pieces[i].first);
    token.set_raw(pieces[i].second);
    token.set_logprob(i == 1 ? -INFINITY : -0.7f);
    if (request.top_logprobs() > 0) {
      token.add_top()->set_id(5);
      token.mutable_top(0)->set_logprob(-0.1f);
      token.mutable_top(0)->set_raw(" a");
    }
    if (request.records().routing() && i < 2) {
      *token.mutable_insight() = Insight(static_cast<uint32_t>(i) + 2, {i == 0 ? kNaN : 1.f, 2.f});
      if (!request.records().nonlinearity()) token.mutable_insight()->clear_nonlinearity();
    }
    stream.write(response);
  }
  auto& summary = *response.mutable_summary();
  summary.set_finish_reason(v1::FINISH_REASON_STOP_STRING);
  summary.set_matched_stop("END");
  summary.set_text("!");
  summary.set_prompt_tokens(2);
  summary.set_generated_tokens(3);
  summary.set_decode_seconds(0.5);
  summary.set_prefill_seconds(0.0125);
  summary.set_seed(18446744073709551615u);
  auto& routing = *summary.mutable_routing();
  routing.set_linear_fraction(0.375);
  routing.set_decisions(8);
  routing.set_linear_decisions(3);
  routing.set_calibration("cal");
  routing.add_notes("no layer is gateable: ran in full");
  auto& layer = *routing.add_layers();
  layer.set_full_tokens(5);
  layer.set_linear_tokens(3);
  stream.write(response);
  return {};
}

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

TEST(Score, PrintsLogprobsOfTheTokensFromTheSecondOn) {
  v1::ScoreRequest got;
  FakeHandlers handlers = Handlers();
  handlers.score = [&](const v1::ScoreRequest& request, const auto& stream) {
    got = request;
    v1::ScoreResponse response;
    for (int i = 0; i < 3; ++i) {
      auto& token = *response.mutable_tokens()->add_tokens();
      token.set_id(5 + i);
      token.set_position(static_cast<uint32_t>(i));
      token.set_raw(Word(static_cast<size_t>(i)));
      if (i == 2) token.set_logprob(-1.5f);
    }
    stream.write(response);
    auto& summary = *response.mutable_summary();
    summary.set_tokens(3);
    summary.set_scored_tokens(1);
    summary.set_total_logprob(-1.5);
    summary.set_perplexity(std::exp(1.5));
    summary.set_windows(1);
    stream.write(response);
    return FakeStatus{};
  };
  FakeServer server(handlers);
  const Finished run = Gatehouse({"--json", "score", "--model", "m", "--token-ids", "5,6,7", "--window", "8",
                                  "--stride", "4", "--blocks", "--gating", "linear", "--server", server.address()});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(got.input().token_ids().ids(), ElementsAre(5, 6, 7));
  EXPECT_EQ(got.window().size(), 8u);
  EXPECT_EQ(got.window().stride(), 4u);
  EXPECT_TRUE(got.window().blocks());
  EXPECT_EQ(got.gating().mode(), v1::GatingPolicy::MODE_LINEAR);
  const auto json = run.json();
  EXPECT_EQ(json["logprobs"], nlohmann::json::parse("[null, -1.5]"));
  EXPECT_EQ(json["token_ids"], nlohmann::json::parse("[5, 6, 7]"));
  EXPECT_EQ(json["tokens"][2],
            nlohmann::json::parse(R"({"id": 7, "text": " sailed", "position": 2, "logprob": -1.5})"));
  EXPECT_DOUBLE_EQ(json["perplexity"], std::exp(1.5));
  EXPECT_EQ(json["routing"]["linear_fraction"], 0);

  const Finished text = Gatehouse({"score", "-m", "m", "--text", "x", "--tokens", "--server", server.address()});
  EXPECT_EQ(text.out,
            "position  id  token      logprob  likeliest\n"
            "       0   5  \"The\"            –  \n"
            "       1   6  \" ship\"          –  \n"
            "       2   7  \" sailed\"  -1.5000  \n"
            "\n"
            "perplexity 4.4817 · 1.5000 nats a token · 0.0% linear\n");
  EXPECT_THAT(text.err, StartsWith("1 of 3 tokens scored · 1 window"));
}

TEST(Nonlinearity, DrawsBlocksUnderTheTextWhereThereAreNoColours) {
  FakeServer server(Handlers());
  const Finished run =
      Gatehouse({"nonlinearity", "-m", "m", "--text", "x", "--server", server.address()}, {.width = 40});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, StartsWith("Nonlinearity at layer 1\n"
                                  "The ship sailed⏎\n"
                                  "████████████████\n"
                                  " home.\n"
                                  "▆▆▆▆▆▁\n"
                                  "\n"
                                  "Layers × tokens\n"
                                  "   0\n"
                                  "L0 ▁·▅▅▆▇\n"
                                  "L1 ████▆▁\n"));
}

TEST(Nonlinearity, ColoursTheTextOnATerminal) {
  FakeServer server(Handlers());
  const Finished run = Gatehouse(
      {"nonlinearity", "-m", "m", "--text", "x", "--layer", "0", "--color", "always", "--server", server.address()});
  EXPECT_THAT(run.out, StartsWith("\x1b[1mNonlinearity at layer 0\x1b[0m\n"
                                  "\x1b[38;5;255;48;5;24mThe\x1b[0m\x1b[2m ship\x1b[0m"
                                  "\x1b[38;5;255;48;5;94m sailed\x1b[0m"));
  EXPECT_EQ(Gatehouse({"nonlinearity", "-m", "m", "--text", "x", "--layer", "2", "--server", server.address()}).err,
            "gatehouse: --layer 2 is not in [0, 2)\n");
}

TEST(Nonlinearity, PrintsEveryTextTokenAndLayerAsJson) {
  v1::ScoreNonlinearityRequest got;
  FakeHandlers handlers = Handlers();
  handlers.nonlinearity = [&, answer = handlers.nonlinearity](const auto& request, const auto& stream) {
    got = request;
    return answer(request, stream);
  };
  FakeServer server(handlers);
  const auto json =
      Gatehouse({"nonlinearity", "-m", "m", "--text", "x", "--text", "y", "--json", "--server", server.address()})
          .json();
  EXPECT_EQ(got.inputs_size(), 2);
  EXPECT_EQ(json["calibration"], "cal");
  EXPECT_EQ(json["layers"][1],
            nlohmann::json::parse(R"({"layer": 1, "p25": 1.0, "p50": 2.0, "p70": 4.0, "p95": 8.0})"));
  ASSERT_EQ(json["texts"].size(), 2u);
  ASSERT_EQ(json["texts"][1]["tokens"].size(), 6u);
  EXPECT_EQ(json["texts"][1]["tokens"][1], nlohmann::json::parse(R"({
    "id": 11, "text": " ship", "position": 1, "paths": ["linear", "full"], "gate_margin": [0.25, null],
    "nonlinearity": [null, 16.0], "output_norm": [null, 17.0]})"));
}

TEST(Consensus, ListsTheTokensOfTheRichestLayer) {
  FakeServer server(Handlers());
  const Finished run = Gatehouse({"consensus", "-m", "m", "--text", "x", "--server", server.address()});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, StartsWith("Consensus at layer 1\n"
                                  "consensus neurons 12, 7 · exception 99\n"
                                  "position  token      consensus    exception   ‖y‖  \n"
                                  "       0  \"The\"      ○○ 0/2                  3.00  ▪▪▪▪▪▪▪▪▪▪▪▪\n"
                                  "       1  \" ship\"    ●○ 1/2                  3.00  ▪▪▪▪▪▪▪▪▪▪▪▪\n"
                                  "       2  \" sailed\"  ●● 2/2                  3.00  ▪▪▪▪▪▪▪▪▪▪▪▪\n"
                                  "       3  \"⏎\"        ○○ 0/2       ✱ 99       3.00  ▪▪▪▪▪▪▪▪▪▪▪▪\n"
                                  "       4  \" home\"    ●○ 1/2                  3.00  ▪▪▪▪▪▪▪▪▪▪▪▪\n"
                                  "       5  \".\"        not in full             3.00  ▪▪▪▪▪▪▪▪▪▪▪▪\n"
                                  "\n"
                                  "Layers × tokens\n"
                                  "   0\n"
                                  "L1 ▁▅█✱▅·\n"));
}

TEST(Consensus, PrintsLevelsAndNeuronsAsJson) {
  FakeServer server(Handlers());
  const auto json = Gatehouse({"consensus", "-m", "m", "--text", "x", "--json", "--server", server.address()}).json();
  EXPECT_EQ(json["layers"][1],
            nlohmann::json::parse(R"({"layer": 1, "consensus": [12, 7], "exception": [99], "gateway": []})"));
  const auto& tokens = json["texts"][0]["tokens"];
  EXPECT_EQ(tokens[4]["consensus"][1],
            nlohmann::json::parse(R"({"layer": 1, "level": 1, "fired": [12], "exceptions_fired": []})"));
  EXPECT_EQ(tokens[5]["consensus"][1]["level"], nullptr);
}

TEST(Models, PrintsLayersWithPlainNeuronIndicesAsJson) {
  FakeServer server(Handlers());
  const auto json = Gatehouse({"models", "--json", "--server", server.address()}).json();
  EXPECT_EQ(json["replica"], "r1");
  const auto& model = json["models"][0];
  EXPECT_EQ(model["name"], "m");
  EXPECT_EQ(model["layer_count"], 2);
  ASSERT_EQ(model["layers"].size(), 2u);
  EXPECT_EQ(model["layers"][1]["consensus"], nlohmann::json::parse("[12, 7]"));
  EXPECT_EQ(model["layers"][1]["exception"], nlohmann::json::parse("[99]"));
  EXPECT_EQ(model["layers"][0]["surrogate_r2"], 0.875);
  EXPECT_EQ(model["layers"][0]["gateable"], true);
  EXPECT_EQ(model["layers"][1]["linear_cost"], nullptr);  // NaN
}

TEST(Models, FailWhereStandardOutputTakesNothing) {
  FakeServer server(Handlers());
  std::istringstream in;
  std::ostream full(nullptr);
  std::ostringstream err;
  Interrupts interrupts;
  EXPECT_EQ(RunProgram({"models", "--server", server.address()}, {.in = in,
                                                                  .out = full,
                                                                  .err = err,
                                                                  .out_is_terminal = false,
                                                                  .err_is_terminal = false,
                                                                  .width = 80,
                                                                  .interrupts = interrupts}),
            kExitFailed);
  EXPECT_THAT(err.str(), HasSubstr("cannot write standard output"));
}

TEST(Models, ShowsLayersOfOneThatIsNamed) {
  FakeServer server(Handlers());
  const Finished run = Gatehouse({"models", "m", "--server", server.address()});
  EXPECT_THAT(run.out, AllOf(StartsWith("m\n  gpt2 · 7.1M parameters · 2 layers"), HasSubstr("+1.20%  0.875  yes"),
                             HasSubstr("layer 1  consensus 12, 7 · exception 99")));
  // Beside what chance names.
  EXPECT_THAT(run.out, AllOf(HasSubstr(" 2 (0.3, 3) "), HasSubstr("neurons named (under shuffled labels, ")));
  const Finished all = Gatehouse({"models", "--server", server.address()});
  EXPECT_THAT(all.out, HasSubstr("m     gpt2                7.1M       2      128  float32       1/2  cal"));
}

// Two operating points, and a ladder in layer 1.
v1::DescribeModelResponse WithOperatingPoints() {
  v1::DescribeModelResponse model = Description();
  auto& calibration = *model.mutable_calibration();
  calibration.mutable_layers(1)->set_ladder_neurons(64);
  calibration.add_ingredients("sequential");
  calibration.add_ingredients("ladders");
  for (const double budget : {0.01, 0.05}) {
    auto& point = *calibration.add_operating_points();
    point.set_name(budget < 0.02 ? "1%" : "5%");
    point.set_budget(budget);
    point.set_cost(budget - 0.001);
    point.set_cost_low(-0.002);
    point.set_cost_high(0.06);
    point.set_work_saved(0.25);
    point.set_linear_fraction(0.2);
    point.set_ladder_fraction(0.125);
    for (uint32_t layer = 0; layer < 2; ++layer) {
      auto& thresholds = *point.add_layers();
      thresholds.set_layer(layer);
      thresholds.set_linear_threshold(0.6f);
      thresholds.set_ladder_threshold(layer == 1 ? -1 : 1);
    }
  }
  return model;
}

TEST(Models, ListsTheOperatingPoints) {
  FakeHandlers handlers = Handlers();
  handlers.describe_model = [](const auto&, v1::DescribeModelResponse& response) {
    response = WithOperatingPoints();
    return FakeStatus{};
  };
  FakeServer server(handlers);
  const Finished run = Gatehouse({"models", "m", "--server", server.address()});
  EXPECT_THAT(run.out, HasSubstr("  operating points · sequential · ladders\n"
                                 "  name  perplexity  95% interval      MLP work saved  linear  ladder\n"
                                 "  1%        +0.90%  -0.20% to +6.00%           25.0%   20.0%   12.5%\n"
                                 "  5%        +4.90%  -0.20% to +6.00%           25.0%   20.0%   12.5%\n"));
  EXPECT_THAT(run.out, HasSubstr("gateway  ladder\n"));
  const auto model = Gatehouse({"models", "m", "--json", "--server", server.address()}).json()["models"][0];
  EXPECT_EQ(model["layers"][0]["ladder_neurons"], 0);
  EXPECT_EQ(model["layers"][1]["ladder_neurons"], 64);
  EXPECT_EQ(model["calibration"]["ingredients"], nlohmann::json::parse(R"(["sequential", "ladders"])"));
  EXPECT_EQ(model["calibration"]["operating_points"][1], nlohmann::json::parse(R"({
    "name": "5%", "budget": 0.05, "cost": 0.049, "cost_low": -0.002, "cost_high": 0.06, "work_saved": 0.25,
    "linear_fraction": 0.2, "ladder_fraction": 0.125,
    "layers": [{"layer": 0, "linear_threshold": 0.6, "ladder_threshold": 1.0},
               {"layer": 1, "linear_threshold": 0.6, "ladder_threshold": -1.0}]})"));
}

TEST(Models, SelectsACalibration) {
  v1::SelectCalibrationRequest got;
  FakeHandlers handlers = Handlers();
  handlers.select_calibration = [&](const auto& request, v1::SelectCalibrationResponse& response) {
    got = request;
    response.mutable_calibration()->set_name(request.calibration());
    return FakeStatus{};
  };
  FakeServer server(handlers);
  const Finished run = Gatehouse({"models", "select-calibration", "m", "careful", "--server", server.address()});
  EXPECT_EQ(run.out, "m now uses calibration careful\n") << run.err;
  EXPECT_EQ(got.model(), "m");
}

TEST(Calibrate, UploadsStartsWatchesAndShowsTheLayers) {
  FakeOperation operation;
  FakeServer server(operation.Handlers(Handlers()));
  const auto corpus = TemporaryFile("novel.txt");
  std::ofstream(corpus) << "Call me Ishmael.";
  const Finished run = Gatehouse({"calibrate", "--model", "m", "--corpus", corpus.string(), "--json", "--name",
                                  "careful", "--no-activate", "--fit-tokens", "100", "--ridge", "0.5",
                                  "--sink-positions", "0", "--server", server.address()});
  std::filesystem::remove(corpus);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = run.json();
  EXPECT_EQ(json["corpus"], nlohmann::json::parse(R"({"name": "corpora/abc", "size_bytes": 16})"));
  EXPECT_EQ(json["operation"]["state"], "succeeded");
  EXPECT_EQ(json["operation"]["error"], nullptr);
  EXPECT_EQ(json["layers"][1]["consensus"], nlohmann::json::parse("[12, 7]"));
  const auto& spec = operation.started.calibrate();
  EXPECT_EQ(spec.corpus(), "corpora/abc");
  EXPECT_EQ(spec.calibration(), "careful");
  EXPECT_TRUE(spec.has_activate() && !spec.activate());
  EXPECT_EQ(spec.fit_tokens(), 100u);
  EXPECT_EQ(spec.ridge(), 0.5);
  EXPECT_TRUE(spec.has_sink_positions());
  EXPECT_EQ(run.err, " 50%  surrogates: layer 1 of 2\n");
}

TEST(Calibrate, ShowsTheOperatingPointsItMade) {
  FakeOperation operation;
  FakeHandlers handlers = operation.Handlers(Handlers());
  handlers.describe_model = [](const auto&, v1::DescribeModelResponse& response) {
    response = WithOperatingPoints();
    return FakeStatus{};
  };
  FakeServer server(handlers);
  const auto calibrate = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"calibrate", "-m", "m", "--corpus", "-", "--server", server.address()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Gatehouse(arguments, {.in = "Call me Ishmael."});
  };
  EXPECT_THAT(calibrate({}).out, HasSubstr("\n\n  operating points · sequential · ladders\n  name  perplexity"));
  EXPECT_EQ(calibrate({"--json"}).json()["operating_points"][0]["name"], "1%");
}

TEST(Calibrate, FailsWhereTheOperationDoes) {
  FakeOperation operation;
  operation.end = v1::OPERATION_STATE_FAILED;
  FakeServer server(operation.Handlers(Handlers()));
  const Finished run =
      Gatehouse({"calibrate", "-m", "m", "--corpus", "-", "--server", server.address()}, {.in = "text"});
  EXPECT_EQ(run.exit_code, kExitFailed);
  EXPECT_THAT(run.err, HasSubstr("calibration of m failed: the corpus is too short"));
}

TEST(Calibrate, DetachesWithoutWatching) {
  FakeOperation operation;
  operation.runs_until_cancelled = true;
  FakeServer server(operation.Handlers(Handlers()));
  const Finished run =
      Gatehouse({"calibrate", "-m", "m", "--corpus", "-", "--detach", "--server", server.address()}, {.in = "text"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.out, "operations/r1/7\n");
}

TEST(Calibrate, AsksTheServerToCancelWhenInterrupted) {
  FakeOperation operation;
  operation.runs_until_cancelled = true;
  Interrupts interrupts;
  std::once_flag once;
  std::thread ctrl_c;
  operation.running = [&] { std::call_once(once, [&] { ctrl_c = std::thread([&] { interrupts.Raise(); }); }); };
  FakeServer server(operation.Handlers(Handlers()));
  const Finished run = Gatehouse({"calibrate", "-m", "m", "--corpus", "-", "--json", "--server", server.address()},
                                 {.in = "text", .interrupts = &interrupts});
  ctrl_c.join();
  EXPECT_EQ(run.exit_code, kExitInterrupted);
  EXPECT_TRUE(operation.cancelled);
  EXPECT_EQ(run.json()["operation"]["state"], "cancelled");
}

TEST(Calibrate, SaysWhichFileItCannotRead) {
  FakeOperation operation;
  FakeServer server(operation.Handlers(Handlers()));
  const Finished run = Gatehouse({"calibrate", "-m", "m", "--corpus", "/no/such/file", "--server", server.address()});
  EXPECT_EQ(run.exit_code, kExitFailed);
  EXPECT_EQ(run.err, "gatehouse: cannot read /no/such/file: No such file or directory\n");
}

TEST(Operations, ListsGetsAndFetchesByNameOrId) {
  FakeOperation operation;
  FakeServer server(operation.Handlers(Handlers()));
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--server", server.address(), "operations"});
    return Gatehouse(arguments);
  };
  EXPECT_EQ(run({"--json"}).json()["operations"][0]["name"], "operations/r1/7");
  EXPECT_EQ(run({"list", "--json"}).json()["operations"].size(), 1u);
  EXPECT_EQ(run({"get", "7", "--json"}).json()["state"], "succeeded");
  EXPECT_THAT(run({"get", "operations/r1/7"}).out, HasSubstr("operations/r1/7  calibrate  m      succeeded  100%"));
  EXPECT_THAT(run({"get", "8"}).err, HasSubstr("no operation has the ID 8"));
  EXPECT_EQ(run({"watch", "7"}).exit_code, 0);
  EXPECT_EQ(run({"cancel", "7", "--json"}).exit_code, 0);
  EXPECT_TRUE(operation.cancelled);
  EXPECT_EQ(run({"fetch", "7", "--output", "-"}).out, "tensors");
  const auto path = TemporaryFile("result.safetensors");
  EXPECT_EQ(run({"fetch", "7", "-o", path.string(), "--json"}).json()["size_bytes"], 7);
  std::string content;
  std::ifstream(path) >> content;
  EXPECT_EQ(content, "tensors");
  std::filesystem::remove(path);
}

TEST(Errors, SayWhatToDo) {
  FakeHandlers handlers = Handlers();
  handlers.generate = [](const auto&, const auto&) {
    return FakeStatus{9, "model m is not calibrated", "NOT_CALIBRATED"};
  };
  handlers.score = [](const auto&, const auto&) { return FakeStatus{3, "text is\nempty\x1b[2J", "EMPTY_INPUT"}; };
  FakeServer server(handlers);
  Finished run = Gatehouse({"generate", "-m", "m", "--prompt", "x", "--server", server.address()});
  EXPECT_EQ(run.exit_code, kExitFailed);
  EXPECT_EQ(run.err, "gatehouse: model m is not calibrated: run `gatehouse calibrate --model m --corpus FILE` first\n");
  run = Gatehouse({"generate", "-m", "m", "--prompt", "x", "--json", "--server", server.address()});
  EXPECT_EQ(run.json(), nlohmann::json::parse(R"({"error": {"code": "FAILED_PRECONDITION", "reason": "NOT_CALIBRATED",
                                                  "message": "model m is not calibrated"}})"));
  run = Gatehouse({"score", "-m", "m", "--text", "x", "--server", server.address()});
  EXPECT_EQ(run.err, "gatehouse: text is⏎empty\\x1b[2J\n");  // one line, and no control characters
}

TEST(Errors, NameTheServerThatDoesNotAnswer) {
  std::string address;
  { address = FakeServer(Handlers()).address(); }
  const Finished run = Gatehouse({"models", "--server", address});
  EXPECT_EQ(run.exit_code, kExitUnavailable);
  EXPECT_EQ(run.err, "gatehouse: no server answers at " + address +
                         " (Connection refused): start one with `gatehouse-server --listen " + address +
                         "`, or name another with --server\n");
}

TEST(Errors, TellAServerThatEndedTheCallFromOneThatIsNotThere) {
  EXPECT_EQ(DescribeError(absl::UnavailableError("Socket closed"), "h:1", "m"),
            "the server at h:1 ended the call (Socket closed): try again later, or another with --server");
  EXPECT_EQ(DescribeError(absl::UnavailableError("DNS resolution failed for nowhere:1: not found"), "nowhere:1", "m"),
            "no server answers at nowhere:1 (not found): start one with `gatehouse-server --listen nowhere:1`, or name "
            "another with --server");
}

TEST(Errors, TellADeadlineFromOtherFailures) {
  FakeHandlers handlers = Handlers();
  handlers.generate = [](const auto&, const auto& stream) {
    while (!stream.cancelled()) std::this_thread::yield();
    return FakeStatus{};
  };
  FakeServer server(handlers);
  const Finished run =
      Gatehouse({"generate", "-m", "m", "--prompt", "x", "--timeout", "0.05", "--server", server.address()});
  EXPECT_EQ(run.exit_code, kExitDeadline);
  EXPECT_THAT(run.err, HasSubstr("--timeout"));
}

TEST(Errors, InterruptingACallCancelsIt) {
  Interrupts interrupts;
  std::thread ctrl_c;
  FakeHandlers handlers = Handlers();
  handlers.generate = [&](const auto&, const auto& stream) {
    ctrl_c = std::thread([&] { interrupts.Raise(); });
    while (!stream.cancelled()) std::this_thread::yield();
    return FakeStatus{};
  };
  FakeServer server(handlers);
  const Finished run =
      Gatehouse({"generate", "-m", "m", "--prompt", "x", "--server", server.address()}, {.interrupts = &interrupts});
  ctrl_c.join();
  EXPECT_EQ(run.exit_code, kExitInterrupted);
  EXPECT_EQ(run.err, "gatehouse: interrupted\n");
}

TEST(Errors, TextThatIsNotUtf8IsNamed) {
  FakeServer server(Handlers());
  const Finished run = Gatehouse({"generate", "-m", "m", "--prompt", "ab\xFF", "--json", "--server", server.address()});
  EXPECT_EQ(run.exit_code, kExitFailed);
  EXPECT_EQ(run.json()["error"]["message"], "prompt.text is not valid UTF-8 at byte 2");
}

TEST(Usage, BadCommandLinesExitWithTwoAndNameTheFlag) {
  const auto usage = [](std::vector<std::string> arguments) {
    const Finished run = Gatehouse(std::move(arguments));
    EXPECT_EQ(run.exit_code, kExitUsage) << run.out << run.err;
    return run.err;
  };
  usage({});
  EXPECT_THAT(usage({"generate", "--prompt", "x"}), HasSubstr("--model"));
  EXPECT_THAT(usage({"generate", "-m", "m"}), HasSubstr("--prompt"));
  EXPECT_THAT(usage({"generate", "-m", "m", "--prompt", "x", "--layers", "5-3"}),
              AllOf(HasSubstr("--layers"), HasSubstr("'5-3'")));
  EXPECT_THAT(usage({"generate", "-m", "m", "--prompt", "x", "--gating", "half"}), HasSubstr("--gating"));
  EXPECT_THAT(usage({"models", "--server", "host:99999"}), HasSubstr("port 99999, must be in [1, 65535]"));
  EXPECT_THAT(usage({"generate", "-m", "m", "--prompt", "x", "--prompt", "y"}), HasSubstr("--prompt"));
  EXPECT_THAT(usage({"score", "-m", "m", "--file", "/no/such/file"}), HasSubstr("/no/such/file"));
  EXPECT_THAT(usage({"score", "-m", "m", "--file", "/"}), HasSubstr("cannot read /"));
  EXPECT_THAT(usage({"models", "--timeout", "-1"}), HasSubstr("--timeout"));
  EXPECT_THAT(usage({"models", "--timeout", "nan"}), HasSubstr("--timeout"));
  EXPECT_THAT(usage({"models", "--no-such-flag"}), HasSubstr("--no-such-flag"));
}

TEST(Usage, NumbersOutOfTheirBoundsAreNamedWithThem) {
  const auto refuses = [](std::vector<std::string> arguments, const std::string& flag, const std::string& value,
                          const std::string& wanted) {
    arguments.insert(arguments.end(), {flag, value});
    const Finished run = Gatehouse(arguments);
    EXPECT_EQ(run.exit_code, kExitUsage) << run.out;
    EXPECT_THAT(run.err, HasSubstr(flag + ": '" + value + "' is not " + wanted)) << flag;
  };
  const std::vector<std::string> generate = {"generate", "-m", "m", "--prompt", "x"};
  const std::vector<std::string> calibrate = {"calibrate", "-m", "m", "--corpus", "f"};
  const std::vector<std::string> cost = {"experiment", "cost", "-m", "m", "--corpus", "f"};
  const std::string bounds = "a whole number in [0, 4294967295]";
  for (const char* value : {"-1", "4294967296", "1e3", "0x10", "x"}) {
    refuses(generate, "--max-tokens", value, bounds);
    refuses(generate, "--top-k", value, bounds);
    refuses({"score", "-m", "m", "--text", "x"}, "--window", value, bounds);
    refuses({"nonlinearity", "-m", "m", "--text", "x"}, "--layer", value, bounds);
    refuses(calibrate, "--fit-tokens", value, bounds);
    refuses(cost, "--sink-positions", value, bounds);
    refuses({"operations"}, "--limit", value, bounds);
    refuses({"operations", "report", "x"}, "--rows", value, bounds);
    refuses({"experiment", "gates", "-m", "m", "--corpus", "f"}, "--bottlenecks", value, bounds);
  }
  for (const char* value : {"-1", "18446744073709551616", "1.5"}) {
    for (const auto& command : {generate, calibrate, cost}) {
      refuses(command, "--seed", value, "a whole number in [0, 18446744073709551615]");
    }
  }
  refuses(generate, "--temperature", "warm", "a number");
  refuses(calibrate, "--ridge", "x", "a number");
}

TEST(Usage, AnEmptyValueIsNotTakenForNone) {
  for (const char* flag : {"--operating-point", "--layers", "--calibration", "--record"}) {
    const Finished run = Gatehouse({"generate", "-m", "m", "--prompt", "x", flag, ""});
    EXPECT_EQ(run.exit_code, kExitUsage) << flag;
    EXPECT_THAT(run.err, HasSubstr(std::string(flag) + ": must not be empty"));
  }
  for (const char* flag : {"--html", "--npz"}) {
    const Finished run = Gatehouse({"experiment", "cost", "-m", "m", "--corpus", "f", flag, ""});
    EXPECT_EQ(run.exit_code, kExitUsage) << flag;
    EXPECT_THAT(run.err, HasSubstr(std::string(flag) + ": must not be empty"));
  }
}

TEST(Usage, ALayerHasOneThreshold) {
  const Finished run = Gatehouse({"generate", "-m", "m", "--prompt", "x", "--gating", "gated", "--layer-threshold",
                                  "3-5=0.5", "--layer-threshold", "4=0.6"});
  EXPECT_EQ(run.exit_code, kExitUsage);
  EXPECT_THAT(run.err, HasSubstr("--layer-threshold: layer 4 is given twice"));
}

TEST(Usage, EveryCommandHasHelpWithExamples) {
  for (const char* command : {"generate", "score", "nonlinearity", "consensus", "calibrate", "operations", "models"}) {
    const Finished run = Gatehouse({command, "--help"});
    EXPECT_EQ(run.exit_code, 0) << command;
    EXPECT_THAT(run.out, HasSubstr("Examples:")) << command;
    EXPECT_THAT(Gatehouse({"--help"}).out, HasSubstr(command));
  }
}

TEST(Usage, TheServerMayComeFromTheEnvironment) {
  FakeServer server(Handlers());
  setenv("GATEHOUSE_SERVER", server.address().c_str(), 1);
  const Finished run = Gatehouse({"models"});
  unsetenv("GATEHOUSE_SERVER");
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

}  // namespace
}  // namespace gatehouse::cli
