#include "client/cli/top_view.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "client/cli/heat.h"
#include "client/cli/render.h"
#include "client/cli/table.h"

namespace gatehouse::cli {
namespace {

using client::LayerDecisions;
using client::MetricHistogram;
using client::ModelMetrics;

// A server whose engine has not gone round for this long hangs, as its health says too.
constexpr double kHungSeconds = 60;

double LinearShare(const LayerDecisions& decisions) { return decisions.linear / decisions.all(); }

double KvShare(const ModelMetrics& model) { return model.kv_used / model.kv_capacity; }

// Milliseconds without needless digits.
std::string LatencyText(double seconds) {
  if (!std::isfinite(seconds)) return "–";
  return Fixed(1000 * seconds, seconds < 0.01 ? 1 : 0) + " ms";
}

Json QuantilesJson(const MetricHistogram& histogram) {
  return {{"p50", Number(histogram.Quantile(0.5))},
          {"p90", Number(histogram.Quantile(0.9))},
          {"p99", Number(histogram.Quantile(0.99))},
          {"count", histogram.count()}};
}

Json ModelJson(const std::string& name, const ModelView& model, double seconds) {
  const auto rate = [&](double count) { return Number(count / seconds); };
  Json layers = Json::array();
  for (size_t layer = 0; layer < model.now.layers.size(); ++layer) {
    const LayerDecisions recent = layer < model.recent.layers.size() ? model.recent.layers[layer] : LayerDecisions();
    layers.push_back({{"layer", layer},
                      {"linear_fraction", Number(LinearShare(recent))},
                      {"linear_fraction_total", Number(LinearShare(model.now.layers[layer]))}});
  }
  return {{"model", name},
          {"replicas", model.replicas},
          {"calibration", model.now.calibration},
          {"running", model.now.running},
          {"waiting", model.now.waiting},
          {"prompt_tokens_per_second", rate(model.recent.prompt_tokens)},
          {"generated_tokens_per_second", rate(model.recent.generated_tokens)},
          {"requests_per_second", rate(model.recent.requests)},
          {"errors_per_second", rate(model.recent.failed)},
          {"first_token", QuantilesJson(model.recent.first_token)},
          {"inter_token", QuantilesJson(model.recent.inter_token)},
          {"end_to_end", QuantilesJson(model.recent.request)},
          {"queue", QuantilesJson(model.recent.queue)},
          {"kv_pages_used", model.now.kv_used},
          {"kv_pages_capacity", model.now.kv_capacity},
          {"kv_used_fraction", Number(KvShare(model.now))},
          {"linear_fraction", Number(LinearShare(model.recent.decisions()))},
          {"linear_fraction_total", Number(LinearShare(model.now.decisions()))},
          {"layers", std::move(layers)}};
}

Json ReplicaJson(const ReplicaView& replica) {
  return {{"metrics", replica.address},
          {"up", replica.status.ok()},
          {"error", std::string(replica.status.message())},
          {"version", replica.version},
          {"heartbeat_age_seconds", Number(replica.heartbeat_age)},
          {"resident_bytes", Number(replica.resident_bytes)},
          {"running", replica.running},
          {"waiting", replica.waiting},
          {"tokens_per_second", Number(replica.tokens_per_second)}};
}

// A page may say anything.
std::string BytesText(double bytes) {
  return HumanBytes(bytes >= 0 ? static_cast<uint64_t>(std::min(bytes, 1e18)) : 0);
}

std::string ShareBar(double share, int width) {
  std::string bar;
  const long filled = std::isfinite(share) ? std::lround(std::clamp(share, 0.0, 1.0) * width) : 0;
  for (long i = 0; i < width; ++i) bar += i < filled ? "█" : "·";
  return bar;
}

// Layers side by side, as many as fit on a line: what share goes linear in each.
void PrintLayers(const Terminal& terminal, const ModelView& model, bool recent) {
  const auto& layers = recent ? model.recent.layers : model.now.layers;
  if (layers.empty()) return;
  constexpr int kWidth = 13;
  const int columns = std::max(1, (terminal.width - 2) / kWidth);
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (static_cast<int>(layer) % columns == 0) terminal.out << (layer == 0 ? "  " : "\n  ");
    const double share = LinearShare(layers[layer]);
    const HeatCell cell = HeightCell(share);
    terminal.out << terminal.Paint(kDim, PadRight("L" + std::to_string(layer), 4))
                 << terminal.Paint(cell.style, cell.glyph) << " " << PadLeft(Percent(share, 0), 4) << "   ";
  }
  terminal.out << "\n";
}

void PrintModel(const Terminal& terminal, const std::string& name, const ModelView& model, double seconds) {
  const auto rate = [&](double count) { return Fixed(count / seconds, 1); };
  const std::string replicas = model.replicas > 1 ? std::to_string(model.replicas) + " servers" : "";
  terminal.out << "\n" << terminal.Paint(kBold, OneLine(name)) << "  " << terminal.Paint(kDim, replicas) << "\n";
  terminal.out << "  running " << terminal.Paint(kBold, Fixed(model.now.running, 0)) << "  waiting "
               << terminal.Paint(model.now.waiting > 0 ? kBad : kBold, Fixed(model.now.waiting, 0)) << "  requests "
               << rate(model.recent.requests) << "/s";
  if (model.recent.failed > 0) {
    terminal.out << "  " << terminal.Paint(kBad, "errors " + rate(model.recent.failed) + "/s");
  }
  terminal.out << "\n  tokens/s  prompt " << terminal.Paint(kBold, rate(model.recent.prompt_tokens)) << "  generated "
               << terminal.Paint(kBold, rate(model.recent.generated_tokens)) << "\n";
  const auto latency = [&](const char* what, const MetricHistogram& histogram) {
    terminal.out << "  " << PadRight(what, 16) << "p50 " << PadLeft(LatencyText(histogram.Quantile(0.5)), 9) << "  p90 "
                 << PadLeft(LatencyText(histogram.Quantile(0.9)), 9) << "  p99 "
                 << PadLeft(LatencyText(histogram.Quantile(0.99)), 9) << "\n";
  };
  latency("first token", model.recent.first_token);
  latency("between tokens", model.recent.inter_token);
  latency("end to end", model.recent.request);
  const double kv = KvShare(model.now);
  terminal.out << "  KV memory       " << terminal.Paint(kv > 0.9 ? kBad : kGood, ShareBar(kv, 20)) << " "
               << Percent(kv, 1) << " of " << BytesText(model.now.kv_capacity * model.now.kv_page_bytes) << "\n";
  const bool recent = model.recent.decisions().all() > 0;
  const double linear = LinearShare((recent ? model.recent : model.now).decisions());
  terminal.out << "  linear          " << terminal.Paint(kGood, ShareBar(linear, 20)) << " " << Percent(linear, 1)
               << terminal.Paint(kDim, recent                            ? ""
                                       : model.now.decisions().all() > 0 ? "  since the start; nothing runs now"
                                                                         : "  nothing ran yet")
               << "\n";
  if (model.now.decisions().all() > 0) PrintLayers(terminal, model, recent);
}

void PrintReplicas(const Terminal& terminal, const TopView& view) {
  const bool all_up =
      std::all_of(view.replicas.begin(), view.replicas.end(), [](const auto& replica) { return replica.status.ok(); });
  if (view.replicas.size() == 1 && all_up) return;
  terminal.out << "\n";
  Table table({{"server"}, {"state"}, {"running", true}, {"waiting", true}, {"tokens/s", true}, {"memory", true}});
  for (const ReplicaView& replica : view.replicas) {
    if (!replica.status.ok()) {
      table.Add({{replica.address, kPlain},
                 {"down: " + OneLine(std::string(replica.status.message())), kBad},
                 {"", kPlain},
                 {"", kPlain},
                 {"", kPlain},
                 {"", kPlain}});
      continue;
    }
    const bool hung = replica.heartbeat_age > kHungSeconds;
    table.Add({{replica.address, kPlain},
               {hung ? "engine hangs" : "up", hung ? kBad : kGood},
               {Fixed(replica.running, 0), kPlain},
               {Fixed(replica.waiting, 0), kPlain},
               {Fixed(replica.tokens_per_second, 1), kPlain},
               {BytesText(replica.resident_bytes), kPlain}});
  }
  table.Print(terminal);
}

std::string ClockTime(const TopView& view) { return absl::FormatTime("%H:%M:%S", view.time, absl::LocalTimeZone()); }

}  // namespace

