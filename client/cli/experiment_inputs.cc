#include "client/cli/experiment_inputs.h"

#include <algorithm>
#include <utility>

#include "client/cli/flags.h"
#include "client/cli/operation_run.h"
#include "client/cli/parse.h"

namespace gatehouse::cli {

void ExperimentInputs::DeclareInputs(CLI::App& app) {
  AddModelFlag(app, model);
  AddRepeatable(app, "--corpus", corpora, "A text to measure on, in UTF-8; - reads standard input; repeatable")
      ->type_name("FILE")
      ->required();
  app.add_option_function<std::string>(
         "--layers",
         [this](const std::string& text) {
           for (const uint32_t layer : OrUsageError("--layers", ParseLayers(text))) spec.add_layers(layer);
         },
         "Layers, such as 3,5-8 (default: all)")
      ->type_name("LAYERS");
}

void ExperimentInputs::DeclareMethod(CLI::App& app) {
  const FieldFlags<v1::ExperimentSpec> flags{app, spec, "Method"};
  using Spec = v1::ExperimentSpec;
  flags.Add("--fit-tokens", &Spec::set_fit_tokens, "Tokens for the surrogates (default: 10000)");
  flags.Add("--gate-tokens", &Spec::set_gate_tokens, "Tokens for gates (default: 25000)");
  flags.Add("--select-tokens", &Spec::set_select_tokens, "Tokens for choices (default: 5000)");
  flags.Add("--report-tokens", &Spec::set_report_tokens, "Tokens for the figures reported (default: 5000)");
  flags.Add("--window-tokens", &Spec::set_window_tokens, "Tokens of one block (default: 512, or the context)");
  flags.Add("--sink-positions", &Spec::set_sink_positions, "First positions that always run in full (default: 4)");
  flags.Add("--ridge", &Spec::set_ridge, "Ridge strength of the surrogates (default: 0.01)");
  flags.Add("--bootstrap-resamples", &Spec::set_bootstrap_resamples,
            "Resamples behind every interval (default: 10000)");
  AddSeedFlag(
      app, [this](uint64_t value) { spec.set_seed(value); }, "Seed (default: 0)")
      ->group("Method");
}

absl::StatusOr<ExperimentInputs::Uploaded> ExperimentInputs::Upload(Session& session, std::istream& in) const {
  if (std::count(corpora.begin(), corpora.end(), "-") > 1) {
    return absl::InvalidArgumentError("standard input can be read once: give --corpus - once");
  }
  Uploaded uploaded;
  uploaded.request.set_model(model);
  *uploaded.request.mutable_experiment() = spec;
  if (!spec.resume().empty()) session.call.replica = client::ReplicaOf(spec.resume());
  for (const std::string& path : corpora) {
    const auto corpus = UploadFile(session, path, in);
    if (!corpus.ok()) return corpus.status();
    uploaded.request.mutable_experiment()->add_corpora(corpus->corpus());
    uploaded.corpora.push_back({{"name", corpus->corpus()}, {"size_bytes", corpus->size_bytes()}});
  }
  return uploaded;
}

}  // namespace gatehouse::cli
