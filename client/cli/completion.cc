#include <CLI/App.hpp>
#include <algorithm>
#include <memory>
#include <sstream>

#include "client/cli/completion_scripts.h"
#include "client/cli/session.h"

namespace gatehouse::cli {
namespace {

constexpr char kCompletionExamples[] =
    R"(Completes commands, flags, files, the values that a flag chooses from, and the names of the server's models.

Examples:
  source <(gatehouse completion bash)                                     # this shell; in ~/.bashrc: every one
  gatehouse completion zsh > "${fpath[1]}/_gatehouse"
  gatehouse completion fish > ~/.config/fish/completions/gatehouse.fish)";

// While a shell waits for the names of models.
constexpr absl::Duration kModelNamesTimeout = absl::Seconds(1);
constexpr size_t kDescriptionWidth = 90;

// The words of "TEXT:{a,b}", which is how the parser shows a flag of few values.
std::vector<std::string> ChoicesIn(const std::string& type) {
  const size_t open = type.find('{'), close = type.rfind('}');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  std::vector<std::string> choices;
  std::istringstream words(type.substr(open + 1, close - open - 1));
  for (std::string word; std::getline(words, word, ',');) choices.push_back(word);
  return choices;
}

std::string OneSentence(const std::string& text) {
  const std::string line = OneLine(text);
  const std::string first = line.substr(0, std::min(line.find(". "), line.size()));
  return Truncate(first, kDescriptionWidth);
}

CompletedOption DescribeOption(const CLI::Option& option, const std::string& path) {
  CompletedOption described;
  for (const std::string& name : option.get_snames()) described.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) described.names.push_back("--" + name);
  described.description = OneSentence(option.get_description());
  if (option.get_items_expected_max() == 0) return described;
  const std::string type = option.get_type_name();
  const std::string name = option.get_single_name();
  const bool is_model = name == "model" || name == "MODEL" || (name == "NAME" && path == "gatehouse/models");
  described.choices = ChoicesIn(type);
  described.value = !described.choices.empty() ? CompletedValue::kChoice
                    : is_model                 ? CompletedValue::kModel
                    : type.starts_with("FILE") ? CompletedValue::kFile
                    : type.starts_with("DIR")  ? CompletedValue::kDirectory
                                               : CompletedValue::kOther;
  return described;
}

void CollectCommands(const CLI::App& app, const std::string& path, std::vector<CompletedCommand>& commands) {
  CompletedCommand command;
  command.path = path;
  for (const CLI::Option* option : app.get_options()) {
    CompletedOption described = DescribeOption(*option, path);
    if (option->get_positional()) {
      if (command.positional.value == CompletedValue::kNone) command.positional = described;
    }
    if (option->nonpositional()) command.options.push_back(std::move(described));
  }
  // A positional has no names of its own.
  command.positional.names.clear();
  const auto below = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* sub : below) {
    command.commands.emplace_back(sub->get_name(), OneSentence(sub->get_description()));
  }
  commands.push_back(std::move(command));
  for (const CLI::App* sub : below) CollectCommands(*sub, path + "/" + sub->get_name(), commands);
}

// Names alone, for the scripts; none where no server answers at once.
int PrintModelNames(Session& session) {
  const auto list = session.client.ListModels({.timeout = kModelNamesTimeout, .canceller = session.call.canceller});
  if (!list.ok()) return kExitOk;
  for (const auto& model : list->models()) session.terminal.out << OneLine(model.name()) << "\n";
  return kExitOk;
}

std::string ScriptFor(const std::string& shell, const CLI::App& app) {
  std::vector<CompletedCommand> commands;
  CollectCommands(app, "gatehouse", commands);
  if (shell == "bash") return BashCompletion(commands);
  return shell == "zsh" ? ZshCompletion(commands) : FishCompletion(commands);
}

}  // namespace

void AddCompletion(CLI::App& app, Action& action) {
  struct Flags {
    std::string shell;
    bool models = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("completion", "Print a script that lets a shell complete command lines");
  sub->add_option("SHELL", flags->shell, "bash, zsh or fish")->check(CLI::IsMember({"bash", "zsh", "fish"}));
  sub->add_flag("--models", flags->models, "Print the names of the server's models, as the scripts ask for them");
  sub->footer(kCompletionExamples);
  sub->callback([flags, &app, &action] {
    if (flags->shell.empty() && !flags->models) throw CLI::RequiredError("SHELL: one of bash, zsh and fish");
    action = [flags, &app](Session& session) -> absl::StatusOr<int> {
      if (flags->models) return PrintModelNames(session);
      const std::string script = ScriptFor(flags->shell, app);
      if (session.json) {
        session.Print({{"shell", flags->shell}, {"script", script}});
      } else {
        session.terminal.out << script;
      }
      return kExitOk;
    };
  });
}

}  // namespace gatehouse::cli
