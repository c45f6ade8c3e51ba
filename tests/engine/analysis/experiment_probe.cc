// Runs an experiment on a model without a server and prints its report, with its arrays, as
// JSON.
//
//   experiment_probe MODEL_DIRECTORY KIND [--text FILE]... [--tokens FILE]... [--NAME VALUE]...
//
// KIND is any experiment but training.  A token file holds little-endian int32 ids.  Options:
// --layers 0,3, --fit-tokens, --gate-tokens, --select-tokens, --report-tokens,
// --window-tokens, --resamples, --seed; --clusters and --components of the methods that have
// them; and --splits FILE, where the blocks of each corpus's splits go as JSON.

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "server/base/digest.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/experiment_setup.h"
#include "server/engine/analysis/experiments.h"
#include "server/tokenizer/tokenizer.h"

namespace gatehouse {
namespace {

using Json = nlohmann::json;

struct Arguments {
  std::shared_ptr<const Tokenizer> tokenizer;
  ExperimentSpec spec;
  std::vector<Corpus> corpora;
  std::string splits;  // file
};

absl::StatusOr<int64_t> Number(const std::string& name, const std::string& text) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return absl::InvalidArgumentError(StrCat(name, " is not a number: ", text));
  }
  return value;
}

absl::StatusOr<Corpus> ReadCorpus(const std::string& path, const Tokenizer* tokenizer) {
  GH_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  Corpus corpus{path.substr(path.rfind('/') + 1), Sha256Hex(bytes), {}};
  if (tokenizer != nullptr) {
    GH_ASSIGN_OR_RETURN(corpus.tokens, tokenizer->Encode(bytes));
  } else {
    corpus.tokens.resize(bytes.size() / sizeof(int32_t));
    std::memcpy(corpus.tokens.data(), bytes.data(), corpus.tokens.size() * sizeof(int32_t));
  }
  return corpus;
}

absl::StatusOr<ExperimentMethod> Method(std::string_view kind) {
  for (const ExperimentMethod& method :
       {ExperimentMethod(LinearizationCostMethod{}), ExperimentMethod(GateSweepMethod{}),
        ExperimentMethod(RoutabilityMethod{}), ExperimentMethod(NoFlyMethod{}), ExperimentMethod(NonlinearityMethod{}),
        ExperimentMethod(PolynomialProbeMethod{}), ExperimentMethod(ConsensusMethod{}),
        ExperimentMethod(AblationMethod{}), ExperimentMethod(QuorumMethod{})}) {
    if (ExperimentKind(method) == kind) return method;
  }
  return absl::InvalidArgumentError(StrCat("unknown kind: ", kind));
}

absl::StatusOr<Arguments> Read(const std::vector<std::string>& words) {
  Arguments arguments;
  ExperimentOptions& options = arguments.spec.options;
  GH_ASSIGN_OR_RETURN(arguments.spec.method, Method(words[1]));
  GH_ASSIGN_OR_RETURN(arguments.tokenizer, Tokenizer::Load(words[0] + "/tokenizer.json"));
  const Tokenizer* tokenizer = arguments.tokenizer.get();
  arguments.spec.token_text = [tokenizer](int32_t token) { return std::string(tokenizer->TokenBytes(token)); };
  for (size_t i = 2; i + 1 < words.size(); i += 2) {
    const std::string &name = words[i], &value = words[i + 1];
    if (name == "--text" || name == "--tokens") {
      GH_ASSIGN_OR_RETURN(Corpus corpus, ReadCorpus(value, name == "--text" ? tokenizer : nullptr));
      arguments.corpora.push_back(std::move(corpus));
    } else if (name == "--splits") {
      arguments.splits = value;
    } else if (name == "--layers") {
      for (const auto& layer : absl::StrSplit(value, ',')) {
        GH_ASSIGN_OR_RETURN(const int64_t index, Number(name, std::string(layer)));
        options.layers.push_back(static_cast<int>(index));
      }
    } else {
      GH_ASSIGN_OR_RETURN(const int64_t number, Number(name, value));
      if (name == "--fit-tokens") options.fit_tokens = number;
      if (name == "--gate-tokens") options.gate_tokens = number;
      if (name == "--select-tokens") options.select_tokens = number;
      if (name == "--report-tokens") options.report_tokens = number;
      if (name == "--window-tokens") options.window_tokens = static_cast<int>(number);
      if (name == "--resamples") options.bootstrap_resamples = static_cast<int>(number);
      if (name == "--seed") options.seed = static_cast<uint64_t>(number);
      const auto nonlinearity = std::get_if<NonlinearityMethod>(&arguments.spec.method);
      if (name == "--clusters" && nonlinearity != nullptr) nonlinearity->clusters = static_cast<int>(number);
      const auto polynomial = std::get_if<PolynomialProbeMethod>(&arguments.spec.method);
      if (name == "--components" && polynomial != nullptr) polynomial->components = static_cast<int>(number);
    }
  }
  return arguments;
}

