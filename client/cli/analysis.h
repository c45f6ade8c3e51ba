#ifndef GATEHOUSE_CLIENT_CLI_ANALYSIS_H_
#define GATEHOUSE_CLIENT_CLI_ANALYSIS_H_

#include <CLI/App.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/flags.h"
#include "client/cli/json.h"
#include "client/cli/session.h"

namespace gatehouse::cli {

// What `nonlinearity` and `consensus` share: their flags, and how their answers are
// collected and printed as JSON.

using InsightList = std::vector<v1::TokenInsight>;

struct AnalysisFlags {
  std::string model;
  InputFlags input{{}};
  GatingFlags gating;
  std::optional<uint32_t> layer;  // what the terminal form shows
  bool raw = false;

  void Declare(CLI::App& app, const char* layer_help);

  template <typename Request>
  Request Build(std::istream& in) const {
    Request request;
    request.set_model(model);
    for (v1::TextInput& text : input.Build(in)) *request.add_inputs() = std::move(text);
    *request.mutable_gating() = gating.Build();
    return request;
  }
};

// A whole answer; Start is NonlinearityStart or ConsensusStart.
template <typename Start>
struct Analysis {
  Start start;
  std::vector<InsightList> texts;  // one for each input
  v1::AnalysisSummary summary;
};

// Makes the call and collects what it streams.
template <typename Start, typename Events, typename Request>
absl::StatusOr<Analysis<Start>> RunAnalysis(Session& session, const Request& request,
                                            absl::StatusOr<v1::AnalysisSummary> (client::Client::*method)(
                                                const Request&, const Events&, const client::CallOptions&)) {
  Analysis<Start> analysis;
  analysis.texts.resize(static_cast<size_t>(request.inputs_size()));
  Events events;
  events.on_start = [&](const Start& start) {
    analysis.start = start;
    return true;
  };
  events.on_tokens = [&](const v1::InsightTokens& more) {
    if (more.input() >= analysis.texts.size()) return false;
    InsightList& text = analysis.texts[more.input()];
    text.insert(text.end(), more.tokens().begin(), more.tokens().end());
    return true;
  };
  auto summary = (session.client.*method)(request, events, session.call);
  if (!summary.ok()) return summary.status();
  analysis.summary = *std::move(summary);
  return analysis;
}

// InvalidArgument where --layer names no layer of the model.
absl::Status CheckLayer(const std::optional<uint32_t>& layer, int layers);

// "Consensus at layer 3, text 1 of 2".
std::string AnalysisTitle(const char* what, uint32_t layer, size_t text, size_t texts);

// The dim line at the end, and the server's remarks.
void PrintAnalysisSummary(const Terminal& terminal, const std::string& calibration, const v1::AnalysisSummary& summary);

template <typename Start>
void PrintAnalysisJson(const Session& session, const AnalysisFlags& flags, const Analysis<Start>& analysis) {
  Json json = {{"model", flags.model}, {"calibration", analysis.start.calibration()}};
  json["layers"] = Json::array();
  for (const auto& layer : analysis.start.layers()) json["layers"].push_back(ToJson(layer));
  json["texts"] = Json::array();
  for (const InsightList& text : analysis.texts) {
    Json tokens = Json::array();
    for (const v1::TokenInsight& token : text) tokens.push_back(ToJson(token, flags.raw));
    json["texts"].push_back(Json{{"tokens", std::move(tokens)}});
  }
  json["token_count"] = analysis.summary.tokens();
  json["routing"] = ToJson(analysis.summary.routing());
  json["timing"] = {{"seconds", Number(analysis.summary.seconds())}};
  session.Print(json);
}

// Adds a subcommand that runs `show` on what the call answers.
template <typename Request, typename Start, typename Events, typename Show>
void AddAnalysis(CLI::App* sub, std::istream& in, Action& action, const char* layer_help,
                 absl::StatusOr<v1::AnalysisSummary> (client::Client::*method)(const Request&, const Events&,
                                                                               const client::CallOptions&),
                 Show show) {
  auto flags = std::make_shared<AnalysisFlags>();
  flags->Declare(*sub, layer_help);
  sub->callback([flags, method, show, &in, &action] {
    action = [flags, method, show, request = flags->Build<Request>(in)](Session& session) -> absl::StatusOr<int> {
      const auto analysis = RunAnalysis<Start, Events>(session, request, method);
      if (!analysis.ok()) return analysis.status();
      if (session.json) {
        PrintAnalysisJson(session, *flags, *analysis);
        return kExitOk;
      }
      if (absl::Status status = CheckLayer(flags->layer, analysis->start.layers_size()); !status.ok()) return status;
      if (analysis->start.layers_size() > 0) show(session.terminal, *analysis, flags->layer);
      PrintAnalysisSummary(session.terminal, analysis->start.calibration(), analysis->summary);
      return kExitOk;
    };
  });
}

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_ANALYSIS_H_
