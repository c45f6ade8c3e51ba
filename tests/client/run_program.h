#ifndef GATEHOUSE_TESTS_CLIENT_RUN_PROGRAM_H_
#define GATEHOUSE_TESTS_CLIENT_RUN_PROGRAM_H_

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/cli.h"

namespace gatehouse::cli {

struct Finished {
  int exit_code = 0;
  std::string out, err;
  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

struct Options {
  std::string in = {};
  bool terminal = false;
  int width = 80;
  Interrupts* interrupts = nullptr;
};

// Runs the program in this process.
inline Finished Gatehouse(std::vector<std::string> arguments, const Options& options = {}) {
  std::istringstream in(options.in);
  std::ostringstream out, err;
  Interrupts interrupts;
  Finished run;
  run.exit_code = RunProgram(std::move(arguments),
                             {.in = in,
                              .out = out,
                              .err = err,
                              .out_is_terminal = options.terminal,
                              .err_is_terminal = options.terminal,
                              .width = options.width,
                              .interrupts = options.interrupts == nullptr ? interrupts : *options.interrupts});
  run.out = out.str();
  run.err = err.str();
  return run;
}

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_TESTS_CLIENT_RUN_PROGRAM_H_
