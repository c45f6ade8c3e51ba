// Experiments through the real programs: from the text to the report, the page and the
// arrays.

#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>

#include "tests/integration/running_server.h"

namespace gatehouse::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

std::string Content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A server of an embedded model, and a folder for what it leaves.
class Experiments : public ::testing::Test {
 protected:
  std::vector<std::string> Flags() const {
    return {"--model", ModelFlag(), "--state-dir", folder_.path() / "state", "--replica", "r1"};
  }
  static std::vector<std::string> Experiment(const std::string& verb, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"experiment",
                                          verb,
                                          "-m",
                                          kModel,
                                          "--corpus",
                                          SourceFile("tests/data/corpus/treasure_island.txt"),
                                          "--fit-tokens",
                                          "2048",
                                          "--gate-tokens",
                                          "2048",
                                          "--select-tokens",
                                          "512",
                                          "--report-tokens",
                                          "1024",
                                          "--window-tokens",
                                          "128",
                                          "--seed",
                                          "3"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  // A column of a report's table.
  static nlohmann::json Column(const nlohmann::json& report, const std::string& table, const std::string& column) {
    for (const auto& entry : report["tables"]) {
      if (entry["name"] != table) continue;
      for (const auto& found : entry["columns"]) {
        if (found["name"] == column) return found["values"];
      }
    }
    ADD_FAILURE() << "no " << table << "." << column;
    return nlohmann::json::array();
  }

  TemporaryFolder folder_;
};

TEST_F(Experiments, TheCostOfLayersComesBackAsAReportAPageAndArrays) {
  const auto html = folder_.path() / "cost.html", npz = folder_.path() / "cost.npz";
  std::string name;
  nlohmann::json report;
  {
    const RunningServer server(Flags());
    const auto result =
        server.Json(Experiment("cost", {"--layers", "1-2", "--html", html.string(), "--npz", npz.string()}));
    ASSERT_EQ(result["operation"]["state"], "succeeded") << result["operation"];
    name = result["operation"]["name"];
    report = result["report"];
    EXPECT_THAT(result["operation"]["files"], Contains("arrays.npz"));
    EXPECT_EQ(report["kind"], "linearization_cost");
    EXPECT_EQ(report["model"], kModel);
    EXPECT_EQ(report["corpora"][0]["label"], "treasure_island.txt");
    EXPECT_GT(report["corpora"][0]["tokens"], 10000);
    EXPECT_EQ(Column(report, "layers", "layer"), nlohmann::json::parse("[1, 2]"));
    for (size_t i = 0; i < 2; ++i) {
      const double cost = Column(report, "layers", "cost")[i], low = Column(report, "layers", "cost_low")[i],
                   high = Column(report, "layers", "cost_high")[i];
      EXPECT_TRUE(low <= cost && cost <= high) << low << " " << cost << " " << high;
      EXPECT_GT(Column(report, "layers", "r2")[i], 0);
    }
    EXPECT_GE(report["plots"].size(), 1u);
    EXPECT_THAT(Content(html), HasSubstr(report["title"].get<std::string>()));
    EXPECT_THAT(Content(npz), HasSubstr("layers.cost.npy"));
    // The same numbers again, and as text.
    EXPECT_EQ(server.Json(Experiment("cost", {"--layers", "1-2"}))["report"]["tables"], report["tables"]);
    const Finished text = server.Run({"operations", "report", name});
    EXPECT_EQ(text.exit_code, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr("cost_low"));
  }
  // And after a restart.
  const RunningServer server(Flags());
  EXPECT_EQ(server.Json({"operations", "report", name}), report);
  const auto fetched = folder_.path() / "fetched";
  server.Json({"operations", "fetch", name, "--all", "--output", fetched});
  EXPECT_EQ(nlohmann::json::parse(Content(fetched / "report.json")), report);
  EXPECT_EQ(Content(fetched / "arrays.npz"), Content(npz));
}

TEST_F(Experiments, NonlinearityAndItsPolynomialsComeBackAsReportsAndArrays) {
  const auto html = folder_.path() / "nonlinearity.html", npz = folder_.path() / "nonlinearity.npz";
  const RunningServer server(Flags());
  const auto result = server.Json(Experiment(
      "nonlinearity", {"--layers", "1-2", "--clusters", "3", "--html", html.string(), "--npz", npz.string()}));
  ASSERT_EQ(result["operation"]["state"], "succeeded") << result["operation"];
  const auto& report = result["report"];
  EXPECT_EQ(report["kind"], "nonlinearity");
  EXPECT_EQ(Column(report, "layers", "layer"), nlohmann::json::parse("[1, 2]"));
  for (size_t i = 0; i < 2; ++i) {
    double before = 0;
    for (const char* const name : {"p25", "p50", "p70", "p95"}) {
      const double next = Column(report, "layers", name)[i];
      EXPECT_GT(next, before) << name;
      before = next;
    }
    EXPECT_GT(Column(report, "structure", "tokens")[i], 50);
  }
  EXPECT_EQ(Column(report, "regimes", "regime").size(), 8u);
  EXPECT_THAT(Content(html), HasSubstr("How nonlinear each layer is"));
  EXPECT_THAT(Content(npz), HasSubstr("score.1.npy"));

  const auto probe =
      server.Json(Experiment("polynomial", {"--layers", "2", "--components", "6", "--degrees", "2,3"}))["report"];
  EXPECT_EQ(probe["kind"], "polynomial_probe");
  EXPECT_EQ(Column(probe, "layers", "tokens"), nlohmann::json::parse(R"(["all", "without newlines"])"));
  EXPECT_EQ(Column(probe, "products", "degree"), nlohmann::json::parse("[1, 2, 3, 1, 2, 3]"));
  for (const auto& r2 : Column(probe, "products", "tuned_r2")) EXPECT_LE(r2, 1);
  EXPECT_THAT(server.Run(Experiment("polynomial", {"--components", "120"})).err, HasSubstr("components is 120"));
}

TEST_F(Experiments, WhatCannotBeMeasuredIsAnError) {
  const RunningServer server(Flags());
  const auto error = server.Error(Experiment("cost", {"--layers", "0,64"}));
  EXPECT_EQ(error["reason"], "LAYER_OUT_OF_RANGE");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("layers is 64"));
  EXPECT_THAT(server.Error(Experiment("no-fly", {}))["message"].get<std::string>(), HasSubstr("2 to 16"));
  EXPECT_THAT(server.Error(Experiment("gates", {"--thresholds", "0.5,1.5"}))["message"].get<std::string>(),
              HasSubstr("must be in [0, 1]"));
  const auto short_text = folder_.path() / "short.txt";
  std::ofstream(short_text) << "Too short for any split.";
  const Finished run = server.Run({"experiment", "cost", "-m", kModel, "--corpus", short_text});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("the experiment failed"));
  const auto operations = server.Json({"operations"})["operations"];
  ASSERT_EQ(operations.size(), 1u);  // the others were refused at once
  EXPECT_EQ(operations[0]["state"], "failed");
  EXPECT_TRUE(operations[0]["files"].empty());
}

