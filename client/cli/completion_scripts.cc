#include "client/cli/completion_scripts.h"

#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace gatehouse::cli {
namespace {

// As a word of sh: in single quotes.
std::string ShellWord(const std::string& text) { return "'" + absl::StrReplaceAll(text, {{"'", "'\\''"}}) + "'"; }
// fish knows two escapes within them.
std::string FishWord(const std::string& text) {
  return "'" + absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}) + "'";
}

std::string ValueKind(const CompletedOption& option) {
  switch (option.value) {
    case CompletedValue::kNone:
      return "";
    case CompletedValue::kOther:
      return "other";
    case CompletedValue::kFile:
      return "file";
    case CompletedValue::kDirectory:
      return "directory";
    case CompletedValue::kModel:
      return "models";
    case CompletedValue::kChoice:
      return "words " + absl::StrJoin(option.choices, " ");
  }
  return "";
}

// function NAME: for each command, by its path in $1, what `body` says; nothing for others.
void AddTable(const char* name, const std::vector<CompletedCommand>& commands,
              const std::function<std::string(const CompletedCommand&)>& body, std::string& script) {
  absl::StrAppend(&script, name, "() {\n  case \"$1\" in\n");
  for (const CompletedCommand& command : commands) {
    if (const std::string text = body(command); !text.empty()) {
      absl::StrAppend(&script, "    ", ShellWord(command.path), ")\n", text, "      ;;\n");
    }
  }
  absl::StrAppend(&script, "  esac\n}\n");
}

// The options that take a value, with its kind: cases of $2.
std::string ValueCases(const CompletedCommand& command) {
  std::string cases;
  for (const CompletedOption& option : command.options) {
    if (option.value == CompletedValue::kNone) continue;
    absl::StrAppend(&cases, "        ", absl::StrJoin(option.names, "|"), ") echo ", ShellWord(ValueKind(option)),
                    " ;;\n");
  }
  return cases.empty() ? "" : absl::StrCat("      case \"$2\" in\n", cases, "      esac\n");
}

std::string EchoLine(const std::string& words) { return words.empty() ? "" : "      echo " + ShellWord(words) + "\n"; }

std::string FlagNames(const CompletedCommand& command) {
  std::vector<std::string> names;
  for (const CompletedOption& option : command.options) names.push_back(absl::StrJoin(option.names, " "));
  return absl::StrJoin(names, " ");
}

std::string CommandNames(const CompletedCommand& command) {
  std::vector<std::string> names;
  for (const auto& [name, description] : command.commands) names.push_back(name);
  return absl::StrJoin(names, " ");
}

// What bash and zsh both read: tables of what may stand where.
std::string SharedTables(const std::vector<CompletedCommand>& commands) {
  std::string script;
  AddTable("_gatehouse_values", commands, ValueCases, script);
  AddTable(
      "_gatehouse_positional", commands, [](const CompletedCommand& c) { return EchoLine(ValueKind(c.positional)); },
      script);
  AddTable(
      "_gatehouse_commands", commands, [](const CompletedCommand& c) { return EchoLine(CommandNames(c)); }, script);
  script += R"sh(# The kind of the value that the flag $2 of the command $1 takes; empty for none.
_gatehouse_value() {
  local kind
  kind=$(_gatehouse_values "$1" "$2")
  if [ -z "$kind" ]; then kind=$(_gatehouse_values gatehouse "$2"); fi
  echo "$kind"
}
# Whether $2 is a command below $1.
_gatehouse_has() {
  case " $(_gatehouse_commands "$1") " in *" $2 "*) return 0 ;; esac
  return 1
}
)sh";
  return script;
}

constexpr char kBashFunction[] =
    R"sh(# The names of the models of the server that the line names; none where it does not answer.