Json ToJson(const TopView& view) {
  Json models = Json::array(), replicas = Json::array();
  for (const auto& [name, model] : view.models) models.push_back(ModelJson(name, model, view.seconds));
  for (const ReplicaView& replica : view.replicas) replicas.push_back(ReplicaJson(replica));
  return {{"time", absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", view.time, absl::UTCTimeZone())},
          {"window_seconds", Number(view.seconds)},
          {"models", std::move(models)},
          {"replicas", std::move(replicas)}};
}

void PrintScreen(const Terminal& terminal, const TopView& view) {
  std::string versions;
  for (const ReplicaView& replica : view.replicas) {
    if (versions.find(replica.version) == std::string::npos) versions += " " + OneLine(replica.version);
  }
  terminal.out << terminal.Paint(kBold, "gatehouse top") << "  "
               << terminal.Paint(kDim, ClockTime(view) + " · the last " + Fixed(view.seconds, 0) + " s" +
                                           (versions.empty() ? "" : " · server" + versions))
               << "\n";
  for (const auto& [name, model] : view.models) PrintModel(terminal, name, model, view.seconds);
  PrintReplicas(terminal, view);
}

void PrintLines(const Terminal& terminal, const TopView& view) {
  for (const auto& [name, model] : view.models) {
    const auto rate = [&](double count) { return Fixed(count / view.seconds, 1); };
    const double linear = LinearShare(model.recent.decisions());
    terminal.out << ClockTime(view) << " " << OneLine(name) << "  running " << Fixed(model.now.running, 0)
                 << "  waiting " << Fixed(model.now.waiting, 0) << "  requests/s " << rate(model.recent.requests)
                 << "  errors/s " << rate(model.recent.failed) << "  prompt tok/s " << rate(model.recent.prompt_tokens)
                 << "  generated tok/s " << rate(model.recent.generated_tokens) << "  first token p50 "
                 << LatencyText(model.recent.first_token.Quantile(0.5)) << " p99 "
                 << LatencyText(model.recent.first_token.Quantile(0.99)) << "  between p50 "
                 << LatencyText(model.recent.inter_token.Quantile(0.5)) << "  KV " << Percent(KvShare(model.now), 0)
                 << "  linear " << Percent(linear, 1) << "  layers";
    for (const LayerDecisions& layer : model.recent.layers) terminal.out << " " << Percent(LinearShare(layer), 0);
    terminal.out << "\n";
  }
  for (const ReplicaView& replica : view.replicas) {
    if (replica.status.ok()) continue;
    terminal.out << ClockTime(view) << " " << replica.address
                 << "  down: " << OneLine(std::string(replica.status.message())) << "\n";
  }
  terminal.out << std::flush;
}

}  // namespace gatehouse::cli
