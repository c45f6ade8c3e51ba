// Trains a model without a server (methods A.6): runs a schedule and its control on a text
// and prints the report.
//
//   training_probe --model DIRECTORY --out DIRECTORY --text FILE [--NAME VALUE]...
//
// Checkpoints and, with --save 1, the trained model lie in --out; a run that was stopped
// goes on from there.  --score 1,2,3 prints, as the last line, the log-probabilities of
// these ids under the saved model as JSON.

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/base/clock.h"
#include "server/base/digest.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/experiments.h"
#include "server/engine/training/plain_forward.h"
#include "server/tokenizer/tokenizer.h"
#include "tests/support/arguments.h"

namespace gatehouse {
namespace {

using testing::Arguments;

absl::StatusOr<std::vector<int>> Ints(const std::string& list) {
  std::vector<int> values;
  for (const absl::string_view part : absl::StrSplit(list, ',', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(part, &values.emplace_back())) return absl::InvalidArgumentError(StrCat("no list: ", list));
  }
  return values;
}

absl::StatusOr<ExperimentSpec> SpecOf(const Arguments& arguments) {
  ExperimentSpec spec;
  spec.options.window_tokens = arguments.Int("window");
  spec.options.fit_tokens = arguments.Int("fit-tokens");
  spec.options.report_tokens = arguments.Int("report-tokens");
  spec.options.seed = static_cast<uint64_t>(arguments.Int("seed"));
  TrainingMethod method;
  const std::string& schedule = arguments["schedule"];
  if (schedule == "two-phase") method.schedule = TrainingSchedule::kTwoPhase;
  if (schedule == "routing") method.schedule = TrainingSchedule::kRouting;
  GH_ASSIGN_OR_RETURN(method.order, Ints(arguments["order"]));
  method.steps_per_layer = arguments.Int("steps-per-layer");
  method.final_steps = arguments.Int("final-steps");
  method.batch_sequences = arguments.Int("batch");
  method.learning_rate = std::stod(arguments["learning-rate"]);
  method.gate_learning_rate = std::stod(arguments["gate-learning-rate"]);
  method.gate_pressure = std::stod(arguments["gate-pressure"]);
  method.save_model = arguments.Int("save") != 0;
  spec.method = method;
  return spec;
}

absl::StatusOr<Corpus> ReadCorpus(const std::string& path, const Tokenizer& tokenizer) {
  GH_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  GH_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, tokenizer.Encode(text));
  return Corpus{path.substr(path.find_last_of('/') + 1), Sha256Hex(text), std::move(tokens)};
}

void Print(const ReportTable& table) {
  std::printf("\n%s\n", table.title.c_str());
  size_t rows = 0;
  for (const ReportColumn& column : table.columns) {
    std::printf("%s%s", &column == &table.columns.front() ? "" : "\t", column.name.c_str());
    rows = std::visit([](const auto& cells) { return cells.size(); }, column.cells);
  }
  for (size_t row = 0; row < rows; ++row) {
    const char* separator = "\n";
    for (const ReportColumn& column : table.columns) {
      const auto* numbers = std::get_if<std::vector<double>>(&column.cells);
      if (numbers != nullptr) {
        std::printf("%s%.6g", separator, (*numbers)[row]);
      } else {
        std::printf("%s%s", separator, std::get<std::vector<std::string>>(column.cells)[row].c_str());
      }
      separator = "\t";
    }
  }
  std::printf("\n");
}

absl::Status Score(const std::string& directory, const std::vector<int>& ids) {
  GH_ASSIGN_OR_RETURN(const ModelWeights model, LoadModelWeights(directory, at::kFloat, at::kCPU));
  const at::Tensor row = at::tensor(std::vector<int64_t>(ids.begin(), ids.end()), at::kLong).unsqueeze(0);
  const at::Tensor residual = PlainLayers(model, PlainEmbed(model, row), 0, model.config.layers);
  const at::Tensor scores = -PlainCrossEntropy(model, residual, row).contiguous();
  const float* begin = scores.const_data_ptr<float>();
  std::printf("{\"logprobs\": [%s]}\n", absl::StrJoin(begin, begin + scores.numel(), ", ").c_str());
  return absl::OkStatus();
}

absl::Status Run(const Arguments& arguments) {
  const std::string& directory = arguments["model"];
  GH_ASSIGN_OR_RETURN(const ExperimentSpec spec, SpecOf(arguments));
  GH_ASSIGN_OR_RETURN(const ModelWeights model, LoadModelWeights(directory, at::kFloat, at::kCPU));
  GH_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(directory + "/tokenizer.json"));
  std::vector<Corpus> corpora;
  for (const absl::string_view path : absl::StrSplit(arguments["text"], ',')) {
    GH_ASSIGN_OR_RETURN(corpora.emplace_back(), ReadCorpus(std::string(path), *tokenizer));
  }
  const ProgressFn progress = [](double fraction, std::string_view stage) {
    std::fprintf(stderr, "\r%5.1f%% %-60.*s", 100 * fraction, static_cast<int>(stage.size()), stage.data());
  };
  const std::atomic<bool> cancelled{false};
  const double start = MonotonicSeconds();
  GH_ASSIGN_OR_RETURN(const ExperimentResult result,
                      RunExperiment(model, spec, corpora, arguments["out"], progress, cancelled));
  std::fprintf(stderr, "\n");
  const Report& report = result.report;
  std::printf("%s\n%s\n", report.title.c_str(), report.summary.c_str());
  for (const auto& [name, value] : report.settings) std::printf("  %s: %s\n", name.c_str(), value.c_str());
  for (const std::string& note : report.notes) std::printf("- %s\n", note.c_str());
  for (const ReportTable& table : report.tables) Print(table);
  std::printf("%.1f s\n", MonotonicSeconds() - start);
  GH_ASSIGN_OR_RETURN(const std::vector<int> ids, Ints(arguments["score"]));
  return ids.empty() ? absl::OkStatus() : Score(arguments["out"] + "/model", ids);
}

}  // namespace
}  // namespace gatehouse

int main(int argc, char** argv) {
  const gatehouse::testing::Arguments arguments(argc, argv,
                                                {{"model", ""},
                                                 {"out", ""},
                                                 {"text", ""},
                                                 {"schedule", "progressive"},
                                                 {"order", ""},
                                                 {"steps-per-layer", "50"},
                                                 {"final-steps", "100"},
                                                 {"batch", "4"},
                                                 {"learning-rate", "0"},
                                                 {"gate-learning-rate", "0.001"},
                                                 {"gate-pressure", "0.05"},
                                                 {"window", "0"},
                                                 {"fit-tokens", "0"},
                                                 {"report-tokens", "0"},
                                                 {"seed", "0"},
                                                 {"save", "0"},
                                                 {"score", ""}});
  const absl::Status status = gatehouse::Run(arguments);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
