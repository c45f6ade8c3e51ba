#include "server/shutdown_signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

namespace gatehouse {
namespace {

sigset_t ShutdownSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

ShutdownSignals::ShutdownSignals() {
  const sigset_t set = ShutdownSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  thread_ = std::thread([this] { Loop(); });
}

ShutdownSignals::~ShutdownSignals() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

void ShutdownSignals::Arm() {
  const std::lock_guard lock(mutex_);
  armed_ = true;
}

void ShutdownSignals::Wait() {
  std::unique_lock lock(mutex_);
  asked_changed_.wait(lock, [this] { return asked_; });
}

void ShutdownSignals::Loop() {
  const sigset_t set = ShutdownSet();
  while (true) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0) continue;
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    if (!armed_ || asked_) _exit(128 + signal);
    asked_ = true;
    asked_changed_.notify_all();
  }
}

}  // namespace gatehouse