// Numbers that do not exist are null.
Json ToJson(const ExperimentResult& result) {
  Json tables = Json::object(), arrays = Json::object();
  for (const ReportTable& table : result.report.tables) {
    for (const ReportColumn& column : table.columns) {
      std::visit([&](const auto& cells) { tables[table.name][column.name] = cells; }, column.cells);
    }
  }
  for (const ReportArray& array : result.arrays) {
    Json& entry = arrays[array.name];
    entry["shape"] = array.shape;
    std::visit([&](const auto& values) { entry["values"] = values; }, array.values);
  }
  return {{"kind", result.report.kind},   {"summary", result.report.summary}, {"settings", result.report.settings},
          {"notes", result.report.notes}, {"tables", std::move(tables)},      {"arrays", std::move(arrays)}};
}

absl::Status WriteSplits(const Arguments& arguments, const ModelWeights& model) {
  if (arguments.splits.empty()) return absl::OkStatus();
  const ProgressFn progress;
  const std::atomic<bool> cancelled{false};
  const ExperimentContext context{model, arguments.spec.options, arguments.corpora, "", progress, cancelled};
  GH_ASSIGN_OR_RETURN(const std::vector<CorpusPlan> plans, PlanCorpora(context));
  Json json = Json::array();
  for (const CorpusPlan& plan : plans) {
    json.push_back({{"window", plan.splits.window},
                    {"fit", plan.splits.fit},
                    {"gate", plan.splits.gate},
                    {"select", plan.splits.select},
                    {"report", plan.splits.report}});
  }
  return WriteFileAtomically(arguments.splits, json.dump());
}

absl::Status Run(const std::vector<std::string>& words) {
  GH_ASSIGN_OR_RETURN(const Arguments arguments, Read(words));
  GH_ASSIGN_OR_RETURN(const ModelWeights model, LoadModelWeights(words[0], at::kFloat, at::kCPU));
  GH_RETURN_IF_ERROR(WriteSplits(arguments, model));
  const std::atomic<bool> cancelled{false};
  const ProgressFn progress = [](double fraction, std::string_view stage) {
    std::fprintf(stderr, "\r%5.1f%% %-60.*s", 100 * fraction, static_cast<int>(stage.size()), stage.data());
  };
  GH_ASSIGN_OR_RETURN(const ExperimentResult result,
                      RunExperiment(model, arguments.spec, arguments.corpora, "", progress, cancelled));
  std::fprintf(stderr, "\n%s\n", result.report.summary.c_str());
  std::printf("%s\n", ToJson(result).dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace gatehouse

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() < 4 || words.size() % 2 != 0) {
    std::fprintf(
        stderr, "usage: experiment_probe MODEL_DIRECTORY KIND [--text FILE]... [--tokens FILE]... [--NAME VALUE]...\n");
    return 2;
  }
  const absl::Status status = gatehouse::Run(words);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
