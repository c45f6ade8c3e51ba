#ifndef GATEHOUSE_CLIENT_CLI_CLI_H_
#define GATEHOUSE_CLIENT_CLI_CLI_H_

#include <istream>
#include <ostream>
#include <string>
#include <vector>

#include "client/cli/session.h"

namespace gatehouse::cli {

// What the program runs in; tests give their own.
struct Environment {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  bool out_is_terminal = false;
  bool err_is_terminal = false;
  int width = 80;
  Interrupts& interrupts;
};

// The program `gatehouse`, without its name in `arguments`; returns the exit code.
int RunProgram(std::vector<std::string> arguments, const Environment& environment);

// What went wrong and what to do about it, on one line.
std::string DescribeError(const absl::Status& status, const std::string& server, const std::string& model);

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_CLI_H_
