#include <CLI/App.hpp>
#include <algorithm>
#include <cmath>
#include <memory>

#include "client/cli/flags.h"
#include "client/cli/intervention_flags.h"
#include "client/cli/parse.h"
#include "client/cli/render.h"
#include "client/cli/session.h"

namespace gatehouse::cli {
namespace {

constexpr char kGenerateExamples[] = R"(Examples:
  gatehouse generate -m novella-gpt2-7m --prompt "The captain of the ship" --max-tokens 40
  gatehouse generate -m novella-gpt2-7m --prompt "It was" --gating gated --threshold 0.7 --temperature 0
  gatehouse generate -m novella-gpt2-7m --prompt "It was" --operating-point 1%
  gatehouse generate -m novella-gpt2-7m --prompt-file - --record routing < prompt.txt
  gatehouse generate -m novella-gpt2-7m --prompt "It was" --intervene zero:L6:n12,55
  gatehouse generate -m novella-gpt2-7m --prompt "It was" --top-logprobs 3 --json | jq .tokens)";

struct GenerateCommand {
  std::string model;
  InputFlags prompt{{"--prompt", "--prompt-file", "--prompt-token-ids"}};
  std::optional<uint32_t> max_tokens;
  std::optional<float> temperature, top_p, repetition_penalty;
  uint32_t top_k = 0;
  float min_p = 0;
  std::vector<std::string> logit_bias;
  std::optional<uint64_t> seed;
  std::vector<std::string> stops;
  std::vector<std::string> stop_token_ids;
  bool ignore_eos = false;
  GatingFlags gating;
  RecordFlags records;
  InterventionFlags interventions;
  bool record_prompt = false;
  uint32_t top_logprobs = 0;
  bool raw = false;

