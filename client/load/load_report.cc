#include "client/load/load_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "client/utf8.h"

namespace gatehouse::client {
namespace {

constexpr int kIntervals = 40;  // of the timeline, about

// A table that grows by its columns.
class TableBuilder {
 public:
  TableBuilder(v1::Report& report, const char* name, const char* title, const char* description)
      : table_(*report.add_tables()) {
    table_.set_name(name);
    table_.set_title(title);
    table_.set_description(description);
  }
  void Add(const char* name, const char* description, const std::vector<double>& values) {
    auto& numbers = *Column(name, description).mutable_numbers();
    for (const double value : values) numbers.add_values(value);
  }
  void Add(const char* name, const char* description, const std::vector<std::string>& values) {
    auto& strings = *Column(name, description).mutable_strings();
    for (const std::string& value : values) strings.add_values(ReplaceInvalidUtf8(value));
  }

 private:
  v1::ReportColumn& Column(const char* name, const char* description) {
    v1::ReportColumn& column = *table_.add_columns();
    column.set_name(name);
    column.set_description(description);
    return column;
  }
  v1::ReportTable& table_;
};

v1::ReportPlot& AddPlot(v1::Report& report, v1::ReportPlot::Kind kind, const char* table, const char* x,
                        const char* y) {
  v1::ReportPlot& plot = *report.add_plots();
  plot.set_kind(kind);
  plot.set_table(table);
  plot.set_x(x);
  plot.set_y(y);
  return plot;
}

void AddSummary(const LoadFigures& figures, v1::Report& report) {
  const std::vector<std::pair<std::string, double>> rows = {
      {"goodput, requests a second", figures.PerSecond(static_cast<double>(figures.good))},
      {"requests a second", figures.PerSecond(static_cast<double>(figures.succeeded))},
      {"prompt tokens a second", figures.PerSecond(static_cast<double>(figures.prompt_tokens))},
      {"generated tokens a second", figures.PerSecond(static_cast<double>(figures.generated_tokens))},
      {"requests sent", static_cast<double>(figures.sent)},
      {"requests that succeeded", static_cast<double>(figures.succeeded)},
      {"requests that kept every objective", static_cast<double>(figures.good)},
      {"requests that failed", static_cast<double>(figures.failed)},
      {"requests cut short by the user", static_cast<double>(figures.unfinished)},
      {"prompt tokens", static_cast<double>(figures.prompt_tokens)},
      {"generated tokens", static_cast<double>(figures.generated_tokens)},
      {"seconds", figures.seconds}};
  std::vector<std::string> names;
  std::vector<double> values;
  for (const auto& [name, value] : rows) {
    names.push_back(name);
    values.push_back(value);
  }
  TableBuilder table(report, "summary", "What the server did",
                     "Rates are over the whole load, to the last call's end.");
  table.Add("figure", "", names);
  table.Add("value", "", values);
}

using Measure = std::pair<const char*, const Quantiles*>;

void AddLatency(const LoadFigures& figures, bool open_loop, v1::Report& report) {
  std::vector<Measure> measures = {{"first token", &figures.first_token},
                                   {"between tokens", &figures.inter_token},
                                   {"per token, mean of a request", &figures.time_per_token},
                                   {"end to end", &figures.end_to_end},
                                   {"queueing at the server", &figures.queue}};
  if (open_loop) measures.emplace_back("sent late by", &figures.lateness);
  std::vector<std::string> names;
  std::vector<double> p50, p90, p99, max, mean, count;
  for (const auto& [name, quantiles] : measures) {
    names.push_back(name);
    p50.push_back(1000 * quantiles->p50);
    p90.push_back(1000 * quantiles->p90);
    p99.push_back(1000 * quantiles->p99);
    max.push_back(1000 * quantiles->max);
    mean.push_back(1000 * quantiles->mean);
    count.push_back(static_cast<double>(quantiles->count));
  }
  TableBuilder table(report, "latency", "Latency", "In milliseconds, as the client measured it.");
  table.Add("latency", "", names);
  table.Add("p50", "median, milliseconds", p50);
  table.Add("p90", "90th percentile, milliseconds", p90);
  table.Add("p99", "99th percentile, milliseconds", p99);
  table.Add("max", "milliseconds", max);
  table.Add("mean", "milliseconds", mean);
  table.Add("count", "how many were measured", count);
}

void AddErrors(const LoadFigures& figures, v1::Report& report) {
  if (figures.errors.empty()) return;
  std::vector<std::string> codes, reasons, messages;
  std::vector<double> counts;
  for (const auto& [kind, error] : figures.errors) {
    codes.push_back(kind.first);
    reasons.push_back(kind.second);
    counts.push_back(static_cast<double>(error.count));
    messages.push_back(error.message.substr(0, 200));
  }
  TableBuilder table(report, "errors", "Errors", "Calls that failed; none of them is in the latencies end to end.");
  table.Add("code", "gRPC status code", codes);
  table.Add("reason", "the server's stable reason; empty where it gave none", reasons);
  table.Add("calls", "", counts);
  table.Add("message", "of the first", messages);
}

void AddRouting(const RoutingTotals& routing, v1::Report& report) {
  if (routing.layers.empty()) return;
  std::vector<double> layers, linear, ladder, skip, decisions;
  for (size_t layer = 0; layer < routing.layers.size(); ++layer) {
    const RoutingTotals::Layer& counts = routing.layers[layer];
    const auto all = static_cast<double>(counts.all());
    layers.push_back(static_cast<double>(layer));
    linear.push_back(static_cast<double>(counts.linear) / all);
    ladder.push_back(static_cast<double>(counts.ladder) / all);
    skip.push_back(static_cast<double>(counts.skip) / all);
    decisions.push_back(all);
  }
  TableBuilder table(report, "routing", "Routing by layer", "Of all tokens of the calls that succeeded.");
  table.Add("layer", "", layers);
  table.Add("linear", "share of tokens that took the linear surrogate", linear);
  table.Add("ladder", "share of tokens that took the ladder", ladder);
  table.Add("skip", "share of tokens that skipped the MLP", skip);
  table.Add("tokens", "counted in this layer", decisions);
}

void AddRoutingPlot(const RoutingTotals& routing, v1::Report& report) {
  if (routing.layers.empty()) return;
  AddPlot(report, v1::ReportPlot::KIND_BAR, "routing", "layer", "linear")
      .set_title("Share of tokens that went linear, by layer");
}

void AddDistribution(const LoadResult& result, v1::Report& report) {
  std::vector<double> first, gaps, whole;
  for (const CallRecord& call : result.calls) {
    if (call.first_token.has_value()) first.push_back(*call.first_token - call.intended);
    gaps.insert(gaps.end(), call.gaps.begin(), call.gaps.end());
    if (call.ok()) whole.push_back(call.ended - call.intended);
  }
  std::vector<std::string> names;
  std::vector<double> shares, values;
  const std::vector<std::pair<const char*, std::vector<double>*>> samples = {
      {"first token", &first}, {"between tokens", &gaps}, {"end to end", &whole}};
  for (const auto& [name, sample] : samples) {
    std::sort(sample->begin(), sample->end());
    if (sample->empty()) continue;
    for (int percent = 1; percent <= 100; ++percent) {
      names.push_back(name);
      shares.push_back(percent / 100.0);
      values.push_back(1000 * QuantileOf(*sample, percent / 100.0));
    }
  }
  if (names.empty()) return;
  TableBuilder table(report, "distribution", "Distribution of latencies", "");
  table.Add("latency", "", names);
  table.Add("milliseconds", "at most this many", values);
  table.Add("share", "share of what was measured", shares);
  v1::ReportPlot& plot = AddPlot(report, v1::ReportPlot::KIND_LINE, "distribution", "milliseconds", "share");
  plot.set_series("latency");
  plot.set_log_x(true);
  plot.set_title("How many were how fast");
  plot.set_caption("The share of requests, and of gaps between tokens, that took at most so many milliseconds.");
}

struct Interval {
  size_t sent = 0, ended = 0;
  double tokens = 0;
  std::vector<double> first_tokens;
};

void AddTimeline(const LoadResult& result, v1::Report& report) {
  if (!(result.seconds > 0)) return;
  // A round number of seconds to the interval.
  double width = 0.1;
  for (const double factor : {2.0, 2.5, 2.0, 2.0, 2.5, 2.0, 2.0, 2.5, 2.0, 2.0, 2.5, 2.0}) {
    if (result.seconds / width > kIntervals) width *= factor;
  }
  std::vector<Interval> intervals(static_cast<size_t>(std::min(result.seconds / width, 100.0 * kIntervals)) + 1);
  const auto at = [&](double seconds) -> Interval& {
    return intervals[std::min(static_cast<size_t>(std::max(seconds, 0.0) / width), intervals.size() - 1)];
  };
  for (const CallRecord& call : result.calls) {
    ++at(call.sent).sent;
    ++at(call.ended).ended;
    if (!call.first_token.has_value()) continue;
    at(call.intended).first_tokens.push_back(*call.first_token - call.intended);
    double time = *call.first_token;
    at(time).tokens += 1;
    for (const float gap : call.gaps) at(time += gap).tokens += 1;
  }
  std::vector<double> times, sent, ended, rates, first;
  for (size_t i = 0; i < intervals.size(); ++i) {
    times.push_back(static_cast<double>(i) * width);
    sent.push_back(static_cast<double>(intervals[i].sent));
    ended.push_back(static_cast<double>(intervals[i].ended));
    rates.push_back(intervals[i].tokens / width);
    std::sort(intervals[i].first_tokens.begin(), intervals[i].first_tokens.end());
    first.push_back(1000 * QuantileOf(intervals[i].first_tokens, 0.9));
  }
  TableBuilder table(report, "timeline", "Over time", "");
  table.Add("seconds", "since the start, where the interval begins", times);
  table.Add("sent", "requests sent", sent);
  table.Add("ended", "requests that ended", ended);
  table.Add("tokens_per_second", "generated tokens a second that arrived", rates);
  table.Add("first_token_p90", "milliseconds to the first token, 90th percentile of the requests due in the interval",
            first);
  AddPlot(report, v1::ReportPlot::KIND_LINE, "timeline", "seconds", "tokens_per_second")
      .set_title("Generated tokens a second");
  AddPlot(report, v1::ReportPlot::KIND_LINE, "timeline", "seconds", "first_token_p90")
      .set_title("Milliseconds to the first token, 90th percentile");
}

std::string Text(const char* form, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), form, value);
  return text;
}

