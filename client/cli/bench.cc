#include <CLI/App.hpp>
#include <algorithm>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>

#include "absl/time/clock.h"
#include "client/cli/bench_view.h"
#include "client/cli/flags.h"
#include "client/cli/operation_run.h"
#include "client/cli/parse.h"
#include "client/cli/progress.h"
#include "client/cli/render.h"
#include "client/cli/session.h"
#include "client/load/load_report.h"
#include "client/page/report_page.h"

namespace gatehouse::cli {
namespace {

constexpr char kBenchExamples[] =
    R"(Sends generations and measures what the server makes of them. A closed loop (--concurrency) keeps so many running; an
open loop (--rate, --trace) sends each at its time, however many then run, and counts latency from that time.
--timeout is each request's deadline; one that passes is an error. Ctrl-C ends the load and reports what there is.

Examples:
  gatehouse bench -m novella-gpt2-7m --concurrency 16 --limit 200
  gatehouse bench -m novella-gpt2-7m --rate 5 --duration 60 --slo-ttft 0.3 --slo-tpot 0.05 --html load.html
  gatehouse bench -m novella-gpt2-7m --trace AzureLLMInferenceTrace_conv.csv --speed 4 --limit 500 --timeout 30
  gatehouse bench -m novella-gpt2-7m --gating gated --threshold 0.5 --prompts book.txt --json | jq .bench.goodput_rps)";

constexpr size_t kDefaultLimit = 100;
constexpr size_t kDefaultConcurrency = 8;
constexpr size_t kMaxConcurrency = 4096;
// Of a file of prompts: some thousand tokens, which the server reads once.
constexpr size_t kPromptBytes = 32 << 10;
// The server takes 512 streams of a connection.
constexpr size_t kStreamsOfConnection = 256;
constexpr size_t kOpenLoopConnections = 4;

using client::LengthRange;

struct BenchCommand {
  std::string model, trace_file, prompts_file, html;
  std::optional<size_t> concurrency, limit, connections;
  std::optional<double> rate;
  double speed = 1, duration = 0;
  std::string prompt_tokens = "128", generated_tokens = "32";
  uint64_t seed = 0;
  uint32_t warmup = 2;
  client::Objectives objectives;
  GatingFlags gating;

  void Declare(CLI::App& app);
  // Once the flags are read: what they say, beyond the texts of flags.
  void Build(std::istream& in);
  absl::StatusOr<int> Run(Session& session) const;

 private:
  void DeclareLoad(CLI::App& app);
  bool open_loop() const { return rate.has_value() || !trace_file.empty(); }
  size_t Concurrency() const { return open_loop() ? 0 : concurrency.value_or(kDefaultConcurrency); }
  size_t Connections() const;
  std::string Workload() const;
  client::CallPlan Plan(client::LengthLimit& lengths) const;
  absl::StatusOr<client::PromptSource> Prompts(Session& session, const v1::DescribeModelResponse& model) const;
  v1::GenerateRequest Request(const client::PromptSource& prompts, const client::PlannedCall& call,
                              uint64_t number) const;
  absl::Status WarmUp(uint32_t context_tokens, client::LoadOptions options) const;
  void ShowProgress(ProgressBar& progress, size_t sent, size_t ended, double seconds) const;
  // Reports what was measured.
  absl::StatusOr<int> Finish(Session& session, const v1::DescribeModelResponse& described,
                             const client::LoadResult& result, const client::LengthLimit& lengths) const;
  client::LoadProtocol Protocol(const v1::DescribeModelResponse& model, const client::LengthLimit& lengths) const;

