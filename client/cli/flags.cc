#include "client/cli/flags.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <utility>

#include "client/cli/parse.h"

namespace gatehouse::cli {

CLI::Validator WholeNumber(uint64_t most) {
  return CLI::Validator(
      [most](std::string& text) {
        const auto number = ParseWholeNumber(text, most);
        if (!number.ok()) return std::string(number.status().message());
        text = std::to_string(*number);  // without the leading zeros that the parser takes for octal
        return std::string();
      },
      "");
}

CLI::Validator NotEmpty() {
  return CLI::Validator([](std::string& text) { return std::string(text.empty() ? "must not be empty" : ""); }, "");
}

void CheckNumbers(CLI::App& app) {
  const CLI::Validator number(
      [](std::string& text) {
        double value = 0;
        const bool is_number = CLI::detail::lexical_cast(text, value);
        return is_number ? std::string() : "'" + text + "' is not a number";
      },
      "");
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type == "UINT") option->transform(WholeNumber(std::numeric_limits<uint32_t>::max()));
    if (type == "FLOAT") option->check(number);
  }
  for (CLI::App* sub : app.get_subcommands([](CLI::App*) { return true; })) CheckNumbers(*sub);
}

CLI::Option* AddSeedFlag(CLI::App& app, std::function<void(uint64_t)> set, const char* help) {
  return app.add_option_function<uint64_t>("--seed", std::move(set), help)
      ->transform(WholeNumber(std::numeric_limits<uint64_t>::max()))
      ->type_name("SEED");
}

