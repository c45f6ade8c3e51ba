#ifndef GATEHOUSE_CLIENT_CLI_EXPERIMENT_INPUTS_H_
#define GATEHOUSE_CLIENT_CLI_EXPERIMENT_INPUTS_H_

#include <CLI/App.hpp>
#include <istream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/json.h"
#include "client/cli/session.h"
#include "gatehouse/v1/operations.pb.h"

namespace gatehouse::cli {

// Declares flags that set fields of `message`, which outlives the parsing.
template <typename Message>
struct FieldFlags {
  CLI::App& app;
  Message& message;
  const char* group;

  template <typename Value>
  CLI::Option* Add(const char* flag, void (Message::*set)(Value), const char* help) const {
    return app
        .add_option_function<Value>(
            flag, [this_message = &message, set](const Value& value) { (this_message->*set)(value); }, help)
        ->group(group);
  }
};

// What every experiment is told: the model, the texts, and how they are split.
struct ExperimentInputs {
  std::string model;
  std::vector<std::string> corpora;  // files, or "-"
  v1::ExperimentSpec spec;           // without the texts

  // Declares their flags; this outlives the parsing.
  void DeclareInputs(CLI::App& app);
  void DeclareMethod(CLI::App& app);

  // A request for the experiment on its texts, which are uploaded, and their names and sizes.
  struct Uploaded {
    v1::StartOperationRequest request;
    Json corpora = Json::array();
  };
  absl::StatusOr<Uploaded> Upload(Session& session, std::istream& in) const;
};

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_EXPERIMENT_INPUTS_H_
