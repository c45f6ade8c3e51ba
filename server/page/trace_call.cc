#include "server/page/trace_call.h"

#include <utility>

#include "client/page/trace_section.h"
#include "server/base/status_macros.h"

namespace gatehouse {
namespace {

using cli::Json;

constexpr int kTokensALine = 64;

std::string Line(const Json& json) { return json.dump() + "\n"; }

Json TokensEvent(Json tokens) { return {{"event", "tokens"}, {"tokens", std::move(tokens)}}; }

Json SummaryJson(const v1::GenerationSummary& summary) {
  return {{"finish_reason", cli::FinishReasonName(summary.finish_reason())},
          {"prompt_tokens", summary.prompt_tokens()},
          {"generated_tokens", summary.generated_tokens()},
          {"seed", summary.seed()},
          {"routing", cli::ToJson(summary.routing())},
          {"timing",
           {{"queue_seconds", cli::Number(summary.queue_seconds())},
            {"prefill_seconds", cli::Number(summary.prefill_seconds())},
            {"decode_seconds", cli::Number(summary.decode_seconds())}}}};
}

Json GeneratedJson(const v1::GeneratedToken& token, client::TraceTokens& tokens) {
  // Of the last one there is no record: it was not fed back.
  Json json = token.has_insight() ? tokens.Next(token.insight()) : tokens.Next(token.id(), token.raw());
  json["logprob"] = cli::Number(token.logprob());
  json["generated"] = true;
  return json;
}

}  // namespace

absl::StatusOr<std::string> LivePageJson(client::Client& client) {
  GH_ASSIGN_OR_RETURN(const v1::ListModelsResponse list, client.ListModels());
  Json models = Json::array();
  for (const v1::ModelSummary& model : list.models()) {
    models.push_back({{"name", model.name()},
                      {"layers", model.layers()},
                      {"context_tokens", model.context_tokens()},
                      {"calibration", model.calibration()}});
  }
  Json sections = Json::array();
  sections.push_back({{"kind", "live"}, {"models", std::move(models)}});
  const Json page = {{"kind", "live"},
                     {"title", "Watch a model decide"},
                     {"summary",
                      "The text is coloured by how nonlinear each token is at a layer, while the server generates it; "
                      "below, all layers, the neurons that fire, and where each gate would send each token."},
                     {"sections", std::move(sections)}};
  return page.dump();
}

absl::Status RunTrace(client::Client& client, TraceRequest request, client::Canceller& canceller, Outbox& outbox) {
  const client::CallOptions options{.timeout = request.timeout, .canceller = &canceller};
  GH_ASSIGN_OR_RETURN(const v1::DescribeModelResponse model, client.DescribeModel(request.generate.model(), options));
  // The one described, though another may be selected meanwhile.
  request.generate.mutable_gating()->set_calibration(model.calibration().name());
  client::TraceTokens tokens;
  client::GenerationEvents events;
  events.on_start = [&](const v1::GenerationStart& start) {
    return outbox.Put(Line({{"event", "start"},
                            {"prompt_tokens", start.prompt_tokens()},
                            {"max_tokens", start.max_tokens()},
                            {"trace", client::TraceSection(model)}}));
  };
  events.on_prompt = [&](const v1::PromptInsight& prompt) {
    for (int first = 0; first < prompt.tokens_size(); first += kTokensALine) {
      Json line = Json::array();
      for (int i = first; i < std::min(first + kTokensALine, prompt.tokens_size()); ++i) {
        line.push_back(tokens.Next(prompt.tokens(i)));
      }
      if (!outbox.Put(Line(TokensEvent(std::move(line))))) return false;
    }
    return true;
  };
  events.on_token = [&](const v1::GeneratedToken& token) {
    Json line = Json::array();
    line.push_back(GeneratedJson(token, tokens));
    return outbox.Put(Line(TokensEvent(std::move(line))));
  };
  GH_ASSIGN_OR_RETURN(const v1::GenerationSummary summary, client.Generate(request.generate, events, options));
  outbox.Put(Line({{"event", "end"}, {"summary", SummaryJson(summary)}}));
  return absl::OkStatus();
}

}  // namespace gatehouse
