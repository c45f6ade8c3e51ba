#ifndef GATEHOUSE_TESTS_ENGINE_ANALYSIS_EXPERIMENT_RUN_H_
#define GATEHOUSE_TESTS_ENGINE_ANALYSIS_EXPERIMENT_RUN_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/base/strings.h"
#include "server/engine/analysis/experiments.h"
#include "tests/support/planted_model.h"

namespace gatehouse::testing {

// Experiments on the planted model, and their reports taken apart.

constexpr int64_t kCorpusTokens = 9'000;

inline ModelWeights Load(const PlantedOptions& options = {}) {
  const std::string directory =
      ::testing::TempDir() + "/experiment-" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
  EXPECT_TRUE(WritePlantedModel(directory, options, 100).ok());
  auto model = LoadModelWeights(directory, at::kFloat, at::kCPU);
  EXPECT_TRUE(model.ok()) << model.status();
  std::filesystem::remove_all(directory);
  return *std::move(model);
}

inline Corpus Text(uint64_t seed, int64_t tokens = kCorpusTokens, std::string label = "planted") {
  return {std::move(label), "abc", PlantedCorpus(tokens, seed)};
}

inline ExperimentSpec Spec(ExperimentMethod method, int resamples = 500) {
  ExperimentSpec spec;
  spec.method = std::move(method);
  spec.options.bootstrap_resamples = resamples;
  return spec;
}

inline absl::StatusOr<ExperimentResult> RunOn(const ModelWeights& model, const ExperimentSpec& spec,
                                              const std::vector<Corpus>& corpora,
                                              const ProgressFn& progress = nullptr) {
  const std::atomic<bool> cancelled{false};
  return RunExperiment(model, spec, corpora, "", progress, cancelled);
}

inline const ReportTable& Table(const ExperimentResult& result, const std::string& name) {
  for (const ReportTable& table : result.report.tables) {
    if (table.name == name) return table;
  }
  ADD_FAILURE() << "no table " << name;
  return result.report.tables.front();
}

template <typename T>
const std::vector<T>& Cells(const ReportTable& table, const std::string& name) {
  for (const ReportColumn& column : table.columns) {
    if (column.name == name) return std::get<std::vector<T>>(column.cells);
  }
  ADD_FAILURE() << "no column " << name;
  return std::get<std::vector<T>>(table.columns.front().cells);
}
inline const std::vector<double>& Numbers(const ReportTable& table, const std::string& name) {
  return Cells<double>(table, name);
}
inline const std::vector<std::string>& Strings(const ReportTable& table, const std::string& name) {
  return Cells<std::string>(table, name);
}

// What every reader of reports relies on.
inline void ExpectSound(const ExperimentResult& result) {
  const Report& report = result.report;
  EXPECT_FALSE(report.title.empty());
  EXPECT_FALSE(report.summary.empty());
  EXPECT_FALSE(report.settings.empty());
  EXPECT_FALSE(report.notes.empty());
  EXPECT_FALSE(report.plots.empty());
  std::set<std::string> arrays;
  for (const ReportTable& table : report.tables) {
    std::set<std::string> names;
    std::set<size_t> sizes;
    for (const ReportColumn& column : table.columns) {
      EXPECT_TRUE(names.insert(column.name).second) << table.name << " " << column.name;
      std::visit([&](const auto& cells) { sizes.insert(cells.size()); }, column.cells);
    }
    EXPECT_EQ(sizes.size(), 1u) << table.name;
  }
  for (const ReportPlot& plot : report.plots) {
    const ReportTable& table = Table(result, plot.table);
    for (const std::string& name : {plot.x, plot.y, plot.low, plot.high, plot.series, plot.label}) {
      const auto has = [&](const ReportColumn& column) { return column.name == name; };
      EXPECT_TRUE(name.empty() || std::any_of(table.columns.begin(), table.columns.end(), has)) << name;
    }
  }
  for (const ReportArray& array : result.arrays) {
    EXPECT_TRUE(arrays.insert(array.name).second) << array.name;
    int64_t size = 1;
    for (const int64_t dimension : array.shape) size *= dimension;
    std::visit([&](const auto& values) { EXPECT_EQ(static_cast<int64_t>(values.size()), size) << array.name; },
               array.values);
  }
}

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_ENGINE_ANALYSIS_EXPERIMENT_RUN_H_
