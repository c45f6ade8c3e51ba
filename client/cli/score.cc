#include <CLI/App.hpp>
#include <cmath>
#include <memory>

#include "client/cli/flags.h"
#include "client/cli/intervention_flags.h"
#include "client/cli/render.h"
#include "client/cli/session.h"
#include "client/cli/table.h"

namespace gatehouse::cli {
namespace {

constexpr char kScoreExamples[] =
    R"(A text longer than the context is read in windows: --window tokens each, --stride apart; with
--blocks they are independent blocks, the first token of each not scored.

Examples:
  gatehouse score -m novella-gpt2-7m --file chapter.txt
  gatehouse score -m novella-gpt2-7m --file chapter.txt --gating gated --threshold 0.6
  gatehouse score -m novella-gpt2-7m --text "The ship sailed" --tokens --top-logprobs 3
  gatehouse score -m novella-gpt2-7m --file chapter.txt --gating quorum --quorum 5 --quorum-path skip
  gatehouse score -m novella-gpt2-7m --text "The ship sailed" --capture neurons:L6 --capture-out neurons.npz
  gatehouse score -m novella-gpt2-7m --token-ids 5,6,7 --json)";

struct ScoreCommand {
  std::string model;
  InputFlags input{{}};
  GatingFlags gating;
  RecordFlags records;
  InterventionFlags interventions;
  uint32_t window = 0, stride = 0, top_logprobs = 0;
  bool blocks = false, show_tokens = false, summary_only = false, raw = false;

