#ifndef GATEHOUSE_SERVER_SHUTDOWN_SIGNALS_H_
#define GATEHOUSE_SERVER_SHUTDOWN_SIGNALS_H_

#include <condition_variable>
#include <mutex>
#include <thread>

namespace gatehouse {

// Waits for SIGTERM and SIGINT on a thread of its own.  The first one asks for an orderly
// end once Arm was called; before that (while models load) and the second time, the
// process exits at once.  One in a process, made before any other thread so that all
// leave these signals to it.
class ShutdownSignals {
 public:
  ShutdownSignals();
  ~ShutdownSignals();

  void Arm();
  void Wait();

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable asked_changed_;
  bool armed_ = false;
  bool asked_ = false;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SHUTDOWN_SIGNALS_H_
