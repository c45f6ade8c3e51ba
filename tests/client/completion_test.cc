#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "tests/client/cli_answers.h"
#include "tests/client/fake_operation.h"
#include "tests/client/run_program.h"

namespace gatehouse::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

// What a program prints; empty where it cannot be run.
std::string OutputOf(const std::string& command) {
  std::string output;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  for (int c; (c = std::fgetc(pipe)) != EOF;) output += static_cast<char>(c);
  pclose(pipe);
  return output;
}

bool IsInstalled(const std::string& shell) { return !OutputOf("command -v " + shell).empty(); }

class Completion : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_);
    std::ofstream(folder_ / "some text.txt") << "x";
    std::filesystem::create_directory(folder_ / "some folder");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Script(const std::string& shell) {
    const Finished run = Gatehouse({"completion", shell});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    std::ofstream(folder_ / shell) << run.out;
    return (folder_ / shell).string();
  }

  // What bash offers for the words after "gatehouse", of which the last is being typed.  Colons and
  // equals signs are words of their own, as bash splits them.
  std::set<std::string> InBash(const std::vector<std::string>& words) {
    std::string line = "gatehouse", array = "gatehouse";
    for (const std::string& word : words) {
      line += (word == "=" ? "" : " ") + word;
      array += " '" + word + "'";
    }
    const std::string command = "cd '" + folder_.string() + "' && bash -c '. ./bash; COMP_WORDS=(" + Escaped(array) +
                                "); COMP_LINE=\"" + line + "\"; COMP_CWORD=" + std::to_string(words.size()) +
                                "; gatehouse() { echo model-a; echo model-b; }; _gatehouse; "
                                "printf \"%s\\n\" \"${COMPREPLY[@]}\"' 2>&1";
    std::istringstream lines(OutputOf(command));
    std::set<std::string> offered;
    for (std::string offer; std::getline(lines, offer);) {
      if (!offer.empty()) offered.insert(offer);
    }
    return offered;
  }

  const std::filesystem::path folder_ = TemporaryFile("completion");

 private:
  // Within single quotes.
  static std::string Escaped(const std::string& text) {
    std::string escaped;
    for (const char c : text) escaped += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return escaped;
  }
};

TEST_F(Completion, OffersCommandsAndThoseBelowThem) {
  Script("bash");
  EXPECT_THAT(InBash({""}), IsSupersetOf({"generate", "bench", "top", "doctor", "completion", "operations"}));
  EXPECT_THAT(InBash({"mod"}), ElementsAre("models"));
  EXPECT_THAT(InBash({"operations", ""}), IsSupersetOf({"list", "get", "fetch"}));
  EXPECT_THAT(InBash({"--server", "10.0.0.7", ":", "50151", "operations", "fe"}), ElementsAre("fetch"));
  EXPECT_THAT(InBash({"generate", "--prompt", "models", ""}), Not(Contains("select-calibration")));
  EXPECT_THAT(InBash({"models", ""}), ElementsAre("model-a", "model-b", "select-calibration"));
}

TEST_F(Completion, OffersTheFlagsOfTheCommandAndOfAll) {
  Script("bash");
  const auto flags = InBash({"generate", "-"});
  EXPECT_THAT(flags, IsSupersetOf({"--max-tokens", "-n", "--gating", "--server", "--json", "--help"}));
  EXPECT_THAT(flags, Not(Contains("--corpus")));
  EXPECT_THAT(InBash({"bench", "--slo"}), ElementsAre("--slo-e2e", "--slo-itl", "--slo-tpot", "--slo-ttft"));
  EXPECT_THAT(InBash({"--co"}), ElementsAre("--color"));
}

TEST_F(Completion, OffersTheValuesThatAFlagTakes) {
  Script("bash");
  EXPECT_THAT(InBash({"generate", "--gating", ""}), ElementsAre("full", "gated", "ladder", "linear", "quorum"));
  EXPECT_THAT(InBash({"generate", "--gating", "=", "l"}), ElementsAre("ladder", "linear"));
  EXPECT_THAT(InBash({"generate", "--gating", "="}), IsSupersetOf({"full", "gated"}));
  EXPECT_THAT(InBash({"models", "--color", "a"}), ElementsAre("always", "auto"));
  EXPECT_THAT(InBash({"generate", "-m", ""}), ElementsAre("model-a", "model-b"));
  EXPECT_THAT(InBash({"generate", "--prompt-file", "some"}), ElementsAre("some folder", "some text.txt"));
  EXPECT_THAT(InBash({"experiment", "suite", "--directory", "some"}), ElementsAre("some folder"));
  EXPECT_THAT(InBash({"generate", "--max-tokens", ""}), ElementsAre());
  EXPECT_THAT(InBash({"completion", "z"}), ElementsAre("zsh"));
}

TEST_F(Completion, ParsesInEveryShellThatIsInstalled) {
  EXPECT_EQ(OutputOf("bash -n '" + Script("bash") + "' 2>&1"), "");
  for (const char* shell : {"zsh", "fish"}) {
    const std::string script = Script(shell);
    if (IsInstalled(shell)) {
      EXPECT_EQ(OutputOf(std::string(shell) + " -n '" + script + "' 2>&1"), "") << shell;
    }
  }
}

TEST_F(Completion, FishOffersFromTheScript) {
  if (!IsInstalled("fish")) GTEST_SKIP() << "fish is not installed";
  const std::string script = Script("fish");
  const auto offered = [&](const std::string& line) {
    return OutputOf("cd '" + folder_.string() + "' && fish -N -c 'source " + script + "; complete -C \"" + line +
                    "\"' 2>&1");
  };
  EXPECT_THAT(offered("gatehouse be"), HasSubstr("bench\tLoad the server"));
  EXPECT_THAT(offered("gatehouse generate --gating "), AllOf(HasSubstr("gated"), HasSubstr("quorum")));
  EXPECT_THAT(offered("gatehouse operations fe"), HasSubstr("fetch"));
  EXPECT_THAT(offered("gatehouse generate --prompt-file some"), HasSubstr("some text.txt"));
  EXPECT_THAT(offered("gatehouse bench --slo"), AllOf(HasSubstr("--slo-ttft"), Not(HasSubstr("--corpus"))));
}

TEST_F(Completion, DescribesFlagsToZsh) {
  const Finished run = Gatehouse({"completion", "zsh"});
  EXPECT_THAT(run.out, ::testing::StartsWith("#compdef gatehouse\n"));
  EXPECT_THAT(run.out, HasSubstr("echo '--max-tokens:Most tokens to generate"));
  EXPECT_THAT(run.out, HasSubstr("echo 'generate:Continue a prompt'"));
}

TEST(CompletionModels, PrintsNamesAndNothingWhereNoServerAnswers) {
  std::string gone;
  {
    FakeServer server(Handlers());
    gone = server.address();
    EXPECT_EQ(Gatehouse({"completion", "--models", "--server", server.address()}).out, "m\n");
  }
  const Finished run = Gatehouse({"completion", "--models", "--server", gone});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.out + run.err, "");
  EXPECT_EQ(Gatehouse({"completion"}).exit_code, kExitUsage);
  EXPECT_EQ(Gatehouse({"completion", "tcsh"}).exit_code, kExitUsage);
}

}  // namespace
}  // namespace gatehouse::cli