std::string ReadFile(const char* flag, const std::string& path, std::istream& in) {
  if (path == "-") return {std::istreambuf_iterator<char>(in), {}};
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  // Stops without a character in an empty file; a directory opens, and fails here.
  if (file && file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();
  if (!file.is_open() || file.bad()) {
    throw CLI::ValidationError(flag, "cannot read " + path + ": " + std::strerror(errno));
  }
  return text.str();
}

CLI::Option* AddRepeatable(CLI::App& app, const char* flag, std::vector<std::string>& values, const char* help) {
  return app.add_option(flag, values, help)->allow_extra_args(false);
}

void AddModelFlag(CLI::App& app, std::string& model) {
  app.add_option("-m,--model", model, "The model's name, as `gatehouse models` lists it")
      ->required()
      ->envname("GATEHOUSE_MODEL");
}

void GatingFlags::Add(CLI::App& app) {
  constexpr char kGroup[] = "Gating";
  mode_option_ =
      app.add_option("-g,--gating", mode_,
                     "full: every MLP in full; linear: its surrogate; ladder: its surrogate with some "
                     "neurons kept exact; gated: as each token's gate says; quorum: in full where fewer than "
                     "--quorum of the layer's consensus neurons fire")
          ->check(CLI::IsMember({"full", "linear", "gated", "ladder", "quorum"}))
          ->capture_default_str()
          ->group(kGroup);
  app.add_option("--operating-point", operating_point_,
                 "Gate the whole model to a budget, such as 1%: one of those that `gatehouse models NAME` lists")
      ->check(NotEmpty())
      ->group(kGroup);
  app.add_option("-t,--threshold", threshold_,
                 "A gated token goes linear where its gate's probability exceeds this, in [0, 1]; 1 is the full model "
                 "(default: 0.5)")
      ->group(kGroup);
  app.add_option("--ladder-threshold", ladder_threshold_,
                 "Of the tokens that do not go linear, those whose probability exceeds this take the layer's ladder, "
                 "in [0, 1] (default: 1, none)")
      ->group(kGroup);
  app.add_option("--layers", layers_,
                 "Layers the policy applies to, such as 3,5-8 (default: gated takes those the "
                 "calibration calls gateable, ladder those that have one, linear all)")
      ->check(NotEmpty())
      ->group(kGroup);
  AddRepeatable(app, "--layer-threshold", layer_thresholds_, "Threshold of single layers, such as 5=0.7 or 8-11=0.9")
      ->group(kGroup);
  app.add_option("--quorum", quorum_,
                 "How many of a layer's consensus neurons must fire for a token to leave the full MLP, in [1, 64]")
      ->group(kGroup);
  app.add_option("--quorum-path", quorum_path_, "What it takes then: linear (default), or skip: no MLP at all")
      ->check(CLI::IsMember({"linear", "skip"}))
      ->group(kGroup);
  app.add_option("--calibration", calibration_, "The calibration to use (default: the model's active one)")
      ->check(NotEmpty())
      ->group(kGroup);
}

v1::GatingPolicy GatingFlags::Build() const {
  v1::GatingPolicy policy;
  if (mode_option_->count() > 0) {
    policy.set_mode(mode_ == "linear"   ? v1::GatingPolicy::MODE_LINEAR
                    : mode_ == "gated"  ? v1::GatingPolicy::MODE_GATED
                    : mode_ == "ladder" ? v1::GatingPolicy::MODE_LADDER
                    : mode_ == "quorum" ? v1::GatingPolicy::MODE_QUORUM
                                        : v1::GatingPolicy::MODE_FULL);
  } else if (!operating_point_.empty()) {
    // It says how to gate, so it need not be said that it is to be gated.
    policy.set_mode(v1::GatingPolicy::MODE_GATED);
  }
  if (threshold_.has_value()) policy.set_threshold(*threshold_);
  if (ladder_threshold_.has_value()) policy.set_ladder_threshold(*ladder_threshold_);
  if (!layers_.empty()) {
    for (uint32_t layer : OrUsageError("--layers", ParseLayers(layers_))) policy.add_layers(layer);
  }
  for (const std::string& text : layer_thresholds_) {
    for (const auto& [layer, threshold] : OrUsageError("--layer-threshold", ParseLayerThreshold(text))) {
      if (!policy.mutable_layer_thresholds()->insert({layer, threshold}).second) {
        throw CLI::ValidationError("--layer-threshold", "layer " + std::to_string(layer) + " is given twice");
      }
    }
  }
  policy.set_calibration(calibration_);
  policy.set_operating_point(operating_point_);
  policy.set_quorum(quorum_);
  if (!quorum_path_.empty()) {
    policy.set_quorum_path(quorum_path_ == "skip" ? v1::MLP_PATH_SKIP : v1::MLP_PATH_LINEAR);
  }
  return policy;
}

void RecordFlags::Add(CLI::App& app) {
  app.add_option("--record", records_,
                 "What to record of each token, in every layer: any of routing,nonlinearity,consensus,gate")
      ->check(NotEmpty())
      ->group("Output");
}

v1::TokenRecords RecordFlags::Build() const {
  v1::TokenRecords records;
  if (records_.empty()) return records;
  for (const std::string& word :
       OrUsageError("--record", ParseWords(records_, {"routing", "nonlinearity", "consensus", "gate"}))) {
    if (word == "routing") records.set_routing(true);
    if (word == "nonlinearity") records.set_nonlinearity(true);
    if (word == "consensus") records.set_consensus(true);
    if (word == "gate") records.set_gate(true);
  }
  return records;
}

void InputFlags::Add(CLI::App& app) {
  constexpr char kGroup[] = "Input";
  AddRepeatable(app, names_.text, texts_, "The text, in UTF-8")->type_name("TEXT")->group(kGroup);
  AddRepeatable(app, names_.file, files_, "Read the text from a file, or from standard input for -")
      ->type_name("FILE")
      ->group(kGroup);
  AddRepeatable(app, names_.token_ids, token_ids_, "Token ids in place of text, such as 5,6,7")
      ->type_name("IDS")
      ->group(kGroup);
  app.add_flag("--plain-text", plain_text_, "Text that spells a special token, such as <|endoftext|>, stays text")
      ->group(kGroup);
}

std::vector<v1::TextInput> InputFlags::Build(std::istream& in) const {
  std::vector<v1::TextInput> inputs;
  const auto add_text = [&](const std::string& text) {
    v1::TextInput& input = inputs.emplace_back();
    input.set_text(text);
    input.set_plain_text(plain_text_);
  };
  for (const std::string& text : texts_) add_text(text);
  for (const std::string& path : files_) add_text(ReadFile(names_.file, path, in));
  for (const std::string& ids : token_ids_) {
    auto& list = *inputs.emplace_back().mutable_token_ids();
    for (int32_t id : OrUsageError(names_.token_ids, ParseTokenIds(ids))) list.add_ids(id);
  }
  if (inputs.empty()) {
    throw CLI::ValidationError(
        std::string("one of ") + names_.text + ", " + names_.file + " and " + names_.token_ids + " is needed",
        CLI::ExitCodes::RequiredError);
  }
  return inputs;
}

v1::TextInput InputFlags::BuildOne(std::istream& in) const {
  std::vector<v1::TextInput> inputs = Build(in);
  if (inputs.size() > 1) {
    throw CLI::ValidationError(std::string("only one of ") + names_.text + ", " + names_.file + " and " +
                                   names_.token_ids + " can be given, once",
                               CLI::ExitCodes::ArgumentMismatch);
  }
  return std::move(inputs.front());
}

}  // namespace gatehouse::cli