TEST_F(Experiments, ATrainingThatWasCancelledGoesOnAndItsModelCanBeServed) {
  const auto model = folder_.path() / "trained";
  {
    const RunningServer server(Flags());
    const std::vector<std::string> flags = {"--order",           "1", "--steps-per-layer", "60", "--final-steps", "0",
                                            "--batch-sequences", "1", "--save-model"};
    auto detached = flags;
    detached.emplace_back("--detach");
    const std::string name = server.Json(Experiment("train", detached))["operation"]["name"];
    std::string stage;
    while (stage.find("step") == std::string::npos) stage = server.Json({"operations", "get", name})["stage"];
    server.Json({"operations", "cancel", name});
    server.Run({"operations", "watch", name});
    const auto cancelled = server.Json({"operations", "get", name});
    ASSERT_EQ(cancelled["state"], "cancelled") << cancelled;
    EXPECT_FALSE(cancelled["files"].empty());

    auto resumed = flags;
    resumed.insert(resumed.end(), {"--resume", name});
    auto other = resumed;
    other.insert(other.end(), {"--weight-decay", "0.5"});
    EXPECT_THAT(server.Run(Experiment("train", other)).err, HasSubstr("weight_decay"));
    const auto result = server.Json(Experiment("train", resumed));
    ASSERT_EQ(result["operation"]["state"], "succeeded") << result["operation"];
    EXPECT_EQ(result["operation"]["kind"], "progressive");
    EXPECT_THAT(Column(result["report"], "final", "arm"), Contains("control"));
    server.Json({"operations", "fetch", result["operation"]["name"], "--all", "--output", model});
  }
  const RunningServer server(
      {"--model", "trained=" + (model / "model").string(), "--state-dir", folder_.path() / "two"});
  EXPECT_EQ(server.Json({"generate", "-m", "trained", "--prompt", "The captain", "--max-tokens", "3",
                         "--ignore-eos"})["generated_tokens"],
            3);
}

