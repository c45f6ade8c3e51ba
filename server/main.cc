// gatehouse-server: loads the models, serves them, and ends in order.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "absl/time/clock.h"
#include "server/base/files.h"
#include "server/base/listen_address.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/flags.h"
#include "server/page/host_check.h"
#include "server/page/page_server.h"
#include "server/rpc/server.h"
#include "server/serving/model_catalog.h"
#include "server/serving/operations.h"
#include "server/serving/scheduler.h"
#include "server/shutdown_signals.h"
#include "server/telemetry/metric_table.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/metrics_server.h"

namespace gatehouse {
namespace {

absl::Status LoadModels(const ServerFlags& flags, ModelCatalog& catalog) {
  if (flags.models.empty()) {
    return absl::NotFoundError(
        "no model to serve: give --model NAME=DIR, or set GATEHOUSE_MODELS to a folder of models");
  }
  EngineOptions options;
  options.device = flags.device;
  options.dtype = flags.dtype;
  options.kernels = flags.kernels;
  options.kv_bytes = flags.kv_memory_mb << 20;
  for (const auto& [name, directory] : flags.models) {
    LogInfo(StrCat("loading model ", name, " from ", directory));
    GH_RETURN_IF_ERROR(catalog.Load(name, directory, options, flags.calibrations_dir, flags.state_dir));
  }
  return absl::OkStatus();
}

SchedulerOptions SchedulerOptionsOf(const ServerFlags& flags) {
  SchedulerOptions options;
  options.max_running = flags.max_running;
  options.max_waiting = flags.max_waiting;
  options.prefill_chunk = flags.prefill_chunk;
  return options;
}

OperationsOptions OperationsOptionsOf(const ServerFlags& flags) {
  OperationsOptions options;
  options.state_dir = flags.state_dir;
  options.replica = flags.replica;
  options.corpus_limit_bytes = flags.corpus_limit_mb << 20;
  options.keep_operations = flags.keep_operations;
  options.keep_corpora = flags.keep_corpora;
  return options;
}

RpcServerOptions RpcOptionsOf(const ServerFlags& flags) {
  RpcServerOptions options;
  options.listen = flags.listen;
  options.replica = flags.replica;
  return options;
}

// `text` with the port that was taken.
std::string Address(const std::string& text, int port) {
  ListenAddress address = *ParseListenAddress(text);
  address.port = static_cast<uint16_t>(port);
  return address.ToString();
}

absl::StatusOr<std::unique_ptr<PageServer>> StartPage(const ServerFlags& flags, RpcServer& server) {
  if (flags.page_listen.empty()) return nullptr;
  PageServerOptions options;
  options.listen = flags.page_listen;
  return PageServer::Start(client::Client::OnChannel(server.InProcessChannel()), options);
}

// The one line on stdout that scripts wait for.
void AnnounceReady(const ServerFlags& flags, const RpcServer& server, const MetricsServer& metrics_server,
                   const PageServer* page, const ModelCatalog& catalog) {
  std::string models;
  for (const ServedModel* const model : catalog.models()) models += (models.empty() ? "" : ", ") + model->name;
  std::string page_text;
  if (page != nullptr) {
    ListenAddress address = *ParsePageListen(flags.page_listen);
    address.port = static_cast<uint16_t>(page->port());
    page_text = StrCat(", page on http://", address.ToString(), "/");
  }
  std::printf("gatehouse-server ready: listening on %s, metrics on %s%s, models %s\n",
              Address(flags.listen, server.port()).c_str(),
              Address(flags.metrics_listen, metrics_server.port()).c_str(), page_text.c_str(), models.c_str());
  std::fflush(stdout);
}

absl::Status Serve(const ServerFlags& flags, ShutdownSignals& signals) {
  // An address that is no address is said before the models load.
  GH_RETURN_IF_ERROR(ParseListenAddress(flags.listen).status());
  GH_RETURN_IF_ERROR(ParseListenAddress(flags.metrics_listen).status());
  if (!flags.page_listen.empty()) GH_RETURN_IF_ERROR(ParsePageListen(flags.page_listen).status());
  GH_RETURN_IF_ERROR(MakeDirectories(flags.state_dir));
  ModelCatalog catalog;
  GH_RETURN_IF_ERROR(LoadModels(flags, catalog));

  // Destroyed in reverse: the metrics outlive all that they watch.
  Metrics metrics(catalog, GATEHOUSE_VERSION);
  GH_ASSIGN_OR_RETURN(const std::unique_ptr<MetricsServer> metrics_server,
                      MetricsServer::Start(flags.metrics_listen, [&metrics] { return metrics.Page(); }));
  GH_ASSIGN_OR_RETURN(const std::unique_ptr<OperationManager> operations,
                      OperationManager::Create(catalog, OperationsOptionsOf(flags)));
  const std::unique_ptr<Scheduler> scheduler = Scheduler::Create(catalog, SchedulerOptionsOf(flags), metrics);
  metrics.Watch(scheduler.get(), operations.get());
  RpcServer::Backend backend;
  backend.catalog = &catalog;
  backend.scheduler = scheduler.get();
  backend.operations = operations.get();
  backend.observer = &metrics;
  const auto server = RpcServer::Start(backend, RpcOptionsOf(flags));
  if (!server.ok()) {
    metrics.Watch(nullptr, nullptr);
    return server.status();
  }
  const auto page = StartPage(flags, **server);
  if (!page.ok()) {
    metrics.Watch(nullptr, nullptr);
    return page.status();
  }
  signals.Arm();
  AnnounceReady(flags, **server, *metrics_server, page->get(), catalog);
  signals.Wait();

  LogInfo("shutting down: a second signal exits at once");
  (*server)->StopServing();
  absl::SleepFor(absl::Seconds(flags.shutdown_delay_seconds));
  scheduler->Drain();
  operations->Shutdown();
  const absl::Time deadline = absl::Now() + absl::Seconds(flags.shutdown_grace_seconds);
  // Calls within the process end at once when their server does.
  if (*page != nullptr) (*page)->Finish(deadline);
  (*server)->Shutdown(deadline);
  scheduler->Shutdown();
  metrics.Watch(nullptr, nullptr);
  LogInfo("shut down");
  return absl::OkStatus();
}

// OpenMP's threads spin while they wait, which takes the cores from whoever else needs
// them.  The library reads how long from the environment before main, so the program
// sets it and starts itself again; where that fails it goes on as it is.
void BoundSpinning(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error || setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
  execv(self.c_str(), argv);
}

}  // namespace
}  // namespace gatehouse

int main(int argc, char** argv) {
  gatehouse::BoundSpinning(argv);
  const gatehouse::ParsedFlags parsed = gatehouse::ParseServerFlags(argc, argv);
  if (parsed.exit_code.has_value()) return *parsed.exit_code;
  if (parsed.flags.describe_metrics) {
    std::fputs(gatehouse::MetricsReference().c_str(), stdout);
    return 0;
  }
  gatehouse::ShutdownSignals signals;
  const absl::Status status = gatehouse::Serve(parsed.flags, signals);
  if (status.ok()) return 0;
  gatehouse::LogError(gatehouse::Message(status));
  return 1;
}
