#ifndef GATEHOUSE_TESTS_INTEGRATION_PROCESS_H_
#define GATEHOUSE_TESTS_INTEGRATION_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <thread>
#include <vector>

namespace gatehouse::testing {

// A program that runs beside the test.  Its standard output can be read line by line; its
// standard error is collected.  Killed, if it still runs, by the destructor.
class Process {
 public:
  // `arguments` begins with the program's path.
  explicit Process(const std::vector<std::string>& arguments);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // The next line of standard output, without its end; empty at the end of the output.
  std::string ReadLine();
  // All that is left of it.
  std::string ReadRest();
  void Signal(int signal);
  // Waits for the end; the exit code, or minus the signal that ended it.
  int Wait();
  // Complete once Wait has returned.
  const std::string& error_output() const { return error_; }

 private:
  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  std::string buffer_;
  std::string error_;
  std::thread error_reader_;
  int exit_code_ = 0;
};

// A program that has run to its end.
struct Finished {
  int exit_code = 0;
  std::string out, err;
};
Finished RunToEnd(const std::vector<std::string>& arguments);

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_INTEGRATION_PROCESS_H_
