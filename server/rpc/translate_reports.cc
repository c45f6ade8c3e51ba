#include <algorithm>

#include "server/rpc/grpc_status.h"
#include "server/rpc/translate.h"

namespace gatehouse {
namespace {

// A piece of a table is closed once it holds this much; the last row may exceed it.
constexpr size_t kPieceBytes = size_t{256} << 10;
// A cell holds no more, so that a row stays far below a message's bound.
constexpr size_t kMaxCellBytes = size_t{4} << 10;

v1::ReportPlot::Kind KindOf(ReportPlot::Kind kind) {
  switch (kind) {
    case ReportPlot::Kind::kLine:
      return v1::ReportPlot::KIND_LINE;
    case ReportPlot::Kind::kBar:
      return v1::ReportPlot::KIND_BAR;
    case ReportPlot::Kind::kScatter:
      return v1::ReportPlot::KIND_SCATTER;
  }
  return v1::ReportPlot::KIND_UNSPECIFIED;
}

v1::ReportPlot ToProto(const ReportPlot& plot) {
  v1::ReportPlot proto;
  proto.set_kind(KindOf(plot.kind));
  proto.set_title(ValidUtf8(plot.title));
  proto.set_caption(ValidUtf8(plot.caption));
  proto.set_table(ValidUtf8(plot.table));
  proto.set_x(ValidUtf8(plot.x));
  proto.set_y(ValidUtf8(plot.y));
  proto.set_low(ValidUtf8(plot.low));
  proto.set_high(ValidUtf8(plot.high));
  proto.set_series(ValidUtf8(plot.series));
  proto.set_label(ValidUtf8(plot.label));
  proto.set_log_x(plot.log_x);
  proto.set_log_y(plot.log_y);
  return proto;
}

std::string_view Cell(const std::string& text) { return std::string_view(text).substr(0, kMaxCellBytes); }

size_t BytesOfRow(const ReportTable& table, size_t row) {
  constexpr size_t kTagBytes = 4;
  size_t bytes = 0;
  for (const ReportColumn& column : table.columns) {
    const auto* const strings = std::get_if<std::vector<std::string>>(&column.cells);
    // A byte that is not UTF-8 becomes three.
    bytes += strings == nullptr ? sizeof(double) : 3 * Cell((*strings)[row]).size() + kTagBytes;
  }
  return bytes;
}

}  // namespace

size_t RowCount(const ReportTable& table) {
  if (table.columns.empty()) return 0;
  return std::visit([](const auto& cells) { return cells.size(); }, table.columns.front().cells);
}

v1::Report ToProtoWithoutTables(const Report& report) {
  v1::Report proto;
  proto.set_kind(ValidUtf8(report.kind));
  proto.set_title(ValidUtf8(report.title));
  proto.set_summary(ValidUtf8(report.summary));
  proto.set_model(ValidUtf8(report.model));
  proto.set_model_fingerprint(ValidUtf8(report.model_fingerprint));
  proto.set_dtype(ValidUtf8(report.dtype));
  proto.set_created(ValidUtf8(report.created));
  for (const ReportCorpus& corpus : report.corpora) {
    v1::ReportCorpus& entry = *proto.add_corpora();
    entry.set_label(ValidUtf8(corpus.label));
    entry.set_sha256(ValidUtf8(corpus.sha256));
    entry.set_tokens(static_cast<uint64_t>(corpus.tokens));
  }
  for (const auto& [name, value] : report.settings) {
    v1::ReportSetting& entry = *proto.add_settings();
    entry.set_name(ValidUtf8(name));
    entry.set_value(ValidUtf8(value));
  }
  for (const std::string& note : report.notes) proto.add_notes(ValidUtf8(note));
  for (const ReportPlot& plot : report.plots) *proto.add_plots() = ToProto(plot);
  return proto;
}

size_t AddRows(const ReportTable& table, size_t begin, v1::ReportTable& proto) {
  const size_t rows = RowCount(table);
  size_t end = begin;
  for (size_t bytes = 0; end < rows && bytes < kPieceBytes; ++end) bytes += BytesOfRow(table, end);
  proto.set_name(ValidUtf8(table.name));
  const bool first = begin == 0;
  if (first) {
    proto.set_title(ValidUtf8(table.title));
    proto.set_description(ValidUtf8(table.description));
  }
  for (const ReportColumn& column : table.columns) {
    v1::ReportColumn& piece = *proto.add_columns();
    piece.set_name(ValidUtf8(column.name));
    if (first) piece.set_description(ValidUtf8(column.description));
    if (const auto* const numbers = std::get_if<std::vector<double>>(&column.cells); numbers != nullptr) {
      auto& values = *piece.mutable_numbers()->mutable_values();
      values.Add(numbers->begin() + static_cast<std::ptrdiff_t>(begin),
                 numbers->begin() + static_cast<std::ptrdiff_t>(end));
    } else {
      auto& values = *piece.mutable_strings();
      for (size_t row = begin; row < end; ++row) {
        values.add_values(ValidUtf8(Cell(std::get<std::vector<std::string>>(column.cells)[row])));
      }
    }
  }
  return end;
}

}  // namespace gatehouse
