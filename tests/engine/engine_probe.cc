// Answers requests on an engine, one JSON object a line, for tests in other languages:
//   {"op": "describe"}
//   {"op": "score", "ids": [...], "gating": "full|linear|gated", "threshold": 0.5, "chunk": 256}
//   {"op": "greedy", "ids": [...], "n": 32}
//   {"op": "capture", "ids": [...], "chunk": 256}: every site of every layer, row-major [tokens, width]
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/engine.h"
#include "tests/support/arguments.h"

namespace gatehouse {
namespace {

using nlohmann::json;

// A sequence that closes itself.
class OpenSequence {
 public:
  OpenSequence(Engine& engine, SequenceId id) : engine_(engine), id_(id) {}
  OpenSequence(const OpenSequence&) = delete;
  OpenSequence& operator=(const OpenSequence&) = delete;
  ~OpenSequence() { engine_.Close(id_); }
  SequenceId id() const { return id_; }

 private:
  Engine& engine_;
  SequenceId id_;
};

absl::StatusOr<RoutingPolicy> PolicyOf(const json& request, const Engine& engine,
                                       std::shared_ptr<const Calibration> calibration) {
  GatingRequest gating;
  const std::string mode = request.value("gating", "full");
  if (mode == "linear") gating.mode = GatingMode::kLinear;
  if (mode == "gated") gating.mode = GatingMode::kGated;
  if (request.contains("threshold")) gating.threshold = request["threshold"].get<float>();
  return RoutingPolicy::Create(gating, engine.info(), std::move(calibration));
}

absl::StatusOr<RowResult> StepOne(Engine& engine, const Row& row) {
  GH_ASSIGN_OR_RETURN(std::vector<RowResult> results, engine.Step({&row, 1}));
  GH_RETURN_IF_ERROR(results.front().status);
  return std::move(results.front());
}

absl::StatusOr<json> Score(Engine& engine, const json& request, const RoutingPolicy& policy) {
  const auto ids = request["ids"].get<std::vector<int32_t>>();
  std::vector<int32_t> targets(ids.begin() + std::min<size_t>(1, ids.size()), ids.end());
  targets.push_back(-1);
  GH_ASSIGN_OR_RETURN(const SequenceId id, engine.Open(static_cast<int>(ids.size())));
  const OpenSequence sequence(engine, id);
  const size_t chunk = request.value("chunk", 256);
  json logprobs = json::array();
  std::vector<uint64_t> linear_tokens(engine.info().layers, 0);
  for (size_t first = 0; first < ids.size(); first += chunk) {
    const size_t count = std::min(chunk, ids.size() - first);
    Row row;
    row.sequence = id;
    row.tokens = std::span(ids).subspan(first, count);
    row.targets = std::span<const int32_t>(targets).subspan(first, count);
    row.policy = &policy;
    GH_ASSIGN_OR_RETURN(const RowResult result, StepOne(engine, row));
    for (const float logprob : result.target_logprobs) {
      if (!std::isnan(logprob)) logprobs.push_back(logprob);
    }
    for (size_t layer = 0; layer < linear_tokens.size(); ++layer) linear_tokens[layer] += result.linear_tokens[layer];
  }
  return json{{"logprobs", logprobs}, {"linear_tokens", linear_tokens}};
}

absl::StatusOr<json> Greedy(Engine& engine, const json& request, const RoutingPolicy& policy) {
  const auto prompt = request["ids"].get<std::vector<int32_t>>();
  const int count = request.value("n", 32);
  SamplingParams params;
  params.temperature = 0;
  GH_ASSIGN_OR_RETURN(SamplingState sampling, SamplingState::Create(params, engine.info().vocab_size));
  GH_ASSIGN_OR_RETURN(const SequenceId id, engine.Open(static_cast<int>(prompt.size()) + count));
  const OpenSequence sequence(engine, id);
  std::vector<int32_t> out;
  std::vector<int32_t> next = prompt;
  while (static_cast<int>(out.size()) < count) {
    Row row;
    row.sequence = id;
    row.tokens = next;
    row.policy = &policy;
    row.sampling = &sampling;
    GH_ASSIGN_OR_RETURN(const RowResult result, StepOne(engine, row));
    out.push_back(result.sampled->token.id);
    next = {out.back()};
  }
  return json{{"ids", out}};
}

absl::StatusOr<json> Capture(Engine& engine, const json& request, const RoutingPolicy& policy) {
  const char* const kNames[] = {"residual_pre", "attention_out", "mlp_in", "neurons", "mlp_out", "residual_post"};
  const auto ids = request["ids"].get<std::vector<int32_t>>();
  std::vector<CaptureSite> captures;
  json activations = json::array();
  for (int layer = 0; layer < engine.info().layers; ++layer) {
    for (int site = 0; site < 6; ++site) {
      captures.push_back({layer, static_cast<ActivationSite>(site), {}});
      activations.push_back({{"layer", layer}, {"site", kNames[site]}, {"values", json::array()}});
    }
  }
  GH_ASSIGN_OR_RETURN(const SequenceId id, engine.Open(static_cast<int>(ids.size())));
  const OpenSequence sequence(engine, id);
  const size_t chunk = request.value("chunk", 256);
  for (size_t first = 0; first < ids.size(); first += chunk) {
    Row row;
    row.sequence = id;
    row.tokens = std::span(ids).subspan(first, std::min(chunk, ids.size() - first));
    row.policy = &policy;
    row.captures = captures;
    GH_ASSIGN_OR_RETURN(const RowResult result, StepOne(engine, row));
    for (size_t i = 0; i < captures.size(); ++i) {
      json& values = activations[i]["values"];
      for (const float value : result.captured[i].values) values.push_back(value);
    }
  }
  return json{{"activations", std::move(activations)}};
}

absl::StatusOr<json> Answer(Engine& engine, const json& request, std::shared_ptr<const Calibration> calibration) {
  const std::string op = request.value("op", "");
  if (op == "describe") {
    const ModelInfo& info = engine.info();
    return json{{"architecture", info.architecture},
                {"layers", info.layers},
                {"d_model", info.d_model},
                {"context", info.context},
                {"vocab_size", info.vocab_size},
                {"parameters", info.parameters},
                {"device", info.device},
                {"dtype", info.dtype},
                {"kernels", info.kernels}};
  }
  GH_ASSIGN_OR_RETURN(const RoutingPolicy policy, PolicyOf(request, engine, std::move(calibration)));
  if (op == "score") return Score(engine, request, policy);
  if (op == "greedy") return Greedy(engine, request, policy);
  if (op == "capture") return Capture(engine, request, policy);
  return absl::InvalidArgumentError(StrCat("unknown op \"", op, "\""));
}

absl::Status Main(const testing::Arguments& arguments) {
  EngineOptions options;
  options.device = arguments["device"];
  options.dtype = arguments["dtype"];
  options.kernels = arguments["kernels"];
  GH_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, LoadEngine(arguments["model"], options));
  std::shared_ptr<const Calibration> calibration;
  if (!arguments["calibration"].empty()) {
    GH_ASSIGN_OR_RETURN(calibration, engine->LoadCalibration(arguments["calibration"]));
  }
  for (std::string line; std::getline(std::cin, line);) {
    const absl::StatusOr<json> answer = Answer(*engine, json::parse(line), calibration);
    std::cout << (answer.ok() ? *answer : json{{"error", answer.status().ToString()}}) << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace gatehouse

int main(int argc, char** argv) {
  const gatehouse::testing::Arguments arguments(
      argc, argv, {{"model", ""}, {"device", "cpu"}, {"dtype", "float32"}, {"kernels", "auto"}, {"calibration", ""}});
  const absl::Status status = gatehouse::Main(arguments);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