_gatehouse_models() {
  local server=()
  if [[ $COMP_LINE =~ [[:space:]](-s|--server)[=[:space:]]+([^[:space:]]+) ]]; then
    server=(--server "${BASH_REMATCH[2]}")
  fi
  "${COMP_WORDS[0]}" "${server[@]}" completion --models 2>/dev/null
}
_gatehouse() {
  local current="${COMP_WORDS[COMP_CWORD]}" at=gatehouse flag= kind= word i
  COMPREPLY=()
  # Bash takes --flag=value for three words, and HOST:PORT too.
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word="${COMP_WORDS[i]}"
    if [[ $word == = ]]; then continue; fi
    if [[ -n $flag ]]; then
      flag=
    elif [[ $word == -* ]]; then
      if [[ -n $(_gatehouse_value "$at" "$word") ]]; then flag="$word"; fi
    elif _gatehouse_has "$at" "$word"; then
      at="$at/$word"
    fi
  done
  if [[ $current == = ]]; then current=; fi
  if [[ -n $flag ]]; then
    kind=$(_gatehouse_value "$at" "$flag")
  elif [[ $current == -* ]]; then
    kind="words $(_gatehouse_flags "$at")"
    if [[ $at != gatehouse ]]; then kind+=" $(_gatehouse_flags gatehouse)"; fi
  elif [[ -n $(_gatehouse_commands "$at") ]]; then
    kind="words $(_gatehouse_commands "$at")"
    if [[ $(_gatehouse_positional "$at") == models ]]; then kind+=" $(_gatehouse_models)"; fi
  else
    kind=$(_gatehouse_positional "$at")
  fi
  case "$kind" in
    words*) mapfile -t COMPREPLY < <(compgen -W "${kind#words }" -- "$current") ;;
    models) mapfile -t COMPREPLY < <(compgen -W "$(_gatehouse_models)" -- "$current") ;;
    file)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$current")
      ;;
    directory)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -d -- "$current")
      ;;
  esac
}
complete -F _gatehouse gatehouse
)sh";

constexpr char kZshFunction[] = R"sh(_gatehouse_models() {
  local -a server
  local i
  for ((i = 2; i < $#words; ++i)); do
    case ${words[i]} in
      -s|--server) server=(--server ${words[i+1]}) ;;
      --server=*) server=(--server ${words[i]#*=}) ;;
    esac
  done
  ${words[1]} $server completion --models 2>/dev/null
}
_gatehouse() {
  local at=gatehouse flag= kind= word i
  local -a offered
  for ((i = 2; i < CURRENT; ++i)); do
    word=${words[i]}
    if [[ -n $flag ]]; then
      flag=
    elif [[ $word == --*=* ]]; then
      continue
    elif [[ $word == -* ]]; then
      if [[ -n $(_gatehouse_value $at $word) ]]; then flag=$word; fi
    elif _gatehouse_has $at $word; then
      at=$at/$word
    fi
  done
  word=${words[CURRENT]}
  if [[ -z $flag && $word == --*=* ]]; then
    flag=${word%%=*}
    compset -P '*='
  fi
  if [[ -n $flag ]]; then
    kind=$(_gatehouse_value $at $flag)
  elif [[ $word == -* ]]; then
    offered=("${(@f)$(_gatehouse_described_flags $at)}")
    if [[ $at != gatehouse ]]; then offered+=("${(@f)$(_gatehouse_described_flags gatehouse)}"); fi
    _describe -o flag offered
    return
  else
    offered=("${(@f)$(_gatehouse_described_commands $at)}")
    if [[ -n $offered[1] ]]; then _describe command offered; fi
    kind=$(_gatehouse_positional $at)
  fi
  case $kind in
    words*) compadd -- ${=kind#words } ;;
    models) compadd -- ${(f)"$(_gatehouse_models)"} ;;
    file) _files ;;
    directory) _files -/ ;;
  esac
}
if [[ $funcstack[1] == _gatehouse ]]; then
  _gatehouse "$@"