  void Declare(CLI::App& app);
  v1::ScoreRequest Build(std::istream& in) const;
  absl::StatusOr<int> Run(Session& session, const v1::ScoreRequest& request) const;
  void PrintJson(Session& session, const std::vector<v1::ScoredToken>& tokens, const v1::ScoreSummary& summary,
                 const Captured& captured) const;
  void PrintText(Session& session, const std::vector<v1::ScoredToken>& tokens, const v1::ScoreSummary& summary) const;
};

void ScoreCommand::Declare(CLI::App& app) {
  AddModelFlag(app, model);
  input.Add(app);
  constexpr char kWindow[] = "Window";
  app.add_option("--window", window, "Tokens of one window, at least 2 (default: the context)")->group(kWindow);
  app.add_option("--stride", stride, "From one window to the next (default: the window)")->group(kWindow);
  app.add_flag("--blocks", blocks, "Independent blocks, as training sees them")->group(kWindow);
  gating.Add(app);
  records.Add(app);
  interventions.Add(app);
  constexpr char kOutput[] = "Output";
  app.add_option("--top-logprobs", top_logprobs, "Alternatives returned with each token, at most 20")->group(kOutput);
  app.add_flag("--tokens", show_tokens, "Show every token, not only the sum")->group(kOutput);
  app.add_flag("--summary-only", summary_only, "Do not have the tokens sent at all")->group(kOutput);
  app.add_flag("--raw", raw, "JSON: add each token's exact bytes in base64")->group(kOutput);
}

v1::ScoreRequest ScoreCommand::Build(std::istream& in) const {
  v1::ScoreRequest request;
  request.set_model(model);
  *request.mutable_input() = input.BuildOne(in);
  *request.mutable_gating() = gating.Build();
  request.mutable_window()->set_size(window);
  request.mutable_window()->set_stride(stride);
  request.mutable_window()->set_blocks(blocks);
  request.set_top_logprobs(top_logprobs);
  *request.mutable_records() = records.Build();
  request.set_summary_only(summary_only);
  interventions.Build(request, in);
  return request;
}

void ScoreCommand::PrintJson(Session& session, const std::vector<v1::ScoredToken>& tokens,
                             const v1::ScoreSummary& summary, const Captured& captured) const {
  Json json = {{"model", model},
               {"perplexity", summary.has_perplexity() ? Number(summary.perplexity()) : Json()},
               {"total_logprob", Number(summary.total_logprob())},
               {"token_count", summary.tokens()},
               {"scored_tokens", summary.scored_tokens()},
               {"windows", summary.windows()}};
  if (!summary_only) {
    Json ids = Json::array(), logprobs = Json::array(), objects = Json::array();
    for (size_t i = 0; i < tokens.size(); ++i) {
      ids.push_back(tokens[i].id());
      objects.push_back(ToJson(tokens[i], raw));
      // The first token has nothing before it.
      if (i > 0) logprobs.push_back(objects.back()["logprob"]);
    }
    json["token_ids"] = std::move(ids);
    json["logprobs"] = std::move(logprobs);
    json["tokens"] = std::move(objects);
  }
  if (interventions.captures()) json["captured"] = captured.Describe();
  json["routing"] = ToJson(summary.routing());
  json["timing"] = {{"seconds", Number(summary.seconds())}};
  session.Print(json);
}

void PrintTokens(const Terminal& terminal, const std::vector<v1::ScoredToken>& tokens) {
  Table table({{"position", true}, {"id", true}, {"token"}, {"logprob", true}, {"likeliest"}});
  for (const v1::ScoredToken& token : tokens) {
    std::string likeliest;
    for (const auto& alternative : token.top()) {
      likeliest += (likeliest.empty() ? "" : "  ") + ("\"" + OneLine(alternative.raw()) + "\" ") +
                   Percent(std::exp(static_cast<double>(alternative.logprob())), 1);
    }
    table.Add({{std::to_string(token.position()), kDim},
               {std::to_string(token.id()), kDim},
               {"\"" + OneLine(token.raw()) + "\"", kPlain},
               {token.has_logprob() ? Fixed(token.logprob(), 4) : "–", kPlain},
               {likeliest, kDim}});
  }
  table.Print(terminal);
  terminal.out << "\n";
}

void ScoreCommand::PrintText(Session& session, const std::vector<v1::ScoredToken>& tokens,
                             const v1::ScoreSummary& summary) const {
  const Terminal& terminal = session.terminal;
  if (show_tokens) PrintTokens(terminal, tokens);
  const uint64_t scored = summary.scored_tokens();
  terminal.out << terminal.Paint(
      kBold, "perplexity " + (summary.has_perplexity() ? Fixed(summary.perplexity(), 4) : std::string("–")));
  if (scored > 0) {
    terminal.out << " · " << Fixed(-summary.total_logprob() / static_cast<double>(scored), 4) << " nats a token";
  }
  terminal.out << " · " << Joined(RoutingParts(summary.routing())) << "\n";
  std::vector<v1::TokenInsight> insights;
  for (const auto& token : tokens) {
    if (token.has_insight()) insights.push_back(token.insight());
  }
  if (!insights.empty()) {
    PrintRecords(terminal, insights, FetchLayers(session, model, summary.routing().calibration()));
  }
  const std::string line = Joined({std::to_string(scored) + " of " + Count(summary.tokens(), "token") + " scored",
                                   Count(summary.windows(), "window"), Fixed(summary.seconds(), 2) + " s"});
  terminal.err << terminal.PaintError(kDim, line) << "\n";
  PrintNotes(terminal, summary.routing());
}

absl::StatusOr<int> ScoreCommand::Run(Session& session, const v1::ScoreRequest& request) const {
  std::vector<v1::ScoredToken> tokens;
  Captured captured(interventions);
  const auto summary = session.client.Score(
      request,
      [&](const v1::ScoredTokens& more) {
        tokens.insert(tokens.end(), more.tokens().begin(), more.tokens().end());
        return true;
      },
      session.call, captured.listener());
  if (const absl::Status status = captured.Finish(summary.status()); !status.ok()) return status;
  session.json ? PrintJson(session, tokens, *summary, captured) : PrintText(session, tokens, *summary);
  return kExitOk;
}

}  // namespace

void AddScore(CLI::App& app, std::istream& in, Action& action) {
  auto command = std::make_shared<ScoreCommand>();
  CLI::App* sub = app.add_subcommand("score", "Measure how well a model predicts a text");
  command->Declare(*sub);
  sub->footer(kScoreExamples);
  sub->callback([command, &in, &action] {
    action = [command, request = command->Build(in)](Session& session) { return command->Run(session, request); };
  });
}

}  // namespace gatehouse::cli
