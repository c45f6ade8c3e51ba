// The commands that run experiments and show their reports.

#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <limits>

#include "tests/client/fake_operation.h"
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

void AddColumn(v1::ReportTable& table, const std::string& name, const std::vector<double>& values) {
  v1::ReportColumn& column = *table.add_columns();
  column.set_name(name);
  column.mutable_numbers()->mutable_values()->Add(values.begin(), values.end());
}

v1::Report Example() {
  v1::Report report;
  report.set_kind("linearization_cost");
  report.set_title("Linearization cost of m");
  report.set_summary("Layer 1 is\x1b[2J cheapest.");
  report.set_model("m");
  report.set_dtype("float32");
  v1::ReportCorpus& corpus = *report.add_corpora();
  corpus.set_label("novel.txt");
  corpus.set_tokens(1234);
  v1::ReportSetting& setting = *report.add_settings();
  setting.set_name("seed");
  setting.set_value("7");
  report.add_notes("Sinks run in full.");
  v1::ReportTable& table = *report.add_tables();
  table.set_name("layers");
  table.set_title("Cost per layer");
  AddColumn(table, "layer", {0, 1, 2});
  AddColumn(table, "tokens", {500, 500, 500});
  AddColumn(table, "cost", {0.0123456, std::numeric_limits<double>::quiet_NaN(), 22780.75});
  v1::ReportColumn& word = *table.add_columns();
  word.set_name("word");
  for (const std::string& value : {std::string("a"), std::string("b\n"), std::string(60, 'x')}) {
    word.mutable_strings()->add_values(value);
  }
  v1::ReportPlot& plot = *report.add_plots();
  plot.set_kind(v1::ReportPlot::KIND_BAR);
  plot.set_table("layers");
  plot.set_x("layer");
  plot.set_y("cost");
  plot.set_log_y(true);
  return report;
}

// A server with one experiment, whose arrays are "numbers".
struct FakeExperiment : FakeOperation {
  std::vector<v1::FetchResultRequest> fetched;

  FakeHandlers All() {
    FakeHandlers handlers = Handlers();
    handlers.get_report = [](const auto&, const auto& stream) {
      v1::GetReportResponse response;
      *response.mutable_report() = Example();
      stream.write(response);
      return FakeStatus{};
    };
    handlers.fetch_result = [this](const auto& request, const auto& stream) {
      fetched.push_back(request);
      v1::FetchResultResponse response;
      response.set_data(request.file().empty() ? "the result" : "numbers of " + request.file());
      stream.write(response);
      return FakeStatus{};
    };
    handlers.get_operation = [this](const auto&, v1::GetOperationResponse& response) {
      *response.mutable_operation() = State(end, 1);
      response.mutable_operation()->set_kind("linearization_cost");
      response.mutable_operation()->set_result("report.json");
      for (const char* file : {"arrays.npz", "model/config.json"}) response.mutable_operation()->add_files(file);
      return FakeStatus{};
    };
    return handlers;
  }
};

std::string Content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Experiment, UploadsEveryTextAndShowsTheReport) {
  FakeExperiment experiment;
  FakeServer server(experiment.All());
  const auto corpus = TemporaryFile("experiment.txt");
  std::ofstream(corpus) << "Call me Ishmael.";
  const Finished run =
      Gatehouse({"experiment", "cost", "-m", "m", "--corpus", corpus.string(), "--corpus", "-", "--layers", "0-2,5",
                 "--fit-tokens", "100", "--ridge", "0.5", "--sink-positions", "0", "--server", server.address()},
                {.in = "text"});
  std::filesystem::remove(corpus);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("Linearization cost of m\nLayer 1 is\\x1b[2J cheapest.\n"));
  EXPECT_THAT(run.out, HasSubstr(std::string("\nCost per layer\n"
                                             "  in every row: tokens 500\n"
                                             "  layer     cost  word\n"
                                             "      0  0.01235  a\n"
                                             "      1        –  b⏎\n") +
                                 "      2    22781  " + std::string(39, 'x') + "…\n"));
  EXPECT_THAT(run.out, HasSubstr("• Sinks run in full.\n"));
  EXPECT_THAT(run.out, HasSubstr("m · float32 · novel.txt (1234 tokens) · seed 7\n"));
  EXPECT_THAT(run.err, HasSubstr("operations/r1/7\n"));
  const auto& spec = experiment.started.experiment();
  EXPECT_THAT(spec.corpora(), ElementsAre("corpora/abc", "corpora/abc"));
  EXPECT_THAT(spec.layers(), ElementsAre(0, 1, 2, 5));
  EXPECT_TRUE(spec.has_linearization_cost());
  EXPECT_EQ(spec.fit_tokens(), 100u);
  EXPECT_EQ(spec.ridge(), 0.5);
  EXPECT_TRUE(spec.has_sink_positions());
}

