#include "server/flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "server/base/strings.h"

namespace gatehouse {
namespace {

namespace fs = std::filesystem;

// Where the embedded models lie; empty when nowhere.
fs::path EmbeddedModels() {
  std::error_code error;
  const fs::path bin = fs::read_symlink("/proc/self/exe", error).parent_path();
  std::vector<fs::path> candidates = {bin / "../share/gatehouse/models", bin / "../../../models"};
  if (const char* const given = std::getenv("GATEHOUSE_MODELS"); given != nullptr && *given != '\0') {
    candidates = {given};
  }
  for (const fs::path& candidate : candidates) {
    if (fs::is_directory(candidate, error)) return candidate.lexically_normal();
  }
  return {};
}

std::vector<std::pair<std::string, std::string>> ModelsIn(const fs::path& folder) {
  std::vector<std::pair<std::string, std::string>> models;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (fs::exists(entry.path() / "config.json", error)) {
      models.emplace_back(entry.path().filename().string(), entry.path().string());
    }
  }
  std::sort(models.begin(), models.end());
  return models;
}

std::string DefaultStateDir() {
  if (const char* const state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state != '\0') {
    return StrCat(state, "/gatehouse");
  }
  const char* const home = std::getenv("HOME");
  return StrCat(home != nullptr && *home != '\0' ? home : ".", "/.local/state/gatehouse");
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0' ? name : "local";
}

std::string CheckModel(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals != std::string::npos && equals > 0 && equals + 1 < text.size()) return "";
  return StrCat("'", text, "' is not NAME=DIR");
}

std::string CheckFolder(const std::string& text) {
  std::error_code error;
  return fs::is_directory(text, error) ? "" : StrCat("'", text, "' is no folder that can be read");
}

// In [0, most]; CLI::Range takes NaN.
CLI::Validator SecondsUpTo(double most) {
  return CLI::Validator(
      [most](std::string& text) {
        double seconds = 0;
        if (CLI::detail::lexical_cast(text, seconds) && seconds >= 0 && seconds <= most) return std::string();
        return StrCat("Value ", text, " not in range 0 to ", most);
      },
      StrCat("FLOAT in [0 - ", most, "]"));
}

void AddModelFlags(CLI::App& app, ServerFlags& flags, std::vector<std::string>& models) {
  const std::string group = "Models";
  app.add_option("--model", models,
                 "Serve the Hugging Face model in DIR as NAME; repeatable. Without it, the embedded models "
                 "(of $GATEHOUSE_MODELS, or those installed beside the program)")
      ->check(CheckModel)
      ->take_all()
      ->type_name("NAME=DIR")
      ->group(group);
  app.add_option("--calibrations-dir", flags.calibrations_dir,
                 "Serve the calibrations MODEL/NAME.safetensors of this folder too; it is only read")
      ->check(CheckFolder)
      ->type_name("DIR")
      ->group(group);
  app.add_option("--device", flags.device, "Where models run")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str()
      ->type_name("auto|cpu|cuda")
      ->group(group);
  app.add_option("--dtype", flags.dtype, "Number format of the weights in memory")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str()
      ->type_name("float32|bfloat16")
      ->group(group);
  app.add_option("--kernels", flags.kernels,
                 "Matrix kernels: auto takes the best for this machine; a name pins them (portable, avx2, avx512, "
                 "avx512_bf16)")
      ->capture_default_str()
      ->type_name("NAME")
      ->group(group);
  app.add_option("--kv-memory-mb", flags.kv_memory_mb, "MiB for keys and values, of each model")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str()
      ->type_name("MIB")
      ->group(group);
}

void AddNetworkFlags(CLI::App& app, ServerFlags& flags) {
  const std::string group = "Network";
  app.add_option("--listen", flags.listen, "Where the gRPC server listens; port 0 takes a free one")
      ->capture_default_str()
      ->type_name("HOST:PORT")
      ->group(group);
  app.add_option("--metrics-listen", flags.metrics_listen,
                 "Where the Prometheus page /metrics is; port 0 takes a free one")
      ->capture_default_str()
      ->type_name("HOST:PORT")
      ->group(group);
  app.add_option("--page-listen", flags.page_listen,
                 "Serve the live page here, where a browser watches a generation; a port alone is on the loopback "
                 "(default: no page)")
      ->type_name("[HOST:]PORT")
      ->group(group);
}

void AddLoadFlags(CLI::App& app, ServerFlags& flags) {
  const std::string group = "Load";
  app.add_option("--max-running", flags.max_running, "Calls that run at once, per model")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  app.add_option("--max-waiting", flags.max_waiting, "Calls that wait, per model; one more is refused")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  app.add_option("--prefill-chunk", flags.prefill_chunk, "Positions of a prompt that one step processes")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
}

void AddStateFlags(CLI::App& app, ServerFlags& flags) {
  const std::string group = "Operations";
  app.add_option("--state-dir", flags.state_dir, "Folder for calibrations, corpora and operations")
      ->capture_default_str()
      ->type_name("DIR")
      ->group(group);
  app.add_option("--corpus-limit-mb", flags.corpus_limit_mb, "Largest corpus that can be uploaded, in MiB")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str()
      ->type_name("MIB")
      ->group(group);
  app.add_option(
         "--keep-operations", flags.keep_operations,
         "Operations kept once they have ended; older ones go, with their reports and files, but not calibrations")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  app.add_option("--keep-corpora", flags.keep_corpora,
                 "Corpora kept; those that were not used for longest go, but none that an operation waits to read")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str()
      ->type_name("N")
      ->group(group);
  app.add_option("--replica", flags.replica, "This server's name in the names of its operations")
      ->capture_default_str()
      ->type_name("NAME")
      ->group(group);
}

void AddShutdownFlags(CLI::App& app, ServerFlags& flags) {
  const std::string group = "Shutdown (on SIGTERM or SIGINT; a second signal exits at once)";
  app.add_option("--shutdown-delay", flags.shutdown_delay_seconds,
                 "Seconds of serving on with health NOT_SERVING, so that load balancers look elsewhere")
      ->check(SecondsUpTo(3600))
      ->capture_default_str()
      ->type_name("SECONDS")
      ->group(group);
  app.add_option("--shutdown-grace", flags.shutdown_grace_seconds,
                 "Seconds that running calls then have to finish before they are cancelled")
      ->check(SecondsUpTo(86400))
      ->capture_default_str()
      ->type_name("SECONDS")
      ->group(group);
}

}  // namespace

ParsedFlags ParseServerFlags(int argc, char** argv) {
  ParsedFlags parsed;
  ServerFlags& flags = parsed.flags;
  flags.state_dir = DefaultStateDir();
  flags.replica = HostName();
  std::vector<std::string> models;
  CLI::App app("Serves language models over gRPC with per-token MLP gating and analysis.", "gatehouse-server");
  app.set_version_flag("--version", GATEHOUSE_VERSION);
  app.add_flag("--describe-metrics", flags.describe_metrics, "Print the metrics reference, in Markdown, and exit");
  app.get_formatter()->column_width(36);
  AddModelFlags(app, flags, models);
  AddNetworkFlags(app, flags);
  AddLoadFlags(app, flags);
  AddStateFlags(app, flags);
  AddShutdownFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    parsed.exit_code = app.exit(error) == 0 ? 0 : 2;
    return parsed;
  }
  for (const std::string& model : models) {
    const size_t equals = model.find('=');
    flags.models.emplace_back(model.substr(0, equals), model.substr(equals + 1));
  }
  if (models.empty()) flags.models = ModelsIn(EmbeddedModels());
  return parsed;
}

}  // namespace gatehouse