else
  compdef _gatehouse gatehouse
fi
)sh";

// "name:description" lines, as _describe takes them.
std::string DescribedLine(const std::string& name, const std::string& description) {
  return absl::StrCat("      echo ", ShellWord(absl::StrReplaceAll(name, {{":", "\\:"}}) + ":" + description), "\n");
}

std::string FishOption(const std::string& condition, const CompletedOption& option) {
  std::string line = "complete -c gatehouse" + condition;
  for (const std::string& name : option.names) {
    absl::StrAppend(&line, name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1));
  }
  switch (option.value) {
    case CompletedValue::kNone:
      break;
    case CompletedValue::kFile:
      line += " -r -F";
      break;
    case CompletedValue::kDirectory:
      line += " -x -a '(__fish_complete_directories)'";
      break;
    case CompletedValue::kModel:
      line += " -x -a '(gatehouse completion --models)'";
      break;
    case CompletedValue::kChoice:
      absl::StrAppend(&line, " -x -a ", FishWord(absl::StrJoin(option.choices, " ")));
      break;
    case CompletedValue::kOther:
      line += " -x";
      break;
  }
  return absl::StrCat(line, " -d ", FishWord(option.description), "\n");
}

}  // namespace

std::string BashCompletion(const std::vector<CompletedCommand>& commands) {
  std::string script = "# Completes command lines of gatehouse in bash: source <(gatehouse completion bash)\n";
  script += SharedTables(commands);
  AddTable(
      "_gatehouse_flags", commands, [](const CompletedCommand& c) { return EchoLine(FlagNames(c)); }, script);
  return script + kBashFunction;
}

std::string ZshCompletion(const std::vector<CompletedCommand>& commands) {
  std::string script =
      "#compdef gatehouse\n"
      "# Completes command lines of gatehouse in zsh: source <(gatehouse completion zsh), or a file _gatehouse in "
      "$fpath\n";
  script += SharedTables(commands);
  const auto flags = [](const CompletedCommand& command) {
    std::string lines;
    for (const CompletedOption& option : command.options) {
      for (const std::string& name : option.names) lines += DescribedLine(name, option.description);
    }
    return lines;
  };
  const auto below = [](const CompletedCommand& command) {
    std::string lines;
    for (const auto& [name, description] : command.commands) lines += DescribedLine(name, description);
    return lines;
  };
  AddTable("_gatehouse_described_flags", commands, flags, script);
  AddTable("_gatehouse_described_commands", commands, below, script);
  return script + kZshFunction;
}

std::string FishCompletion(const std::vector<CompletedCommand>& commands) {
  std::string script = "# Completes command lines of gatehouse in fish: gatehouse completion fish | source\n";
  std::vector<std::string> paths;
  for (const CompletedCommand& command : commands) paths.push_back(FishWord(command.path));
  absl::StrAppend(&script, "set -g __gatehouse_paths ", absl::StrJoin(paths, " "), R"(
function __gatehouse_at
    set -l at gatehouse
    for word in (commandline -opc)[2..-1]
        if contains -- $at/$word $__gatehouse_paths
            set at $at/$word
        end
    end
    test $at = $argv[1]
end
complete -c gatehouse -f
)");
  for (const CompletedCommand& command : commands) {
    const std::string condition = " -n " + FishWord("__gatehouse_at " + command.path);
    const bool everywhere = &command == &commands.front();
    for (const auto& [name, description] : command.commands) {
      absl::StrAppend(&script, "complete -c gatehouse", condition, " -a ", FishWord(name), " -d ",
                      FishWord(description), "\n");
    }
    for (const CompletedOption& option : command.options) script += FishOption(everywhere ? "" : condition, option);
    if (command.positional.value != CompletedValue::kNone && command.positional.value != CompletedValue::kOther) {
      script += FishOption(condition, command.positional);
    }
  }
  return script;
}

}  // namespace gatehouse::cli
