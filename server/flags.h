#ifndef GATEHOUSE_SERVER_FLAGS_H_
#define GATEHOUSE_SERVER_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gatehouse {

// What the command line of gatehouse-server says; docs/configuration.md documents it.
struct ServerFlags {
  std::vector<std::pair<std::string, std::string>> models;  // name and directory
  std::string device = "auto";
  std::string dtype = "float32";
  std::string kernels = "auto";
  int64_t kv_memory_mb = 1024;

  std::string listen = "127.0.0.1:50151";
  std::string metrics_listen = "127.0.0.1:9464";
  std::string page_listen;  // empty: no live page

  int max_running = 32;
  int max_waiting = 256;
  int prefill_chunk = 256;

  std::string calibrations_dir;  // empty: none beside the models' own and the state directory's
  std::string state_dir;
  int64_t corpus_limit_mb = 256;
  int keep_operations = 1000;
  int keep_corpora = 100;
  std::string replica;

  double shutdown_delay_seconds = 0;
  double shutdown_grace_seconds = 30;

  bool describe_metrics = false;  // print the metrics reference and exit
};

// Reads the command line.  Without --model, `models` are the embedded ones; without
// --state-dir and --replica, the defaults of this machine.  Returns an exit code instead
// where there is nothing to run: --help, --version, or a mistake (said on stderr).
struct ParsedFlags {
  std::optional<int> exit_code;
  ServerFlags flags;
};
ParsedFlags ParseServerFlags(int argc, char** argv);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_FLAGS_H_
