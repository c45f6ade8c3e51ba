#include "tests/client/cli_answers.h"

#include <cmath>
#include <limits>
#include <utility>

namespace gatehouse::cli {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

}  // namespace

std::string Word(size_t index) {
  constexpr const char* kWords[] = {"The", " ship", " sailed", "\n", " home", "."};
  return kWords[index % 6];
}

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

}  // namespace gatehouse::cli