TEST(Experiment, StaysWithTheReplicaThatHasTheTexts) {
  FakeOperation operation;
  FakeHandlers handlers = operation.Handlers();
  handlers.upload_corpus = [](const auto& more, v1::UploadCorpusResponse& response) {
    for (v1::UploadCorpusRequest chunk; more(chunk);) continue;
    response.set_corpus("corpora/abc");
    response.set_replica("10.0.0.7");
    return FakeStatus{};
  };
  std::vector<std::string> asked;
  handlers.asked = [&](const std::string& call, const std::string& replica) { asked.push_back(call + " " + replica); };
  FakeServer server(handlers);
  const auto corpus = TemporaryFile("replica.txt");
  std::ofstream(corpus) << "Call me Ishmael.";
  const auto start = [&](std::vector<std::string> verb) {
    asked.clear();
    verb.insert(verb.begin(), "experiment");
    verb.insert(verb.end(),
                {"-m", "m", "--corpus", corpus.string(), "--corpus", "-", "--detach", "--server", server.address()});
    const Finished run = Gatehouse(verb, {.in = "text"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
  };
  start({"cost"});
  EXPECT_THAT(asked, ElementsAre("UploadCorpus 10.0.0.7", "StartOperation 10.0.0.7"));  // the first one: anywhere
  start({"train", "--resume", "operations/10.0.0.9/1"});
  EXPECT_THAT(asked, ElementsAre("UploadCorpus 10.0.0.9", "UploadCorpus 10.0.0.7", "StartOperation 10.0.0.7"));
  std::filesystem::remove(corpus);
  asked.clear();
  EXPECT_EQ(Gatehouse({"--server", server.address(), "--replica", "b", "operations"}).exit_code, 0);
  EXPECT_THAT(asked, ElementsAre("ListOperations b"));
}

TEST(Experiment, WritesThePageAndTheArraysAndPrintsOneObject) {
  FakeExperiment experiment;
  FakeServer server(experiment.All());
  const auto html = TemporaryFile("report.html"), npz = TemporaryFile("arrays.npz");
  const Finished run = Gatehouse({"experiment", "routability", "-m", "m", "--corpus", "-", "--json", "--html",
                                  html.string(), "--npz", npz.string(), "--server", server.address()},
                                 {.in = "text"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = run.json();
  EXPECT_EQ(json["corpora"][0]["name"], "corpora/abc");
  EXPECT_EQ(json["operation"]["state"], "succeeded");
  const auto& report = json["report"];
  EXPECT_EQ(report["title"], "Linearization cost of m");
  EXPECT_EQ(report["tables"][0]["columns"][2]["values"], nlohmann::json::parse("[0.0123456, null, 22780.75]"));
  EXPECT_EQ(report["tables"][0]["columns"][3]["values"][0], "a");
  EXPECT_EQ(report["plots"][0]["kind"], "bar");
  EXPECT_EQ(report["plots"][0]["log_y"], true);
  EXPECT_EQ(report["corpora"][0], nlohmann::json::parse(R"({"label": "novel.txt", "sha256": "", "tokens": 1234})"));
  EXPECT_EQ(report["settings"][0], nlohmann::json::parse(R"({"name": "seed", "value": "7"})"));
  EXPECT_THAT(Content(html), AllOf(HasSubstr("<html"), HasSubstr("Linearization cost of m")));
  EXPECT_EQ(Content(npz), "numbers of arrays.npz");
  EXPECT_TRUE(experiment.started.experiment().has_routability());
  std::filesystem::remove(html);
  std::filesystem::remove(npz);
}

TEST(Experiment, ChecksItsOutputsBeforeItStarts) {
  FakeExperiment experiment;
  FakeServer server(experiment.All());
  for (const char* flag : {"--html", "--npz"}) {
    for (const char* path : {"/no/such/folder/x", "/"}) {
      const Finished run = Gatehouse(
          {"experiment", "cost", "-m", "m", "--corpus", "-", flag, path, "--server", server.address()}, {.in = "text"});
      EXPECT_EQ(run.exit_code, kExitFailed);
      EXPECT_THAT(run.err, HasSubstr(std::string("cannot write ") + path));
      EXPECT_EQ(experiment.started.model(), "") << flag << " " << path;
    }
  }
}

TEST(Experiment, SaysWhereTheReportStaysThatItCouldNotWrite) {
  FakeExperiment experiment;
  const auto folder = TemporaryFile("gone");
  std::filesystem::create_directories(folder);
  FakeHandlers handlers = experiment.All();
  handlers.get_report = [&, all = experiment.All()](const auto& request, const auto& stream) {
    std::filesystem::remove_all(folder);
    return all.get_report(request, stream);
  };
  FakeServer server(handlers);
  const std::string html = folder / "report.html";
  const Finished run = Gatehouse(
      {"experiment", "cost", "-m", "m", "--corpus", "-", "--html", html, "--server", server.address()}, {.in = "text"});
  EXPECT_EQ(run.exit_code, kExitFailed);
  EXPECT_THAT(run.err, AllOf(HasSubstr("cannot write " + html), HasSubstr("operations report operations/r1/7")));
}

TEST(Experiment, AsksForEachMethodWithItsFlags) {
  FakeExperiment experiment;
  FakeServer server(experiment.All());
  const auto ask = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "experiment");
    arguments.insert(arguments.end(), {"-m", "m", "--corpus", "-", "--detach", "--server", server.address()});
    const Finished run = Gatehouse(arguments, {.in = "text"});
    EXPECT_EQ(run.out, "operations/r1/7\n") << run.err;
    return experiment.started.experiment();
  };
  auto spec = ask({"gates", "--thresholds", "0.25,0.5", "--bottlenecks", "6,2", "--seed", "18446744073709551615"});
  EXPECT_THAT(spec.gate_sweep().thresholds(), ElementsAre(0.25, 0.5));
  EXPECT_THAT(spec.gate_sweep().bottlenecks(), ElementsAre(6, 2));
  EXPECT_EQ(spec.seed(), 18446744073709551615u);
  spec = ask({"no-fly", "--least-mean", "0", "--least-count", "5", "--least-positive", "0.5", "--least-count-other",
              "2", "--bootstrap-resamples", "9"});
  EXPECT_TRUE(spec.no_fly().has_least_mean());
  EXPECT_EQ(spec.no_fly().least_count(), 5u);
  EXPECT_EQ(spec.no_fly().least_positive(), 0.5);
  EXPECT_EQ(spec.no_fly().least_count_other(), 2u);
  EXPECT_EQ(spec.bootstrap_resamples(), 9u);
  spec = ask({"train"});
  EXPECT_TRUE(spec.has_training());
  EXPECT_FALSE(spec.training().has_steps_per_layer());
  spec = ask({"train",    "--schedule",      "two-phase", "--order",           "4,3,5", "--steps-per-layer",
              "0",        "--final-steps",   "7",         "--batch-sequences", "2",     "--learning-rate",
              "1e-4",     "--weight-decay",  "0",         "--gradient-clip",   "2",     "--gate-learning-rate",
              "0.1",      "--gate-pressure", "0.2",       "--evaluate-every",  "3",     "--save-model",
              "--resume", "operations/r1/5"});
  const v1::Training& training = spec.training();
  EXPECT_EQ(training.schedule(), v1::Training::SCHEDULE_TWO_PHASE);
  EXPECT_THAT(training.order(), ElementsAre(4, 3, 5));
  EXPECT_TRUE(training.has_steps_per_layer());
  EXPECT_EQ(training.final_steps(), 7u);
  EXPECT_EQ(training.batch_sequences(), 2u);
  EXPECT_EQ(training.learning_rate(), 1e-4);
  EXPECT_TRUE(training.has_weight_decay());
  EXPECT_EQ(training.gradient_clip(), 2);
  EXPECT_EQ(training.gate_learning_rate(), 0.1);
  EXPECT_EQ(training.gate_pressure(), 0.2);
  EXPECT_EQ(training.evaluate_every(), 3u);
  EXPECT_TRUE(training.save_model());
  EXPECT_EQ(spec.resume(), "operations/r1/5");
}

TEST(Experiment, SaysHowItEndedWhereItDidNotSucceed) {
  FakeExperiment experiment;
  experiment.end = v1::OPERATION_STATE_FAILED;
  FakeServer server(experiment.All());
  const std::vector<std::string> arguments = {"experiment", "cost", "-m",       "m",
                                              "--corpus",   "-",    "--server", server.address()};
  Finished run = Gatehouse(arguments, {.in = "text"});
  EXPECT_EQ(run.exit_code, kExitFailed);
  EXPECT_THAT(run.err, HasSubstr("the experiment failed: the corpus is too short"));
  auto with_json = arguments;
  with_json.emplace_back("--json");
  run = Gatehouse(with_json, {.in = "text"});
  EXPECT_EQ(run.exit_code, kExitFailed);
  EXPECT_EQ(run.json()["report"], nullptr);
}

TEST(Experiment, RefusesFlagsThatMakeNoSense) {
  const auto refused = [](std::vector<std::string> arguments, const char* text) {
    arguments.insert(arguments.begin(), "experiment");
    const Finished run = Gatehouse(arguments);
    EXPECT_EQ(run.exit_code, kExitUsage);
    EXPECT_THAT(run.err, HasSubstr(text));
  };
  refused({}, "a command is missing; see `gatehouse experiment --help`");
  refused({"cost", "-m", "m"}, "--corpus");
  refused({"cost", "-m", "m", "--corpus", "x", "--layers", "5-3"}, "'5-3'");
  refused({"cost", "-m", "m", "--corpus", "x", "--thresholds", "0.5"}, "--thresholds");
  refused({"train", "-m", "m", "--corpus", "x", "--schedule", "often"}, "--schedule");
  refused({"cost", "-m", "m", "--corpus", "x", "--detach", "--html", "f"}, "excludes");
}

TEST(OperationsReport, ShowsTheReportAgain) {
  FakeExperiment experiment;
  FakeServer server(experiment.All());
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--server", server.address(), "operations"});
    return Gatehouse(arguments);
  };
  EXPECT_EQ(run({"report", "7", "--json"}).json()["kind"], "linearization_cost");
  const Finished text = run({"report", "operations/r1/7", "--rows", "2"});
  EXPECT_THAT(text.out, HasSubstr("  … 1 more row; --rows 0 shows all\n"));
  EXPECT_THAT(text.out, Not(HasSubstr("22781")));
  const auto html = TemporaryFile("report.html");
  EXPECT_EQ(run({"report", "7", "--html", html.string()}).exit_code, 0);
  EXPECT_THAT(Content(html), HasSubstr("<html"));
  const auto link = TemporaryFile("link.html");
  std::filesystem::create_symlink(html, link);
  std::filesystem::resize_file(html, 0);
  EXPECT_EQ(run({"report", "7", "--html", link.string()}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_THAT(Content(html), HasSubstr("<html"));
  std::filesystem::remove(link);
  std::filesystem::remove(html);
  const Finished failed = run({"report", "7", "--html", "/no/such/folder/x.html"});
  EXPECT_EQ(failed.exit_code, kExitFailed);
  EXPECT_THAT(failed.err, HasSubstr("cannot write /no/such/folder/x.html"));
}

TEST(OperationsFetch, TakesOneFileOrAllOfThem) {
  FakeExperiment experiment;
  FakeServer server(experiment.All());
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--server", server.address(), "operations", "fetch", "7"});
    return Gatehouse(arguments);
  };
  EXPECT_EQ(run({"--file", "arrays.npz", "-o", "-"}).out, "numbers of arrays.npz");
  const auto folder = TemporaryFile("fetched");
  const Finished all = run({"--all", "-o", folder.string()});
  EXPECT_EQ(all.exit_code, 0) << all.err;
  EXPECT_EQ(Content(folder / "model" / "config.json"), "numbers of model/config.json");
  EXPECT_EQ(Content(folder / "arrays.npz"), "numbers of arrays.npz");
  std::filesystem::remove_all(folder);
  EXPECT_EQ(run({"--all", "--file", "x"}).exit_code, kExitUsage);
}

TEST(OperationsFetch, WritesNoFileThatAServerPlacesElsewhere) {
  FakeExperiment experiment;
  FakeHandlers handlers = experiment.All();
  handlers.get_operation = [&](const auto&, v1::GetOperationResponse& response) {
    *response.mutable_operation() = experiment.State(v1::OPERATION_STATE_SUCCEEDED, 1);
    response.mutable_operation()->add_files("../outside");
    return FakeStatus{};
  };
  FakeServer server(handlers);
  const auto folder = TemporaryFile("inside");
  const Finished run =
      Gatehouse({"--server", server.address(), "operations", "fetch", "7", "--all", "-o", folder.string()});
  EXPECT_EQ(run.exit_code, kExitFailed);
  EXPECT_FALSE(std::filesystem::exists(folder.parent_path() / "outside"));
  EXPECT_TRUE(experiment.fetched.empty());
}

TEST(Calibrate, PassesOnWhatBudgetsAreToBeMet) {
  FakeOperation operation;
  FakeServer server(operation.Handlers());
  const auto start = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"calibrate", "-m", "m", "--corpus", "-", "--detach", "--server", server.address()});
    return Gatehouse(flags, {.in = "text"});
  };
  EXPECT_EQ(start({}).exit_code, 0);
  EXPECT_FALSE(operation.started.calibrate().has_budget());
  const Finished run =
      start({"--budget", "1%", "--budget", "0.05", "--no-tune", "--no-ladders", "--no-sequential", "--ladder-share",
             "0.5", "--tune-steps", "7", "--tune-sequences", "8", "--tune-work-saved", "0.4"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const v1::BudgetSpec& budget = operation.started.calibrate().budget();
  EXPECT_THAT(budget.budgets(), ElementsAre(0.01, 0.05));
  EXPECT_TRUE(budget.has_tune() && !budget.tune());
  EXPECT_TRUE(budget.has_ladders() && !budget.ladders());
  EXPECT_TRUE(budget.has_sequential() && !budget.sequential());
  EXPECT_EQ(budget.ladder_share(), 0.5);
  EXPECT_EQ(budget.tune_steps(), 7u);
  EXPECT_EQ(budget.tune_sequences(), 8u);
  EXPECT_EQ(budget.tune_work_saved(), 0.4);
  EXPECT_EQ(start({"--no-tune"}).exit_code, kExitUsage);  // means nothing without a budget
  EXPECT_EQ(start({"--budget", "much"}).exit_code, kExitUsage);
}

}  // namespace
}  // namespace gatehouse::cli