  std::vector<client::TraceEntry> trace_;
  std::string prompts_text_;
  LengthRange prompt_lengths_, generated_lengths_;
  v1::GatingPolicy policy_;
};

CLI::Validator Positive() {
  return CLI::Validator(
      [](std::string& text) {
        double value = 0;
        const bool good = CLI::detail::lexical_cast(text, value) && value > 0 && value < 1e9;
        return good ? std::string() : "'" + text + "' must be above 0 and below 1e9";
      },
      "");
}

CLI::Validator InRange(size_t low, size_t high) {
  return CLI::Validator(
      [low, high](std::string& text) {
        const auto number = ParseWholeNumber(text, high);
        const bool good = number.ok() && *number >= low;
        const std::string range = "[" + std::to_string(low) + ", " + std::to_string(high) + "]";
        return good ? std::string() : "'" + text + "' is not a whole number in " + range;
      },
      "");
}

void BenchCommand::DeclareLoad(CLI::App& app) {
  constexpr char kGroup[] = "Load";
  auto* closed =
      app.add_option("-c,--concurrency", concurrency, "Closed loop: keep so many requests running (default: 8)")
          ->check(InRange(1, kMaxConcurrency))
          ->type_name("N")
          ->group(kGroup);
  auto* open = app.add_option("-r,--rate", rate, "Open loop: so many requests a second, arriving at random (Poisson)")
                   ->check(Positive())
                   ->type_name("PER_SECOND")
                   ->excludes(closed)
                   ->group(kGroup);
  auto* trace =
      app.add_option("--trace", trace_file,
                     "Open loop: replay a CSV of TIMESTAMP,ContextTokens,GeneratedTokens (- is standard input)")
          ->check(NotEmpty())
          ->type_name("FILE")
          ->excludes(closed)
          ->excludes(open)
          ->group(kGroup);
  app.add_option("--speed", speed, "Replay the trace so many times as fast")
      ->check(Positive())
      ->type_name("TIMES")
      ->capture_default_str()
      ->needs(trace)
      ->group(kGroup);
  app.add_option("--limit", limit, "Send at most so many requests (default: 100, or all of a trace or of --duration)")
      ->check(InRange(1, 10'000'000))
      ->type_name("N")
      ->group(kGroup);
  app.add_option("--duration", duration, "Send nothing more after so many seconds")
      ->check(Positive())
      ->type_name("SECONDS")
      ->group(kGroup);
  app.add_option("--warmup", warmup, "Requests sent before, which do not count")
      ->type_name("N")
      ->transform(WholeNumber(100'000))
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--connections", connections,
                 "Spread the requests over so many (default: one for each 256 of --concurrency, 4 for an open loop)")
      ->check(InRange(1, 256))
      ->type_name("N")
      ->group(kGroup);
  AddSeedFlag(
      app, [this](uint64_t value) { seed = value; }, "Of arrivals, lengths, prompts and sampling (default: 0)")
      ->group(kGroup);
}

void BenchCommand::Declare(CLI::App& app) {
  AddModelFlag(app, model);
  DeclareLoad(app);
  constexpr char kRequests[] = "Requests";
  app.add_option("--prompt-tokens", prompt_tokens,
                 "Length of each prompt, or a range such as 64-256; a trace says its own")
      ->type_name("N")
      ->capture_default_str()
      ->group(kRequests);
  app.add_option("-n,--max-tokens", generated_tokens, "Tokens to generate, or a range; a trace says its own")
      ->type_name("N")
      ->capture_default_str()
      ->group(kRequests);
  app.add_option("--prompts", prompts_file,
                 "Cut prompts from the first 32 KiB of this text (default: tokens drawn at random)")
      ->check(NotEmpty())
      ->type_name("FILE")
      ->group(kRequests);
  gating.Add(app);
  constexpr char kGoals[] = "Objectives (seconds), which a request must keep to count as good";
  const auto objective = [&](const char* name, std::optional<double>& bound, const char* help) {
    app.add_option(name, bound, help)->check(Positive())->type_name("SECONDS")->group(kGoals);
  };
  objective("--slo-ttft", objectives.first_token, "At most this until the first token");
  objective("--slo-tpot,--slo-itl", objectives.time_per_token,
            "At most this between tokens, in the mean over the request (time per output token)");
  objective("--slo-e2e", objectives.end_to_end, "At most this until the end");
  app.add_option("--html", html, "Write the report as a page with plots")
      ->check(NotEmpty())
      ->type_name("FILE")
      ->group("Output");
}

void BenchCommand::Build(std::istream& in) {
  const auto lengths = [](const char* flag, const std::string& text) {
    const auto [low, high] = OrUsageError(flag, ParseLengths(text));
    return LengthRange{low, high};
  };
  prompt_lengths_ = lengths("--prompt-tokens", prompt_tokens);
  generated_lengths_ = lengths("--max-tokens", generated_tokens);
  policy_ = gating.Build();
  if (!prompts_file.empty()) {
    prompts_text_ = ReadFile("--prompts", prompts_file, in);
    size_t end = std::min(prompts_text_.size(), kPromptBytes);
    // Not within a character.
    while (end < prompts_text_.size() && (static_cast<unsigned char>(prompts_text_[end]) & 0xC0) == 0x80) --end;
    prompts_text_.resize(end);
  }
  if (!trace_file.empty()) {
    std::istringstream csv(ReadFile("--trace", trace_file, in));
    trace_ = OrUsageError("--trace", client::ReadTrace(csv, limit.value_or(std::numeric_limits<size_t>::max())));
  }
}

size_t BenchCommand::Connections() const {
  if (connections.has_value()) return *connections;
  return open_loop() ? kOpenLoopConnections : (Concurrency() + kStreamsOfConnection - 1) / kStreamsOfConnection;
}

std::string BenchCommand::Workload() const {
  if (!trace_file.empty()) return "a trace at " + Fixed(speed, 2) + " times its speed";
  if (rate.has_value()) return "an open loop of " + Fixed(*rate, 2) + " a second";
  return "a closed loop of " + std::to_string(Concurrency());
}

client::CallPlan BenchCommand::Plan(client::LengthLimit& lengths) const {
  if (!trace_file.empty()) return client::TracePlan(trace_, speed, lengths);
  const size_t most = limit.value_or(duration > 0 ? std::numeric_limits<size_t>::max() : kDefaultLimit);
  return client::RandomPlan(rate.value_or(0), prompt_lengths_, generated_lengths_, most, seed, lengths);
}

absl::StatusOr<client::PromptSource> BenchCommand::Prompts(Session& session,
                                                           const v1::DescribeModelResponse& model) const {
  if (prompts_file.empty()) {
    return client::PromptSource(model.vocab_size(), {model.eos_token_ids().begin(), model.eos_token_ids().end()}, seed);
  }
  v1::ScoreRequest request;
  request.set_model(model.name());
  request.mutable_input()->set_text(prompts_text_);
  std::vector<int32_t> ids;
  const auto summary = session.client.Score(request,
                                            [&](const v1::ScoredTokens& more) {
                                              for (const v1::ScoredToken& token : more.tokens())
                                                ids.push_back(token.id());
                                              return true;
                                            },
                                            {.canceller = session.call.canceller, .replica = session.call.replica});
  if (!summary.ok()) return summary.status();
  if (ids.empty()) return absl::InvalidArgumentError("--prompts: " + prompts_file + " has no tokens");
  return client::PromptSource(std::move(ids), seed);
}

v1::GenerateRequest BenchCommand::Request(const client::PromptSource& prompts, const client::PlannedCall& call,
                                          uint64_t number) const {
  v1::GenerateRequest request;
  request.set_model(model);
  const std::vector<int32_t> ids = prompts.Make(number, call.prompt_tokens);
  request.mutable_prompt()->mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
  request.set_max_tokens(call.generated_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  request.mutable_sampling()->set_seed(seed + number);
  *request.mutable_gating() = policy_;
  return request;
}

client::LoadProtocol BenchCommand::Protocol(const v1::DescribeModelResponse& described,
                                            const client::LengthLimit& lengths) const {
  client::LoadProtocol protocol;
  protocol.created = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone());
  protocol.workload = Workload();
  protocol.open_loop = open_loop();
  auto& settings = protocol.settings;
  settings.emplace_back("workload", Workload());
  if (trace_file.empty()) {
    settings.emplace_back("prompt_tokens", prompt_tokens);
    settings.emplace_back("generated_tokens", generated_tokens);
  }
  settings.emplace_back("prompts", prompts_file.empty() ? "random tokens" : "pieces of a text");
  settings.emplace_back("gating", policy_.ShortDebugString().empty() ? "full" : policy_.ShortDebugString());
  settings.emplace_back("calibration", described.calibration().name());
  settings.emplace_back("kernels", described.kernels());
  settings.emplace_back("connections", std::to_string(Connections()));
  settings.emplace_back("warmup", std::to_string(warmup));
  settings.emplace_back("seed", std::to_string(seed));
  const auto objective = [&](const char* name, const std::optional<double>& bound) {
    if (bound.has_value()) settings.emplace_back(name, Fixed(*bound, 4) + " s");
  };
  objective("slo_ttft", objectives.first_token);
  objective("slo_tpot", objectives.time_per_token);
  objective("slo_e2e", objectives.end_to_end);
  if (prompts_file.empty()) {
    protocol.notes.emplace_back(
        "Prompts are tokens drawn at random: gates may route them otherwise than real text; --prompts FILE gives "
        "that.");
  }
  if (lengths.cut() > 0) {
    protocol.notes.push_back(Count(lengths.cut(), "request") + " had to be cut to fit the model's context of " +
                             std::to_string(described.context_tokens()) + " tokens.");
  }
  return protocol;
}

absl::Status BenchCommand::WarmUp(uint32_t context_tokens, client::LoadOptions options) const {
  if (warmup == 0) return absl::OkStatus();
  client::LengthLimit lengths(context_tokens);
  options.concurrency = std::min<size_t>(warmup, kDefaultConcurrency);
  const auto plan = client::RandomPlan(0, prompt_lengths_, generated_lengths_, warmup, seed, lengths);
  const client::LoadResult result = client::RunLoad(plan, options);
  for (const client::CallRecord& call : result.calls) {
    if (!call.ok()) return call.status;
  }
  return absl::OkStatus();
}

void BenchCommand::ShowProgress(ProgressBar& progress, size_t sent, size_t ended, double seconds) const {
  // Whichever end is nearer, of those there are.
  const bool counted = limit.has_value() || !trace_file.empty() || duration == 0;
  const double most =
      static_cast<double>(trace_file.empty() ? limit.value_or(kDefaultLimit) : std::max<size_t>(trace_.size(), 1));
  const double by_count = counted ? static_cast<double>(ended) / most : 0;
  const double by_time = duration > 0 ? seconds / duration : 0;
  progress.Update(std::max(by_time, by_count), std::to_string(ended) + " of " + std::to_string(sent) + " sent are done",
                  absl::Now());
}

absl::StatusOr<int> BenchCommand::Finish(Session& session, const v1::DescribeModelResponse& described,
                                         const client::LoadResult& result, const client::LengthLimit& lengths) const {
  if (result.calls.empty()) return absl::CancelledError("interrupted before anything was sent");
  const client::LoadFigures figures(result, objectives);
  const client::LoadProtocol protocol = Protocol(described, lengths);
  const v1::Report report = client::MakeLoadReport(described, result, figures, protocol);
  Json json = ToJson(report);
  json["bench"] = BenchJson(result, figures);
  if (!html.empty()) {
    if (absl::Status status = WriteToFile(html, client::RenderReportPage(json.dump())); !status.ok()) return status;
  }
  if (session.json) {
    session.Print(json);
  } else {
    PrintBench(session.terminal, report, result, figures, protocol.open_loop);
  }
  if (result.interrupted) return kExitInterrupted;
  return figures.succeeded == 0 ? kExitFailed : kExitOk;
}

absl::StatusOr<int> BenchCommand::Run(Session& session) const {
  if (!html.empty()) {
    if (absl::Status status = CheckWritable(html); !status.ok()) return status;
  }
  const auto described = session.client.DescribeModel(model, session.call);
  if (!described.ok()) return described.status();
  const auto prompts = Prompts(session, *described);
  if (!prompts.ok()) return prompts.status();
  std::vector<std::unique_ptr<client::Client>> clients;
  client::LoadOptions options;
  for (size_t i = 0; i < Connections(); ++i) {
    // What a server refuses is to be seen, not tried again.
    auto client = client::Client::Create({.server = session.server, .attempts = 1, .own_connection = true});
    if (!client.ok()) return client.status();
    options.clients.push_back(client->get());
    clients.push_back(*std::move(client));
  }
  options.canceller = session.call.canceller;
  options.call_timeout = session.call.timeout;
  options.replica = session.call.replica;
  options.make_request = [&](const client::PlannedCall& call, uint64_t number) {
    return Request(*prompts, call, number);
  };
  if (absl::Status status = WarmUp(described->context_tokens(), options); !status.ok()) return status;
  options.concurrency = Concurrency();
  options.duration = duration;
  ProgressBar progress(session.terminal);
  if (session.terminal.err_is_terminal) {
    options.on_progress = [&](size_t sent, size_t ended, double seconds) {
      ShowProgress(progress, sent, ended, seconds);
    };
  }
  client::LengthLimit lengths(described->context_tokens());
  const client::LoadResult result = client::RunLoad(Plan(lengths), options);
  progress.Clear();
  return Finish(session, *described, result, lengths);
}

}  // namespace

void AddBench(CLI::App& app, std::istream& in, Action& action) {
  auto command = std::make_shared<BenchCommand>();
  CLI::App* sub = app.add_subcommand("bench", "Load the server and measure it");
  command->Declare(*sub);
  sub->footer(kBenchExamples);
  sub->callback([command, &in, &action] {
    command->Build(in);
    action = [command](Session& session) { return command->Run(session); };
  });
}

}  // namespace gatehouse::cli