  void Declare(CLI::App& app);
  v1::GenerateRequest Build(std::istream& in) const;
  absl::StatusOr<int> Run(Session& session, const v1::GenerateRequest& request) const;
  absl::StatusOr<int> RunJson(Session& session, const v1::GenerateRequest& request) const;
};

void GenerateCommand::Declare(CLI::App& app) {
  AddModelFlag(app, model);
  prompt.Add(app);
  app.add_option("-n,--max-tokens", max_tokens, "Most tokens to generate (default: what the context has room for)");

  constexpr char kSampling[] = "Sampling";
  app.add_option("--temperature", temperature, "0 takes the most likely token (default: 1)")->group(kSampling);
  app.add_option("--top-k", top_k, "Keep the k most likely tokens; 0 keeps all")->group(kSampling);
  app.add_option("--top-p", top_p, "Keep the most likely tokens up to this probability, in [0, 1] (default: 1)")
      ->group(kSampling);
  app.add_option("--min-p", min_p, "Drop tokens less likely than this times the most likely, in [0, 1]")
      ->group(kSampling);
  app.add_option("--repetition-penalty", repetition_penalty,
                 "Above 1 makes tokens seen before less likely (default: 1)")
      ->group(kSampling);
  AddRepeatable(app, "--logit-bias", logit_bias, "Added to one token's logit: 11=-2.5, or 11=-inf for never")
      ->type_name("ID=BIAS")
      ->group(kSampling);
  AddSeedFlag(
      app, [this](uint64_t value) { seed = value; },
      "The same seed and request give the same tokens (default: a fresh one)")
      ->group(kSampling);

  constexpr char kStop[] = "Stopping";
  AddRepeatable(app, "--stop", stops, "End where this text is complete; it is not shown")->group(kStop);
  AddRepeatable(app, "--stop-token-id", stop_token_ids, "End after this token, or one of several: 13,198")
      ->group(kStop);
  app.add_flag("--ignore-eos", ignore_eos, "Go on after the model's end-of-text token")->group(kStop);

  gating.Add(app);
  records.Add(app);
  interventions.Add(app);
  constexpr char kOutput[] = "Output";
  app.add_flag("--record-prompt", record_prompt, "Record the prompt's tokens too")->group(kOutput);
  app.add_option("--top-logprobs", top_logprobs, "Alternatives returned with each token, at most 20")->group(kOutput);
  app.add_flag("--raw", raw, "JSON: add each token's exact bytes in base64")->group(kOutput);
}

v1::GenerateRequest GenerateCommand::Build(std::istream& in) const {
  v1::GenerateRequest request;
  request.set_model(model);
  *request.mutable_prompt() = prompt.BuildOne(in);
  if (max_tokens.has_value()) request.set_max_tokens(*max_tokens);
  auto& sampling = *request.mutable_sampling();
  if (temperature.has_value()) sampling.set_temperature(*temperature);
  sampling.set_top_k(top_k);
  if (top_p.has_value()) sampling.set_top_p(*top_p);
  sampling.set_min_p(min_p);
  if (repetition_penalty.has_value()) sampling.set_repetition_penalty(*repetition_penalty);
  for (const std::string& text : logit_bias) {
    const auto [id, bias] = OrUsageError("--logit-bias", ParseLogitBias(text));
    (*sampling.mutable_logit_bias())[id] = bias;
  }
  if (seed.has_value()) sampling.set_seed(*seed);
  auto& stop = *request.mutable_stop();
  for (const std::string& text : stops) stop.add_strings(text);
  for (const std::string& text : stop_token_ids) {
    for (int32_t id : OrUsageError("--stop-token-id", ParseTokenIds(text))) stop.add_token_ids(id);
  }
  stop.set_ignore_eos(ignore_eos);
  *request.mutable_gating() = gating.Build();
  *request.mutable_records() = records.Build();
  request.set_record_prompt(record_prompt);
  interventions.Build(request, in);
  request.set_top_logprobs(top_logprobs);
  return request;
}

absl::StatusOr<int> GenerateCommand::RunJson(Session& session, const v1::GenerateRequest& request) const {
  std::string text;
  Captured captured(interventions);
  Json tokens = Json::array(), prompt_tokens = Json::array();
  const auto summary = session.client.Generate(request,
                                               {.on_prompt =
                                                    [&](const v1::PromptInsight& insight) {
                                                      for (const auto& token : insight.tokens())
                                                        prompt_tokens.push_back(ToJson(token, raw));
                                                      return true;
                                                    },
                                                .on_token =
                                                    [&](const v1::GeneratedToken& token) {
                                                      text += token.text();
                                                      tokens.push_back(ToJson(token, raw));
                                                      return true;
                                                    },
                                                .on_activations = captured.listener()},
                                               session.call);
  if (const absl::Status status = captured.Finish(summary.status()); !status.ok()) return status;
  Json json = {{"model", request.model()},
               {"text", text + summary->text()},
               {"finish_reason", FinishReasonName(summary->finish_reason())}};
  if (!summary->matched_stop().empty()) json["matched_stop"] = summary->matched_stop();
  json["prompt_tokens"] = summary->prompt_tokens();
  json["generated_tokens"] = summary->generated_tokens();
  json["seed"] = summary->seed();
  json["tokens"] = std::move(tokens);
  if (!prompt_tokens.empty()) json["prompt"] = std::move(prompt_tokens);
  if (interventions.captures()) json["captured"] = captured.Describe();
  json["routing"] = ToJson(summary->routing());
  json["timing"] = {{"queue_seconds", Number(summary->queue_seconds())},
                    {"prefill_seconds", Number(summary->prefill_seconds())},
                    {"decode_seconds", Number(summary->decode_seconds())}};
  session.Print(json);
  return kExitOk;
}

std::string SummaryLine(const v1::GenerationSummary& summary, bool sampled) {
  std::vector<std::string> parts = {Count(summary.generated_tokens(), "token")};
  if (summary.generated_tokens() > 1 && summary.decode_seconds() > 0) {
    parts.push_back(Fixed((summary.generated_tokens() - 1) / summary.decode_seconds(), 1) + " tok/s");
  }
  for (std::string& part : RoutingParts(summary.routing())) parts.push_back(std::move(part));
  parts.push_back("ended by " + (summary.finish_reason() == v1::FINISH_REASON_STOP_STRING
                                     ? "\"" + OneLine(summary.matched_stop()) + "\""
                                     : FinishReasonName(summary.finish_reason())));
  parts.push_back("prefill " + Fixed(summary.prefill_seconds() * 1000, 0) + " ms");
  if (sampled) parts.push_back("seed " + std::to_string(summary.seed()));
  return Joined(parts);
}

absl::StatusOr<int> GenerateCommand::Run(Session& session, const v1::GenerateRequest& request) const {
  if (session.json) return RunJson(session, request);
  Terminal& terminal = session.terminal;
  const auto show = [&](const std::string& text) {
    terminal.out << (terminal.out_is_terminal ? EscapeControls(text) : text) << std::flush;
  };
  if (terminal.out_is_terminal && request.prompt().has_text()) {
    terminal.out << terminal.Paint(kDim, EscapeControls(request.prompt().text())) << std::flush;
  }
  std::vector<v1::TokenInsight> insights;
  Captured captured(interventions);
  bool any_text = false;
  const auto summary =
      session.client.Generate(request,
                              {.on_prompt =
                                   [&](const v1::PromptInsight& insight) {
                                     insights.insert(insights.end(), insight.tokens().begin(), insight.tokens().end());
                                     return true;
                                   },
                               .on_token =
                                   [&](const v1::GeneratedToken& token) {
                                     show(token.text());
                                     any_text = true;
                                     if (token.has_insight()) insights.push_back(token.insight());
                                     return true;
                                   },
                               .on_activations = captured.listener()},
                              session.call);
  if (const absl::Status status = captured.Finish(summary.status()); !status.ok()) {
    if (any_text) terminal.out << std::endl;
    return status;
  }
  show(summary->text());
  terminal.out << std::endl;
  if (!insights.empty()) {
    PrintRecords(terminal, insights, FetchLayers(session, request.model(), summary->routing().calibration()));
  }
  const bool sampled = !(request.sampling().has_temperature() && request.sampling().temperature() == 0);
  terminal.err << terminal.PaintError(kDim, SummaryLine(*summary, sampled)) << "\n";
  PrintNotes(terminal, summary->routing());
  return kExitOk;
}

}  // namespace

void AddGenerate(CLI::App& app, std::istream& in, Action& action) {
  auto command = std::make_shared<GenerateCommand>();
  CLI::App* sub = app.add_subcommand("generate", "Continue a prompt");
  command->Declare(*sub);
  sub->footer(kGenerateExamples);
  sub->callback([command, &in, &action] {
    action = [command, request = command->Build(in)](Session& session) { return command->Run(session, request); };
  });
}

}  // namespace gatehouse::cli
