// `gatehouse experiment suite`.

#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <mutex>
#include <thread>

#include "tests/client/fake_operation.h"
#include "tests/client/run_program.h"

namespace gatehouse::cli {
namespace {

using ::gatehouse::testing::FakeHandlers;
using ::gatehouse::testing::FakeServer;
using ::gatehouse::testing::FakeStatus;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kNames[] = {"nonlinearity", "polynomial", "consensus", "ablation", "quorum"};

// A server that keeps what it was asked to start.
struct FakeSuite : FakeOperation {
  std::vector<v1::ExperimentSpec> asked;
  int uploads = 0;

  FakeHandlers All() {
    FakeHandlers handlers = Handlers();
    handlers.start_operation = [this, start = handlers.start_operation](const auto& request, auto& response) {
      asked.push_back(request.experiment());
      return start(request, response);
    };
    handlers.upload_corpus = [this, upload = handlers.upload_corpus](const auto& more, auto& response) {
      ++uploads;
      return upload(more, response);
    };
    handlers.get_report = [this](const auto&, const auto& stream) {
      v1::GetReportResponse response;
      response.mutable_report()->set_title("Report " + std::to_string(asked.size()));
      stream.write(response);
      return FakeStatus{};
    };
    return handlers;
  }
};

std::string ContentOf(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ExperimentSuite, RunsEveryMethodOnTheSameTextAndSavesItsReports) {
  FakeSuite suite;
  FakeServer server(suite.All());
  const auto folder = TemporaryFile("suite") / "reports";
  const Finished run =
      Gatehouse({"experiment", "suite", "-m", "m", "--corpus", "-", "--layers", "1,2", "--report-tokens", "700",
                 "--max-consensus", "3", "--directory", folder.string(), "--server", server.address()},
                {.in = "text"});
  ASSERT_EQ(run.exit_code, kExitOk) << run.err;
  EXPECT_EQ(suite.uploads, 1);
  ASSERT_EQ(suite.asked.size(), 5u);
  EXPECT_TRUE(suite.asked[0].has_nonlinearity());
  EXPECT_TRUE(suite.asked[1].has_polynomial_probe());
  EXPECT_EQ(suite.asked[2].consensus().max_consensus(), 3u);
  EXPECT_EQ(suite.asked[3].ablation().max_consensus(), 3u);
  EXPECT_EQ(suite.asked[4].quorum().max_consensus(), 3u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_THAT(suite.asked[i].corpora(), ElementsAre("corpora/abc")) << i;
    EXPECT_THAT(suite.asked[i].layers(), ElementsAre(1, 2)) << i;
    EXPECT_EQ(suite.asked[i].report_tokens(), 700u) << i;
    const std::string title = "Report " + std::to_string(i + 1), name = kNames[i];
    EXPECT_THAT(run.out, HasSubstr(title));
    EXPECT_EQ(nlohmann::json::parse(ContentOf(folder / (name + ".json")))["title"], title);
    EXPECT_THAT(ContentOf(folder / (name + ".html")), HasSubstr(title));
  }
  std::filesystem::remove_all(folder.parent_path());
}

TEST(ExperimentSuite, BoundsTheDearMethodsByLayersOfTheirOwn) {
  FakeSuite suite;
  FakeServer server(suite.All());
  const Finished run =
      Gatehouse({"experiment", "suite", "-m", "m", "--corpus", "-", "--layers", "1-3", "--quorum-layers", "2",
                 "--ablation-layers", "1,3", "--polynomial-layers", "3", "--server", server.address()},
                {.in = "text"});
  ASSERT_EQ(run.exit_code, kExitOk) << run.err;
  ASSERT_EQ(suite.asked.size(), 5u);
  EXPECT_THAT(suite.asked[0].layers(), ElementsAre(1, 2, 3));
  EXPECT_THAT(suite.asked[1].layers(), ElementsAre(3));
  EXPECT_THAT(suite.asked[2].layers(), ElementsAre(1, 2, 3));
  EXPECT_THAT(suite.asked[3].layers(), ElementsAre(1, 3));
  EXPECT_THAT(suite.asked[4].layers(), ElementsAre(2));

  const Finished wrong = Gatehouse(
      {"experiment", "suite", "-m", "m", "--corpus", "-", "--quorum-layers", "5-x", "--server", server.address()},
      {.in = "text"});
  EXPECT_EQ(wrong.exit_code, kExitUsage);
  EXPECT_THAT(wrong.err, HasSubstr("--quorum-layers"));
  EXPECT_EQ(suite.uploads, 1);
}

TEST(ExperimentSuite, PrintsOneObjectAndGoesOnWhereAMethodFails) {
  FakeSuite suite;
  suite.end = v1::OPERATION_STATE_FAILED;
  FakeServer server(suite.All());
  const Finished run = Gatehouse(
      {"experiment", "suite", "-m", "m", "--corpus", "-", "--json", "--server", server.address()}, {.in = "text"});
  EXPECT_EQ(run.exit_code, kExitFailed);
  const auto json = run.json();
  ASSERT_EQ(json["experiments"].size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(json["experiments"][i]["name"], kNames[i]);
    EXPECT_EQ(json["experiments"][i]["operation"]["state"], "failed");
    EXPECT_EQ(json["experiments"][i]["report"], nullptr);
  }
  EXPECT_EQ(json["corpora"].size(), 1u);
}

TEST(ExperimentSuite, CtrlCCancelsTheOneThatRunsAndEndsTheSuite) {
  FakeSuite suite;
  suite.runs_until_cancelled = true;
  Interrupts interrupts;
  std::thread ctrl_c;
  std::once_flag once;
  suite.running = [&] { std::call_once(once, [&] { ctrl_c = std::thread([&] { interrupts.Raise(); }); }); };
  FakeServer server(suite.All());
  const Finished run = Gatehouse({"experiment", "suite", "-m", "m", "--corpus", "-", "--server", server.address()},
                                 {.in = "text", .interrupts = &interrupts});
  ctrl_c.join();
  EXPECT_EQ(run.exit_code, kExitInterrupted) << run.err;
  EXPECT_TRUE(suite.cancelled);
  EXPECT_EQ(suite.asked.size(), 1u);
  EXPECT_THAT(run.err, HasSubstr("nonlinearity cancelled"));
}

TEST(ExperimentSuite, RefusesAFolderItCannotMakeBeforeItUploads) {
  FakeSuite suite;
  FakeServer server(suite.All());
  const Finished run = Gatehouse(
      {"experiment", "suite", "-m", "m", "--corpus", "-", "--directory", "/dev/null/x", "--server", server.address()},
      {.in = "text"});
  EXPECT_EQ(run.exit_code, kExitFailed);
  EXPECT_THAT(run.err, HasSubstr("cannot make the folder /dev/null/x"));
  EXPECT_EQ(suite.uploads, 0);
}

}  // namespace
}  // namespace gatehouse::cli
