// Bad input of every kind: a clear error with the right code and reason, and the server
// goes on.

#include <gmock/gmock.h>

#include <csignal>
#include <fstream>

#include "tests/integration/running_server.h"

namespace gatehouse::testing {
namespace {

using ::testing::HasSubstr;

std::filesystem::path ModelDirectory() { return SourceFile(std::string("models/") + kModel); }

class BadRequest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    state_ = new TemporaryFolder;
    server_ = new RunningServer({"--model", ModelFlag(), "--state-dir", state_->path(), "--max-waiting", "4"});
  }
  static void TearDownTestSuite() {
    delete server_;
    delete state_;
  }
  // After each bad request a good one succeeds.
  void TearDown() override {
    EXPECT_EQ(server_->Json({"generate", "-m", kModel, "--prompt", "It was", "--max-tokens", "2",
                             "--ignore-eos"})["generated_tokens"],
              2);
  }
  // "*" is any reason.
  static void Expect(std::vector<std::string> arguments, const std::string& code, const std::string& reason,
                     const std::string& message) {
    const auto error = server_->Error(std::move(arguments));
    ASSERT_TRUE(error.is_object());
    EXPECT_EQ(error["code"], code) << error;
    if (reason != "*") {
      EXPECT_EQ(error["reason"], reason) << error;
    }
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(message));
    EXPECT_LT(error["message"].get<std::string>().size(), 1024u);
  }
  static std::vector<std::string> Generate(std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "-m", kModel, "--max-tokens", "2"});
    return more;
  }

  static TemporaryFolder* state_;
  static RunningServer* server_;
};
TemporaryFolder* BadRequest::state_ = nullptr;
RunningServer* BadRequest::server_ = nullptr;

constexpr char kInvalid[] = "INVALID_ARGUMENT";

TEST_F(BadRequest, EmptyTextsAreNamed) {
  Expect(Generate({"--prompt", ""}), kInvalid, "EMPTY_INPUT", "prompt");
  Expect({"score", "-m", kModel, "--text", ""}, kInvalid, "EMPTY_INPUT", "input");
}

TEST_F(BadRequest, APromptOverTheContextIsRefused) {
  std::string ids = "5";
  for (int i = 1; i < 513; ++i) ids += ",5";
  Expect(Generate({"--prompt-token-ids", ids}), kInvalid, "PROMPT_TOO_LONG", "512");
}

TEST_F(BadRequest, TokenIdsOutOfRangeAreNamed) {
  for (const char* ids : {"5,4096", "-1", "2147483647"}) {
    Expect(Generate({"--prompt-token-ids", ids}), kInvalid, "TOKEN_OUT_OF_RANGE", "4096");
    Expect({"score", "-m", kModel, "--token-ids", ids}, kInvalid, "TOKEN_OUT_OF_RANGE", "4096");
  }
  Expect(Generate({"--prompt", "x", "--stop-token-id", "4096"}), kInvalid, "TOKEN_OUT_OF_RANGE", "4096");
  Expect(Generate({"--prompt", "x", "--logit-bias", "-1=2"}), kInvalid, "*", "4096");
}