std::string SummaryText(const LoadResult& result, const LoadFigures& figures, const LoadProtocol& protocol) {
  std::string text =
      std::to_string(figures.sent) + " requests in " + Text("%.1f s", figures.seconds) + ", " + protocol.workload +
      ": goodput " + Text("%.2f", figures.PerSecond(static_cast<double>(figures.good))) + " requests a second, " +
      Text("%.1f", figures.PerSecond(static_cast<double>(figures.generated_tokens))) + " generated tokens a second";
  const RoutingTotals::Layer sum = result.routing.Sum();
  if (sum.all() > 0) {
    text += ", " + Text("%.1f", 100 * static_cast<double>(sum.linear) / static_cast<double>(sum.all())) + "% linear";
  }
  text += figures.failed == 0 ? ", no errors." : ", " + std::to_string(figures.failed) + " errors.";
  if (result.interrupted) text += " Interrupted: the load was not finished.";
  return text;
}

void AddNotes(const LoadFigures& figures, const LoadProtocol& protocol, v1::Report& report) {
  if (protocol.open_loop) {
    report.add_notes(
        "Requests were sent at their times whether or not earlier ones had ended, and latencies count from when a "
        "request was to be sent: a client that falls behind does not hide a server's delay. Requests left " +
        (figures.lateness.count == 0 ? std::string("–") : Text("%.1f", 1000 * figures.lateness.p99)) +
        " ms late or less in 99 of 100 cases.");
  } else {
    report.add_notes(
        "In a closed loop each request waits for another to end, so a slow server is asked less. Its latencies say "
        "nothing about a fixed rate of arrivals; --rate measures that.");
  }
  report.add_notes(
      "Latencies to the first token are of all requests that got one, end to end of those that succeeded; those that "
      "failed, at their deadlines too, are counted among the errors.");
  for (const std::string& note : protocol.notes) report.add_notes(note);
}

}  // namespace

v1::Report MakeLoadReport(const v1::DescribeModelResponse& model, const LoadResult& result, const LoadFigures& figures,
                          const LoadProtocol& protocol) {
  v1::Report report;
  report.set_kind("bench");
  report.set_title("Load on " + model.name());
  report.set_summary(SummaryText(result, figures, protocol));
  report.set_model(model.name());
  report.set_model_fingerprint(model.fingerprint());
  report.set_dtype(model.dtype());
  report.set_created(protocol.created);
  for (const auto& [name, value] : protocol.settings) {
    v1::ReportSetting& setting = *report.add_settings();
    setting.set_name(name);
    setting.set_value(value);
  }
  AddNotes(figures, protocol, report);
  AddSummary(figures, report);
  AddLatency(figures, protocol.open_loop, report);
  AddErrors(figures, report);
  AddRouting(result.routing, report);
  AddDistribution(result, report);
  AddTimeline(result, report);
  AddRoutingPlot(result.routing, report);
  return report;
}

}  // namespace gatehouse::client