TEST_F(Experiments, TheSuiteRunsEveryMethodOfTheDiscreteMlpAndKeepsItsReports) {
  const RunningServer server(Flags());
  const auto folder = folder_.path() / "suite";
  const auto result = server.Json(Experiment("suite", {"--layers", "2", "--max-consensus", "2", "--bootstrap-resamples",
                                                       "200", "--directory", folder.string()}));
  const std::pair<const char*, const char*> kinds[] = {{"nonlinearity", "nonlinearity"},
                                                       {"polynomial", "polynomial_probe"},
                                                       {"consensus", "consensus"},
                                                       {"ablation", "ablation"},
                                                       {"quorum", "quorum"}};
  ASSERT_EQ(result["experiments"].size(), std::size(kinds));
  for (size_t i = 0; i < std::size(kinds); ++i) {
    const auto& [name, kind] = kinds[i];
    const auto& experiment = result["experiments"][i];
    EXPECT_EQ(experiment["operation"]["state"], "succeeded") << experiment["operation"];
    EXPECT_EQ(experiment["operation"]["kind"], kind);
    EXPECT_EQ(nlohmann::json::parse(Content(folder / (std::string(name) + ".json"))), experiment["report"]);
    EXPECT_THAT(Content(folder / (std::string(name) + ".html")),
                HasSubstr(experiment["report"]["title"].get<std::string>()));
  }
  EXPECT_EQ(Column(result["experiments"][2]["report"], "arc", "layer"), nlohmann::json::parse("[2]"));
  EXPECT_LE(Column(result["experiments"][2]["report"], "arc", "consensus")[0], 2);
  EXPECT_EQ(Column(result["experiments"][3]["report"], "layers", "layer"), nlohmann::json::parse("[2]"));
}

TEST_F(Experiments, CtrlCCancelsAndLeavesNothingHalfWritten) {
  const RunningServer server(Flags());
  auto client = server.Start(Experiment("cost", {"--bootstrap-resamples", "1000000", "--json"}));
  while (true) {
    const auto operations = server.Json({"operations"})["operations"];
    if (!operations.empty() && operations[0]["state"] == "running") break;
  }
  client->Signal(SIGINT);
  const auto result = nlohmann::json::parse(client->ReadRest());
  EXPECT_EQ(client->Wait(), 130);
  EXPECT_EQ(result["operation"]["state"], "cancelled");
  EXPECT_TRUE(result["report"].is_null());
  EXPECT_TRUE(result["operation"]["files"].empty());
}

}  // namespace
}  // namespace gatehouse::testing