TEST_F(BadRequest, NumbersOutOfTheirBoundsAreNamed) {
  const std::vector<std::vector<std::string>> cases = {
      {"--temperature", "-1"}, {"--temperature", "nan"},      {"--top-p", "1.1"},       {"--top-p", "nan"},
      {"--min-p", "-0.1"},     {"--repetition-penalty", "0"}, {"--top-logprobs", "21"}, {"--max-tokens", "0"},
      {"--stop", ""},          {"--logit-bias", "5=inf"},     {"--logit-bias", "5=nan"}};
  for (const auto& flags : cases) {
    auto arguments = std::vector<std::string>{"generate", "-m", kModel, "--prompt", "x"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    Expect(arguments, kInvalid, "INVALID_FIELD", "");
  }
}

TEST_F(BadRequest, ThresholdsOutsideZeroToOneAreRefusedNanAmongThem) {
  for (const char* threshold : {"nan", "-0.1", "1.01", "inf"}) {
    Expect(Generate({"--prompt", "x", "--threshold", threshold}), kInvalid, "INVALID_FIELD", "threshold");
  }
}

TEST_F(BadRequest, LayersOutOfRangeAreNamed) {
  Expect(Generate({"--prompt", "x", "--layers", "0-99"}), kInvalid, "*", "layer");
  Expect({"score", "-m", kModel, "--text", "It was", "--layers", "65535"}, kInvalid, "*", "layer");
}

TEST_F(BadRequest, UnknownNamesAreNotFound) {
  Expect({"generate", "-m", "no-such-model", "--prompt", "x"}, "NOT_FOUND", "MODEL_NOT_FOUND", kModel);
  Expect({"models", "no-such-model"}, "NOT_FOUND", "MODEL_NOT_FOUND", kModel);
  Expect({"operations", "get", "operations/r1/1"}, "NOT_FOUND", "OPERATION_NOT_FOUND", "operations/r1/1");
  Expect({"operations", "get", "../../etc/passwd"}, "NOT_FOUND", "OPERATION_NOT_FOUND", "operations/REPLICA/ID");
}

TEST_F(BadRequest, TextThatIsNotUtf8NeverLeavesTheClient) {
  Expect(Generate({"--prompt", "ab\xFF"}), kInvalid, "", "prompt.text is not valid UTF-8 at byte 2");
  Expect({"nonlinearity", "-m", kModel, "--text", "fine", "--text", "\xED\xA0\x80"}, kInvalid, "", "inputs[1].text");
}

TEST_F(BadRequest, AWindowOutOfItsBoundsIsNamed) {
  Expect({"score", "-m", kModel, "--text", "It was a", "--window", "513"}, kInvalid, "INVALID_FIELD", "window");
  Expect({"score", "-m", kModel, "--text", "It was a", "--window", "1"}, kInvalid, "INVALID_FIELD", "window");
  Expect({"score", "-m", kModel, "--text", "It was a", "--window", "8", "--stride", "9"}, kInvalid, "INVALID_FIELD",
         "stride");
  Expect({"score", "-m", kModel, "--text", "It was a", "--window", "8", "--stride", "4", "--blocks"}, kInvalid,
         "INVALID_FIELD", "stride");
}

TEST_F(BadRequest, ADeadlineThatHasPassedIsSaid) {
  const Finished late =
      server_->Run({"generate", "-m", kModel, "--prompt", "x", "--ignore-eos", "--timeout", "0.000001"});
  EXPECT_EQ(late.exit_code, 4);
  EXPECT_THAT(late.err, HasSubstr("--timeout"));
}

// A copy of the model that a test damages.
class BadModel : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::copy(ModelDirectory(), model(), std::filesystem::copy_options::recursive); }
  std::filesystem::path model() const { return folder_.path() / "model"; }
  // The server refuses to start and says why on one line.
  void ExpectRefusal(const std::string& message, const std::vector<std::string>& flags = {}) const {
    std::vector<std::string> command = {Program("gatehouse-server"), "--listen",    "127.0.0.1:0",
                                        "--metrics-listen",          "127.0.0.1:0", "--state-dir",
                                        folder_.path() / "state",    "--model",     "broken=" + model().string()};
    command.insert(command.end(), flags.begin(), flags.end());
    const Finished server = RunToEnd(command);
    EXPECT_EQ(server.exit_code, 1) << server.err;
    EXPECT_EQ(server.out, "");
    EXPECT_THAT(server.err, HasSubstr("broken"));
    EXPECT_THAT(server.err, HasSubstr(message));
  }
  TemporaryFolder folder_;
};

TEST_F(BadModel, AMissingFileIsNamed) {
  for (const char* file : {"config.json", "tokenizer.json", "model.safetensors"}) {
    std::filesystem::rename(model() / file, folder_.path() / file);
    ExpectRefusal(file);
    std::filesystem::rename(folder_.path() / file, model() / file);
  }
}

TEST_F(BadModel, ADamagedFileIsNamed) {
  const auto size = std::filesystem::file_size(model() / "model.safetensors");
  std::filesystem::resize_file(model() / "model.safetensors", size / 2);
  ExpectRefusal("model.safetensors");
  std::ofstream(model() / "model.safetensors") << std::string(8, '\xFF') << "{}";
  ExpectRefusal("model.safetensors");
  std::ofstream(model() / "model.safetensors").flush();
  ExpectRefusal("model.safetensors");
}

TEST_F(BadModel, ADamagedDescriptionIsNamed) {
  std::ofstream(model() / "config.json") << "{\"model_type\": ";
  ExpectRefusal("config.json");
  std::ifstream original(ModelDirectory() / "config.json");
  auto config = nlohmann::json::parse(original);
  config["model_type"] = "no_such_architecture";
  std::ofstream(model() / "config.json") << config;
  ExpectRefusal("no_such_architecture");
}

TEST_F(BadModel, MoreMemoryForKeysAndValuesThanThereIsIsRefusedBeforeTheWeightsAreRead) {
  std::filesystem::remove(model() / "model.safetensors");
  ExpectRefusal("--kv-memory-mb asks for 16777216 MiB for keys and values, this machine has ",
                {"--kv-memory-mb", "16777216"});
}

TEST_F(BadModel, ADirectoryThatIsNotThereIsNamed) {
  std::filesystem::remove_all(model());
  ExpectRefusal(model());
}

TEST(CommandLine, AMistakeInItIsNamedAndEndsTheServerWithTwo) {
  for (const auto& [flag, value] : {std::pair("--bogus", "1"), std::pair("--max-running", "0"),
                                    std::pair("--model", "no-directory"), std::pair("--dtype", "float8")}) {
    const Finished server = RunToEnd({Program("gatehouse-server"), flag, value});
    EXPECT_EQ(server.exit_code, 2) << flag;
    EXPECT_THAT(server.err, HasSubstr(flag));
  }
  EXPECT_EQ(RunToEnd({Program("gatehouse-server"), "--help"}).exit_code, 0);
}

TEST(Ports, OneInUseIsNamed) {
  TemporaryFolder folder;
  const std::string model = ModelFlag();
  RunningServer first({"--model", model, "--state-dir", folder.path()});
  const Finished second = RunToEnd({Program("gatehouse-server"), "--listen", first.address(), "--metrics-listen",
                                    "127.0.0.1:0", "--state-dir", folder.path() / "other", "--model", model});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err, HasSubstr(first.address()));
  EXPECT_THAT(second.err, HasSubstr("in use"));
  EXPECT_EQ(first.Json({"models"})["models"].size(), 1u);
}

}  // namespace
}  // namespace gatehouse::testing
