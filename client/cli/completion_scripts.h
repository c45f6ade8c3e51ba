#ifndef GATEHOUSE_CLIENT_CLI_COMPLETION_SCRIPTS_H_
#define GATEHOUSE_CLIENT_CLI_COMPLETION_SCRIPTS_H_

#include <string>
#include <utility>
#include <vector>

namespace gatehouse::cli {

// What a shell may offer for a value.
enum class CompletedValue { kNone, kOther, kFile, kDirectory, kModel, kChoice };

struct CompletedOption {
  std::vector<std::string> names;  // with their dashes
  std::string description;         // one line
  CompletedValue value = CompletedValue::kNone;
  std::vector<std::string> choices;  // of kChoice
};

// A command of the program, or the program itself.
struct CompletedCommand {
  std::string path;  // "gatehouse", "gatehouse/operations/fetch"
  std::vector<CompletedOption> options;
  CompletedOption positional;
  std::vector<std::pair<std::string, std::string>> commands;  // below it: name and description
};

// Scripts that a shell reads to complete command lines of `gatehouse`.  The program comes first in
// `commands`; its options may stand behind every other.
std::string BashCompletion(const std::vector<CompletedCommand>& commands);
std::string ZshCompletion(const std::vector<CompletedCommand>& commands);
std::string FishCompletion(const std::vector<CompletedCommand>& commands);

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_COMPLETION_SCRIPTS_H_
