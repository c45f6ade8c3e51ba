#ifndef GATEHOUSE_CLIENT_CLI_REPORT_VIEW_H_
#define GATEHOUSE_CLIENT_CLI_REPORT_VIEW_H_

#include <CLI/App.hpp>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/session.h"
#include "client/cli/terminal.h"
#include "gatehouse/v1/reports.pb.h"

namespace gatehouse::cli {

// What is to become of an experiment's report.
struct ReportFlags {
  std::string html, npz;  // files to write; empty: none
  size_t rows = 40;       // of a table that are printed; 0: all

  void Add(CLI::App& app);
};

// Whether the files that the flags name can be written, before there is anything to write.
absl::Status CheckOutputs(const ReportFlags& flags);

// Fetches the report of an operation, and writes the files that the flags name.
absl::StatusOr<v1::Report> TakeReport(Session& session, const std::string& name, const ReportFlags& flags);

// TakeReport, and shows it: as text or JSON.
absl::StatusOr<int> ShowReport(Session& session, const std::string& name, const ReportFlags& flags);

// Wraps the text to the terminal's width; its first line begins with `first`, the others with
// `rest`.
void PrintText(const Terminal& terminal, const Style& style, const std::string& text, const std::string& first,
               const std::string& rest);

// A report as text: what was found, every table, the notes, the protocol.
void PrintReport(const Terminal& terminal, const v1::Report& report, size_t rows);

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_REPORT_VIEW_H_
