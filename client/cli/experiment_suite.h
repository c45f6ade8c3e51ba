#ifndef GATEHOUSE_CLIENT_CLI_EXPERIMENT_SUITE_H_
#define GATEHOUSE_CLIENT_CLI_EXPERIMENT_SUITE_H_

#include <CLI/App.hpp>
#include <istream>

#include "client/cli/session.h"

namespace gatehouse::cli {

// Declares `experiment suite`, which runs every method of "The Discrete Charm of the MLP" one
// after another; see AddExperiment.
void AddExperimentSuite(CLI::App& experiment, std::istream& in, Action& action);

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_EXPERIMENT_SUITE_H_
