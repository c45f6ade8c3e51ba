// Calibrations as operations: from the upload to what a restart leaves of them.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <fstream>

#include "tests/integration/running_server.h"
#include "tests/support/planted_model.h"

namespace gatehouse::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

constexpr const char* kQuick[] = {"--fit-tokens",    "1024", "--gate-tokens",   "2048", "--select-tokens", "512",
                                  "--report-tokens", "512",  "--window-tokens", "64"};

std::vector<std::string> Calibrate(const std::filesystem::path& corpus, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {"calibrate", "-m", "planted", "--corpus", corpus};
  arguments.insert(arguments.end(), std::begin(kQuick), std::end(kQuick));
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// A folder with a planted model, and servers of it.
class Operations : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto truth = WritePlantedModel(model_dir());
    ASSERT_TRUE(truth.ok()) << truth.status();
    truth_ = *truth;
  }
  std::filesystem::path model_dir() const { return folder_.path() / "model"; }
  std::filesystem::path corpus() const { return model_dir() / "corpus.txt"; }
  std::vector<std::string> Flags(std::vector<std::string> more = {}) const {
    std::vector<std::string> flags = {
        "--model", "planted=" + model_dir().string(), "--state-dir", folder_.path() / "state", "--replica", "r1"};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }

  TemporaryFolder folder_;
  PlantedTruth truth_;
};

std::string Progress(const nlohmann::json& operation) { return operation.dump(2); }

TEST_F(Operations, PlantedNeuronsComeBackThroughTheClientByIndex) {
  const RunningServer server(Flags());
  EXPECT_TRUE(server.Json({"models"})["models"][0]["layers"].empty());
  const auto result = server.Json({"calibrate", "-m", "planted", "--corpus", corpus(), "--window-tokens", "64"});
  ASSERT_EQ(result["operation"]["state"], "succeeded") << Progress(result);
  const auto model = server.Json({"models"})["models"][0];
  const auto& layer = model["layers"][static_cast<size_t>(truth_.layer)];
  EXPECT_THAT(layer["consensus"].get<std::vector<int>>(), UnorderedElementsAreArray(truth_.consensus));
  EXPECT_THAT(layer["exception"].get<std::vector<int>>(), UnorderedElementsAreArray(truth_.exception));
  const auto& linear = model["layers"][static_cast<size_t>(truth_.linear_layer)];
  EXPECT_GT(linear["surrogate_r2"], 0.999);
  EXPECT_LT(std::abs(linear["linear_cost"].get<double>()), 0.01);
  EXPECT_EQ(linear["gateable"], true);

  // And the trace names them at each token.
  std::ifstream whole(corpus());
  std::string text(120, '\0');
  whole.read(text.data(), static_cast<std::streamsize>(text.size()));
  const auto trace = server.Json({"consensus", "-m", "planted", "--text", text});
  for (const auto& token : trace["texts"][0]["tokens"]) {
    const auto& consensus = token["consensus"][static_cast<size_t>(truth_.layer)];
    for (const int neuron : consensus["fired"]) {
      EXPECT_NE(std::find(truth_.consensus.begin(), truth_.consensus.end(), neuron), truth_.consensus.end());
    }
  }
}

TEST_F(Operations, ACalibrationSurvivesARestartAndCanBeSwapped) {
  std::string first;
  {
    RunningServer server(Flags());
    first = server.Json(Calibrate(corpus(), {"--name", "first"}))["operation"]["result"];
    EXPECT_EQ(first, "first");
    server.process().Signal(SIGTERM);
    EXPECT_EQ(server.process().Wait(), 0);
  }
  const RunningServer server(Flags());
  const auto model = server.Json({"models"})["models"][0];
  EXPECT_EQ(model["calibration"]["name"], "first");
  EXPECT_EQ(model["layers"].size(), 4u);
  EXPECT_EQ(server.Json({"operations"})["operations"][0]["state"], "succeeded");

  server.Json(Calibrate(corpus(), {"--name", "second", "--no-activate", "--seed", "3"}));
  EXPECT_EQ(server.Json({"models"})["models"][0]["calibration"]["name"], "first");
  const std::vector<std::string> score = {
      "score", "-m", "planted", "--token-ids", "300,301,302,303,304,305,306,307", "--gating", "linear"};
  EXPECT_EQ(server.Json(score)["routing"]["calibration"], "first");
  server.Json({"models", "select-calibration", "planted", "second"});
  EXPECT_EQ(server.Json(score)["routing"]["calibration"], "second");
  auto with_first = score;
  with_first.insert(with_first.end(), {"--calibration", "first"});
  EXPECT_EQ(server.Json(with_first)["routing"]["calibration"], "first");
  EXPECT_EQ(server.Error({"models", "select-calibration", "planted", "third"})["reason"], "CALIBRATION_NOT_FOUND");
}

