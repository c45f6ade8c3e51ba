#include <pthread.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "client/cli/cli.h"

namespace {

// Waits for SIGINT and SIGTERM on a thread of its own: the first ends the command in good
// order, the second the program.
void WatchSignals(gatehouse::cli::Interrupts& interrupts) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  // Threads started from here on, gRPC's among them, leave the signals to the watcher.
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals, &interrupts] {
    int signal = 0;
    sigwait(&signals, &signal);
    interrupts.Raise();
    sigwait(&signals, &signal);
    _exit(gatehouse::cli::kExitInterrupted);
  }).detach();
}

int TerminalWidth() {
  winsize size{};
  for (int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return std::clamp<int>(size.ws_col, 20, 1000);
  }
  const char* columns = std::getenv("COLUMNS");
  const int width = columns == nullptr ? 0 : std::atoi(columns);
  return width > 0 ? std::clamp(width, 20, 1000) : 80;
}

}  // namespace

int main(int argc, char** argv) {
  // Lives as long as the watching thread.
  static gatehouse::cli::Interrupts interrupts;
  WatchSignals(interrupts);
  return gatehouse::cli::RunProgram(std::vector<std::string>(argv + 1, argv + argc),
                                    {.in = std::cin,
                                     .out = std::cout,
                                     .err = std::cerr,
                                     .out_is_terminal = isatty(STDOUT_FILENO) != 0,
                                     .err_is_terminal = isatty(STDERR_FILENO) != 0,
                                     .width = TerminalWidth(),
                                     .interrupts = interrupts});
}
