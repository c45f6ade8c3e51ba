#ifndef GATEHOUSE_TESTS_INTEGRATION_RUNNING_SERVER_H_
#define GATEHOUSE_TESTS_INTEGRATION_RUNNING_SERVER_H_

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/integration/process.h"

namespace gatehouse::testing {

// Where the built programs and the repository are.
std::filesystem::path Program(const std::string& name);
std::filesystem::path SourceFile(const std::string& path);

// An embedded model, and the value of --model that serves it by that name.
inline constexpr char kModel[] = "novella-neox-4m";
std::string ModelFlag();

// A folder that goes away with the test.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The pages of a Prometheus endpoint: each series, with its labels as they are printed.
using Series = std::map<std::string, double>;

// A real gatehouse-server on free ports of the loopback, and clients of it.
class RunningServer {
 public:
  // `flags` beside the addresses, such as --model and --state-dir.  Waits until it is
  // ready, and ends the test program if it never is.
  explicit RunningServer(const std::vector<std::string>& flags);

  const std::string& address() const { return address_; }
  // HOST:PORT of the metrics page.
  const std::string& metrics() const { return metrics_; }
  Process& process() { return *process_; }
  // Of the live page, where there is one.
  int page_port() const { return page_port_; }

  // `gatehouse ARGUMENTS`, started or run to its end.
  std::unique_ptr<Process> Start(std::vector<std::string> arguments) const;
  Finished Run(std::vector<std::string> arguments) const;
  // The same with --json; the object it printed.  Fails the test where it failed.
  nlohmann::json Json(std::vector<std::string> arguments) const;
  // The same for one that is to fail: its "error" object.
  nlohmann::json Error(std::vector<std::string> arguments) const;

  // The metrics page.
  std::string Page() const;
  Series Metrics() const;
  // The sum over the series of that name with all of these labels ("path=\"linear\"").
  double Metric(const std::string& name, const std::vector<std::string>& labels = {}) const;
  // Asks for the metric until it has that value; false after 30 s.
  bool WaitForMetric(const std::string& name, double value) const;

 private:
  std::unique_ptr<Process> process_;
  std::string address_, metrics_;
  int page_port_ = 0;
};

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_INTEGRATION_RUNNING_SERVER_H_