TEST_F(Operations, TheResultFetchedIsTheFileThatIsServed) {
  const RunningServer server(Flags());
  const auto operation = server.Json(Calibrate(corpus()))["operation"];
  const std::string path = folder_.path() / "fetched.safetensors";
  const auto fetched = server.Json({"operations", "fetch", operation["name"], "--output", path});
  EXPECT_EQ(fetched["size_bytes"], operation["result_bytes"]);
  EXPECT_EQ(std::filesystem::file_size(path), operation["result_bytes"]);
  std::ifstream a(path, std::ios::binary);
  const std::filesystem::path served =
      folder_.path() / "state" / "calibrations" / "planted" / (operation["result"].get<std::string>() + ".safetensors");
  std::ifstream b(served, std::ios::binary);
  if (b) {
    EXPECT_TRUE(std::equal(std::istreambuf_iterator<char>(a), {}, std::istreambuf_iterator<char>(b), {}));
  }
}

TEST_F(Operations, OneThatARestartInterruptedSaysSo) {
  std::string name;
  {
    RunningServer server(Flags());
    auto client =
        server.Start({"calibrate", "-m", "planted", "--corpus", corpus(), "--window-tokens", "64", "--detach"});
    name = client->ReadLine();
    ASSERT_THAT(name, HasSubstr("operations/r1/"));
    // It is under way once it has said so.
    while (server.Json({"operations", "get", name})["state"] == "waiting") {
    }
    server.process().Signal(SIGKILL);
    server.process().Wait();
  }
  const RunningServer server(Flags());
  EXPECT_EQ(server.Json({"operations", "get", name})["state"], "interrupted");
  EXPECT_EQ(server.Run({"operations", "watch", name}).exit_code, 1);
  EXPECT_EQ(server.Error({"operations", "fetch", name})["code"], "FAILED_PRECONDITION");
  EXPECT_TRUE(server.Json({"models"})["models"][0]["calibration"].is_null());
}

TEST_F(Operations, CtrlCCancelsTheCalibration) {
  const RunningServer server(Flags());
  auto client = server.Start({"calibrate", "-m", "planted", "--corpus", corpus(), "--window-tokens", "64", "--json"});
  while (true) {
    const auto operations = server.Json({"operations"})["operations"];
    if (!operations.empty() && operations[0]["state"] == "running") break;
  }
  client->Signal(SIGINT);
  const auto result = nlohmann::json::parse(client->ReadRest());
  EXPECT_EQ(client->Wait(), 130);
  EXPECT_EQ(result["operation"]["state"], "cancelled");
  EXPECT_TRUE(server.Json({"models"})["models"][0]["calibration"].is_null());
}

TEST_F(Operations, ACorpusOverTheLimitIsRefused) {
  const RunningServer server(Flags({"--corpus-limit-mb", "1"}));
  const auto large = folder_.path() / "large.txt";
  std::ofstream(large) << std::string((1 << 20) + 1, 'a');
  const auto error = server.Error(Calibrate(large));
  EXPECT_EQ(error["code"], "RESOURCE_EXHAUSTED");
  EXPECT_EQ(error["reason"], "UPLOAD_TOO_LARGE");
  const auto short_text = folder_.path() / "short.txt";
  std::ofstream(short_text) << "Too short.";
  EXPECT_EQ(server.Run(Calibrate(short_text)).exit_code, 1);
  const auto empty = folder_.path() / "empty.txt";
  std::ofstream(empty).flush();
  EXPECT_EQ(server.Error(Calibrate(empty))["code"], "INVALID_ARGUMENT");
  const auto binary = folder_.path() / "binary.txt";
  std::ofstream(binary) << "abc\xFF";
  EXPECT_EQ(server.Error(Calibrate(binary))["message"], "the text is not valid UTF-8 at byte 3");
  EXPECT_EQ(server.Json({"models"})["models"].size(), 1u);  // the server goes on
}

TEST_F(Operations, ACalibrationOfAnotherModelIsNotTaken) {
  // The same architecture, other weights.
  PlantedOptions options;
  options.random_weights = true;
  const auto other = folder_.path() / "other";
  ASSERT_TRUE(WritePlantedModel(other, options).ok());
  {
    const RunningServer server(Flags());
    const auto operation = server.Json(Calibrate(corpus()))["operation"];
    std::filesystem::create_directories(other / "calibrations");
    server.Json({"operations", "fetch", operation["name"], "--output", other / "calibrations" / "foreign.safetensors"});
  }
  RunningServer server({"--model", "other=" + other.string(), "--state-dir", folder_.path() / "state2"});
  const auto model = server.Json({"models"})["models"][0];
  EXPECT_TRUE(model["calibration"].is_null());
  EXPECT_EQ(server.Error({"generate", "-m", "other", "--prompt", "x", "--gating", "gated"})["reason"],
            "NOT_CALIBRATED");
  EXPECT_NE(server.Error({"generate", "-m", "other", "--prompt", "x", "--gating", "gated", "--calibration", "foreign"}),
            nlohmann::json());
  EXPECT_EQ(server.Json({"generate", "-m", "other", "--prompt", "x", "--max-tokens", "2"})["generated_tokens"], 2);
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0);
  EXPECT_THAT(server.process().error_output(), HasSubstr("foreign"));
}

}  // namespace
}  // namespace gatehouse::testing
