#include "tests/integration/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

extern char** environ;

namespace gatehouse::testing {
namespace {

// Reads once; false at the end.
bool ReadMore(int fd, std::string& text) {
  char bytes[4096];
  const ssize_t count = read(fd, bytes, sizeof(bytes));
  if (count <= 0) return false;
  text.append(bytes, static_cast<size_t>(count));
  return true;
}

}  // namespace

Process::Process(const std::vector<std::string>& arguments) {
  int out[2], err[2];
  // Close-on-exec, so that programs started at the same time do not hold each other's pipes.
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) std::abort();
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) {
    std::fprintf(stderr, "cannot start %s\n", argv[0]);
    std::abort();
  }
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
  error_reader_ = std::thread([this] {
    while (ReadMore(err_, error_)) {
    }
  });
}

Process::~Process() {
  if (pid_ > 0) {
    Signal(SIGKILL);
    Wait();
  }
  close(out_);
  close(err_);
}

std::string Process::ReadLine() {
  size_t end;
  while ((end = buffer_.find('\n')) == std::string::npos) {
    if (!ReadMore(out_, buffer_)) return "";
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  return line;
}

std::string Process::ReadRest() {
  while (ReadMore(out_, buffer_)) {
  }
  return std::exchange(buffer_, {});
}

void Process::Signal(int signal) {
  if (pid_ > 0) kill(pid_, signal);
}

int Process::Wait() {
  if (pid_ <= 0) return exit_code_;
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  error_reader_.join();
  exit_code_ = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  return exit_code_;
}

Finished RunToEnd(const std::vector<std::string>& arguments) {
  Process process(arguments);
  Finished finished;
  finished.out = process.ReadRest();
  finished.exit_code = process.Wait();
  finished.err = process.error_output();
  return finished;
}

}  // namespace gatehouse::testing
