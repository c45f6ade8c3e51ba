#ifndef GATEHOUSE_CLIENT_CLI_FLAGS_H_
#define GATEHOUSE_CLIENT_CLI_FLAGS_H_

#include <CLI/App.hpp>
#include <cstdint>
#include <functional>
#include <istream>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gatehouse/v1/common.pb.h"

namespace gatehouse::cli {

// Groups of flags that several commands share.  Add declares them; Build makes the
// message after parsing.  A value that cannot be read throws CLI::ValidationError, which
// ends the program with the usage exit code.

// The value, or a CLI::ValidationError naming the flag.
template <typename T>
T OrUsageError(const char* flag, absl::StatusOr<T> value) {
  if (!value.ok()) throw CLI::ValidationError(flag, std::string(value.status().message()));
  return *std::move(value);
}

// Checks of a flag's text: a whole number in [0, most], where the parser alone would wrap it
// around (for CLI::Option::transform); at least one character, where an empty text would be
// taken for the flag's absence (for CLI::Option::check).
CLI::Validator WholeNumber(uint64_t most);
CLI::Validator NotEmpty();
// Checks every flag of a whole number or a number that is declared so far, of all commands:
// what it refuses is quoted with what is wanted.  Whole numbers have 32 bits; those with more
// have a type name and a check of their own (see AddSeedFlag).
void CheckNumbers(CLI::App& app);

// --seed, of 64 bits.
CLI::Option* AddSeedFlag(CLI::App& app, std::function<void(uint64_t)> set, const char* help);

// A file's bytes, or those of `in` for "-".
std::string ReadFile(const char* flag, const std::string& path, std::istream& in);

// A flag that may be given several times, one value each.
CLI::Option* AddRepeatable(CLI::App& app, const char* flag, std::vector<std::string>& values, const char* help);

void AddModelFlag(CLI::App& app, std::string& model);

// --gating and what goes with it.
class GatingFlags {
 public:
  void Add(CLI::App& app);
  v1::GatingPolicy Build() const;

 private:
  std::string mode_ = "full";
  CLI::Option* mode_option_ = nullptr;
  std::optional<float> threshold_, ladder_threshold_;
  std::string layers_;
  std::vector<std::string> layer_thresholds_;
  std::string calibration_, operating_point_;
  uint32_t quorum_ = 0;
  std::string quorum_path_;
};

// --record.
class RecordFlags {
 public:
  void Add(CLI::App& app);
  v1::TokenRecords Build() const;

 private:
  std::string records_;
};

// One or several texts, from the command line, files, or token ids.
class InputFlags {
 public:
  struct Names {
    const char* text = "--text";
    const char* file = "--file";
    const char* token_ids = "--token-ids";
  };
  explicit InputFlags(Names names) : names_(names) {}

  void Add(CLI::App& app);
  // In the order texts, files, token ids; at least one.
  std::vector<v1::TextInput> Build(std::istream& in) const;
  // Where exactly one is allowed.
  v1::TextInput BuildOne(std::istream& in) const;

 private:
  Names names_;
  std::vector<std::string> texts_, files_, token_ids_;
  bool plain_text_ = false;
};

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_FLAGS_H_
