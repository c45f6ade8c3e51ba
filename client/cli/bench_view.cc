#include "client/cli/bench_view.h"

#include <utility>

#include "client/cli/heat.h"
#include "client/cli/render.h"
#include "client/cli/report_view.h"
#include "client/cli/table.h"
#include "client/utf8.h"

namespace gatehouse::cli {
namespace {

using client::LoadFigures;
using client::LoadResult;
using client::Quantiles;
using client::RoutingTotals;

Json QuantilesJson(const Quantiles& quantiles) {
  return {{"p50", Number(quantiles.p50)}, {"p90", Number(quantiles.p90)},   {"p99", Number(quantiles.p99)},
          {"max", Number(quantiles.max)}, {"mean", Number(quantiles.mean)}, {"count", quantiles.count}};
}

Json ShareJson(uint64_t part, uint64_t all) {
  return all == 0 ? Json() : Json(static_cast<double>(part) / static_cast<double>(all));
}

Json RoutingJson(const RoutingTotals& routing) {
  Json layers = Json::array();
  for (size_t layer = 0; layer < routing.layers.size(); ++layer) {
    const RoutingTotals::Layer& counts = routing.layers[layer];
    layers.push_back({{"layer", layer},
                      {"full_tokens", counts.full},
                      {"linear_tokens", counts.linear},
                      {"ladder_tokens", counts.ladder},
                      {"skip_tokens", counts.skip},
                      {"linear_fraction", ShareJson(counts.linear, counts.all())}});
  }
  const RoutingTotals::Layer sum = routing.Sum();
  return {{"linear_fraction", ShareJson(sum.linear, sum.all())},
          {"ladder_fraction", ShareJson(sum.ladder, sum.all())},
          {"skip_fraction", ShareJson(sum.skip, sum.all())},
          {"mlp_work_saved", Number(routing.work_saved)},
          {"decisions", sum.all()},
          {"layers", std::move(layers)}};
}

std::string MillisecondsCell(double seconds) { return Fixed(1000 * seconds, seconds < 0.1 ? 1 : 0); }

void PrintLatencies(const Terminal& terminal, const LoadFigures& figures, bool open_loop) {
  Table table({{"milliseconds"}, {"p50", true}, {"p90", true}, {"p99", true}, {"max", true}, {"count", true}});
  const auto add = [&](const char* name, const Quantiles& quantiles) {
    table.Add({{name, kPlain},
               {MillisecondsCell(quantiles.p50), kPlain},
               {MillisecondsCell(quantiles.p90), kPlain},
               {MillisecondsCell(quantiles.p99), kPlain},
               {MillisecondsCell(quantiles.max), kPlain},
               {std::to_string(quantiles.count), kDim}});
  };
  add("first token", figures.first_token);
  add("between tokens", figures.inter_token);
  add("a request's mean", figures.time_per_token);
  add("end to end", figures.end_to_end);
  add("queueing", figures.queue);
  if (open_loop) add("sent late by", figures.lateness);
  table.Print(terminal);
}

void PrintLoadErrors(const Terminal& terminal, const LoadFigures& figures) {
  if (figures.errors.empty()) return;
  terminal.out << "\n";
  Table table({{"errors", true}, {"code"}, {"reason"}, {"message of the first"}});
  for (const auto& [kind, error] : figures.errors) {
    table.Add({{std::to_string(error.count), kBad},
               {kind.first, kPlain},
               {OneLine(kind.second), kPlain},
               {Truncate(OneLine(error.message), 60), kDim}});
  }
  table.Print(terminal);
}

void PrintLayerShares(const Terminal& terminal, const RoutingTotals& routing) {
  const RoutingTotals::Layer sum = routing.Sum();
  if (sum.all() == sum.full) return;
  terminal.out << "\n" << terminal.Paint(kDim, "linear by layer") << "\n";
  for (size_t layer = 0; layer < routing.layers.size(); ++layer) {
    const RoutingTotals::Layer& counts = routing.layers[layer];
    const double share = static_cast<double>(counts.linear) / static_cast<double>(counts.all());
    const HeatCell cell = HeightCell(share);
    terminal.out << "  L" << PadRight(std::to_string(layer), 3) << terminal.Paint(cell.style, cell.glyph) << " "
                 << PadLeft(Percent(share, 1), 6) << "\n";
  }
}

}  // namespace

Json BenchJson(const LoadResult& result, const LoadFigures& figures) {
  Json errors = Json::array();
  for (const auto& [kind, error] : figures.errors) {
    errors.push_back({{"code", kind.first},
                      {"reason", client::ReplaceInvalidUtf8(kind.second)},
                      {"count", error.count},
                      {"message", client::ReplaceInvalidUtf8(error.message)}});
  }
  const auto rate = [&](auto count) { return Number(figures.PerSecond(static_cast<double>(count))); };
  return {{"requests",
           {{"sent", figures.sent},
            {"succeeded", figures.succeeded},
            {"good", figures.good},
            {"failed", figures.failed},
            {"unfinished", figures.unfinished}}},
          {"seconds", Number(figures.seconds)},
          {"goodput_rps", rate(figures.good)},
          {"requests_per_second", rate(figures.succeeded)},
          {"prompt_tokens", figures.prompt_tokens},
          {"generated_tokens", figures.generated_tokens},
          {"prompt_tokens_per_second", rate(figures.prompt_tokens)},
          {"generated_tokens_per_second", rate(figures.generated_tokens)},
          {"latency",
           {{"first_token", QuantilesJson(figures.first_token)},
            {"inter_token", QuantilesJson(figures.inter_token)},
            {"time_per_token", QuantilesJson(figures.time_per_token)},
            {"end_to_end", QuantilesJson(figures.end_to_end)},
            {"queue", QuantilesJson(figures.queue)},
            {"lateness", QuantilesJson(figures.lateness)}}},
          {"errors", std::move(errors)},
          {"routing", RoutingJson(result.routing)},
          {"interrupted", result.interrupted}};
}

void PrintBench(const Terminal& terminal, const v1::Report& report, const LoadResult& result,
                const LoadFigures& figures, bool open_loop) {
  PrintText(terminal, kBold, report.title(), "", "");
  PrintText(terminal, kPlain, report.summary(), "", "");
  const auto rate = [&](auto count, int digits) {
    return Fixed(figures.PerSecond(static_cast<double>(count)), digits);
  };
  terminal.out << "\n";
  Table table({{"a second"}, {"", true}, {""}});
  table.Add({{"goodput", kBold},
             {rate(figures.good, 2), kBold},
             {std::to_string(figures.good) + " of " + Count(figures.sent, "request"), kDim}});
  table.Add({{"requests", kPlain}, {rate(figures.succeeded, 2), kPlain}, {"that succeeded", kDim}});
  table.Add({{"prompt tokens", kPlain}, {rate(figures.prompt_tokens, 1), kPlain}, {"", kDim}});
  table.Add({{"generated tokens", kPlain}, {rate(figures.generated_tokens, 1), kPlain}, {"", kDim}});
  table.Print(terminal);
  terminal.out << "\n";
  PrintLatencies(terminal, figures, open_loop);
  PrintLoadErrors(terminal, figures);
  PrintLayerShares(terminal, result.routing);
  terminal.out << "\n";
  for (const std::string& note : report.notes()) PrintText(terminal, kDim, note, "• ", "  ");
}

}  // namespace gatehouse::cli
