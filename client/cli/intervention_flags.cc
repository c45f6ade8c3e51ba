#include "client/cli/intervention_flags.h"

#include <google/protobuf/util/json_util.h>

#include <bit>
#include <charconv>
#include <cstring>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/flags.h"
#include "client/cli/operation_run.h"
#include "client/cli/parse.h"
#include "server/base/npz.h"

namespace gatehouse::cli {
namespace {

static_assert(std::endian::native == std::endian::little, "activations are read as they lie in memory");

// Keeps "0-4000000000" from filling memory; the server allows fewer of each kind.
constexpr size_t kMostIndices = 65536;

constexpr std::pair<const char*, v1::ActivationSite> kSites[] = {{"residual-pre", v1::ACTIVATION_SITE_RESIDUAL_PRE},
                                                                 {"attention-out", v1::ACTIVATION_SITE_ATTENTION_OUT},
                                                                 {"mlp-in", v1::ACTIVATION_SITE_MLP_IN},
                                                                 {"neurons", v1::ACTIVATION_SITE_NEURONS},
                                                                 {"mlp-out", v1::ACTIVATION_SITE_MLP_OUT},
                                                                 {"residual-post", v1::ACTIVATION_SITE_RESIDUAL_POST}};
constexpr std::pair<const char*, v1::MlpPath> kPaths[] = {{"full", v1::MLP_PATH_FULL},
                                                          {"linear", v1::MLP_PATH_LINEAR},
                                                          {"ladder", v1::MLP_PATH_LADDER},
                                                          {"skip", v1::MLP_PATH_SKIP}};

template <typename Number>
std::optional<Number> ToNumber(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// "3,5-8", both ends included, behind an optional `mark` ("L3"), in the order given.
using Indices = google::protobuf::RepeatedField<uint32_t>;
absl::StatusOr<Indices> ParseIndices(std::string_view text, std::string_view mark, const char* wanted) {
  if (!mark.empty() && text.starts_with(mark)) text.remove_prefix(mark.size());
  Indices indices;
  for (const std::string_view part : Split(text, ',')) {
    const size_t dash = part.find('-');
    const auto first = ToNumber<uint32_t>(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : ToNumber<uint32_t>(part.substr(dash + 1));
    if (!first || !last || *first > *last) return NotWanted(part, wanted);
    if (*last - *first >= kMostIndices - static_cast<size_t>(indices.size()))
      return NotWanted(text, "a list this short");
    for (uint64_t index = *first; index <= *last; ++index) indices.Add(static_cast<uint32_t>(index));
  }
  return indices;
}

constexpr char kLayersWanted[] = "layers, such as L3 or L3,5-8";
constexpr char kNeuronsWanted[] = "neurons, such as n12,55";
constexpr char kPositionsWanted[] = "positions, such as @0-4,9";

// Takes "@POSITIONS" off the end of `text` into `message`.
template <typename Message>
absl::Status TakePositions(std::string_view& text, Message& message) {
  const size_t at = text.rfind('@');
  if (at == std::string_view::npos) return absl::OkStatus();
  auto positions = ParseIndices(text.substr(at + 1), "", kPositionsWanted);
  if (!positions.ok()) return positions.status();
  *message.mutable_positions() = *std::move(positions);
  text = text.substr(0, at);
  return absl::OkStatus();
}

template <typename Value, size_t kCount>
std::optional<Value> Find(const std::pair<const char*, Value> (&words)[kCount], std::string_view word) {
  for (const auto& [name, value] : words) {
    if (word == name) return value;
  }
  return std::nullopt;
}

constexpr char kChangeWanted[] =
    "one of zero, mean, scale=NUMBER, set=NUMBER, mlp-zero and path=full|linear|ladder|skip";

// The part before the layers.  True where neurons follow them.
absl::StatusOr<bool> ReadChange(std::string_view text, v1::Intervention& intervention) {
  const size_t sign = text.find('=');
  const std::string_view word = text.substr(0, sign);
  const std::optional<std::string_view> value =
      sign == std::string_view::npos ? std::nullopt : std::optional(text.substr(sign + 1));
  if (word == "mlp-zero" && !value) {
    intervention.mutable_zero_mlp();
    return false;
  }
  if (word == "path" && value) {
    const auto path = Find(kPaths, *value);
    if (!path) return NotWanted(*value, "one of full, linear, ladder and skip");
    intervention.set_force_path(*path);
    return false;
  }
  v1::NeuronChange& neurons = *intervention.mutable_neurons();
  if (word == "zero" && !value) {
    neurons.set_scale(0);
    return true;
  }
  if (word == "mean" && !value) {
    neurons.mutable_mean();
    return true;
  }
  if ((word == "scale" || word == "set") && value) {
    const auto number = ToNumber<float>(*value);
    if (!number) return NotWanted(*value, "a number");
    word == "scale" ? neurons.set_scale(*number) : neurons.set_set(*number);
    return true;
  }
  return NotWanted(text, kChangeWanted);
}

}  // namespace

absl::StatusOr<v1::Intervention> ParseIntervention(const std::string& text) {
  v1::Intervention intervention;
  std::string_view rest = text;
  if (absl::Status status = TakePositions(rest, intervention); !status.ok()) return status;
  const std::vector<std::string_view> parts = Split(rest, ':');
  const auto of_neurons = ReadChange(parts[0], intervention);
  if (!of_neurons.ok()) return of_neurons.status();
  if (parts.size() != (*of_neurons ? 3u : 2u)) {
    return NotWanted(text, *of_neurons ? "CHANGE:LAYERS:NEURONS[@POSITIONS], such as zero:L3:n12,55"
                                       : "CHANGE:LAYERS[@POSITIONS], such as mlp-zero:L3");
  }
  auto layers = ParseIndices(parts[1], "L", kLayersWanted);
  if (!layers.ok()) return layers.status();
  *intervention.mutable_layers() = *std::move(layers);
  if (!*of_neurons) return intervention;
  auto neurons = ParseIndices(parts[2], "n", kNeuronsWanted);
  if (!neurons.ok()) return neurons.status();
  *intervention.mutable_neurons()->mutable_neurons() = *std::move(neurons);
  return intervention;
}

absl::StatusOr<v1::ActivationCapture> ParseCapture(const std::string& text) {
  v1::ActivationCapture capture;
  std::string_view rest = text;
  if (absl::Status status = TakePositions(rest, capture); !status.ok()) return status;
  const std::vector<std::string_view> parts = Split(rest, ':');
  if (parts.size() > 2) return NotWanted(text, "SITE[:LAYERS][@POSITIONS], such as mlp-out:L3");
  const auto site = Find(kSites, parts[0]);
  if (!site) {
    return NotWanted(parts[0], "one of residual-pre, attention-out, mlp-in, neurons, mlp-out and residual-post");
  }
  capture.set_site(*site);
  if (parts.size() < 2) return capture;
  auto layers = ParseIndices(parts[1], "L", kLayersWanted);
  if (!layers.ok()) return layers.status();
  *capture.mutable_layers() = *std::move(layers);
  return capture;
}

absl::StatusOr<std::vector<v1::Intervention>> ParseInterventions(const std::string& json) {
  const Json list = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) return absl::InvalidArgumentError("the file holds no JSON list of interventions");
  std::vector<v1::Intervention> interventions;
  for (const Json& entry : list) {
    const std::string text = entry.dump(-1, ' ', false, Json::error_handler_t::replace);
    const auto status = google::protobuf::util::JsonStringToMessage(text, &interventions.emplace_back());
    if (status.ok()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("entry ", interventions.size() - 1, " is no intervention: ", std::string(status.message())));
  }
  return interventions;
}

std::string SiteName(v1::ActivationSite site) {
  for (const auto& [name, value] : kSites) {
    if (value == site) return name;
  }
  return "unspecified";
}

void InterventionFlags::Add(CLI::App& app) {
  constexpr char kGroup[] = "Interventions";
  AddRepeatable(app, "--intervene", interventions_,
                "Change what the model computes: zero:L3:n12,55 (neurons 12 and 55 of layer 3), mean:L3:n12, "
                "scale=0.5:L3:n12, set=1.2:L3:n12, mlp-zero:L3, path=linear:L2-4; @0-4 behind it: at these positions "
                "only")
      ->type_name("CHANGE:LAYERS[:NEURONS][@POSITIONS]")
      ->group(kGroup);
  app.add_option("--interventions", file_, "Changes from a file, a JSON list; - is standard input")
      ->type_name("FILE")
      ->group(kGroup);
  AddRepeatable(app, "--capture", captures_,
                "Have activations sent: residual-pre, attention-out, mlp-in, neurons, mlp-out or residual-post, of "
                "these layers and positions (default: all)")
      ->type_name("SITE[:LAYERS][@POSITIONS]")
      ->group(kGroup);
  app.add_option("--capture-out", capture_out_, "Where to save them, a .npz file")->type_name("FILE")->group(kGroup);
}

std::vector<v1::Intervention> InterventionFlags::Interventions(std::istream& in) const {
  std::vector<v1::Intervention> interventions;
  for (const std::string& text : interventions_) {
    interventions.push_back(OrUsageError("--intervene", ParseIntervention(text)));
  }
  if (file_.empty()) return interventions;
  auto more = OrUsageError("--interventions", ParseInterventions(ReadFile("--interventions", file_, in)));
  interventions.insert(interventions.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  return interventions;
}

std::vector<v1::ActivationCapture> InterventionFlags::Captures() const {
  if (captures_.empty() != capture_out_.empty()) {
    throw CLI::ValidationError("--capture and --capture-out go together", CLI::ExitCodes::RequiredError);
  }
  if (!capture_out_.empty()) {
    const absl::Status writable = CheckWritable(capture_out_);
    if (!writable.ok()) throw CLI::ValidationError("--capture-out", std::string(writable.message()));
  }
  std::vector<v1::ActivationCapture> captures;
  for (const std::string& text : captures_) captures.push_back(OrUsageError("--capture", ParseCapture(text)));
  return captures;
}

std::function<bool(const v1::Activations&)> Captured::listener() {
  if (!flags_.captures()) return nullptr;
  return [this](const v1::Activations& activations) {
    status_ = Add(activations);
    return status_.ok();
  };
}

absl::Status Captured::Add(const v1::Activations& activations) {
  Array& array = arrays_[{activations.site(), activations.layer()}];
  if (array.positions.empty()) array.width = activations.width();
  const size_t count = static_cast<size_t>(activations.positions_size()) * activations.width();
  if (array.width != activations.width() || activations.values().size() != count * sizeof(float)) {
    return absl::DataLossError("the server sent activations of another shape than it said");
  }
  array.positions.insert(array.positions.end(), activations.positions().begin(), activations.positions().end());
  const size_t before = array.values.size();
  array.values.resize(before + count);
  std::memcpy(array.values.data() + before, activations.values().data(), activations.values().size());
  return absl::OkStatus();
}

absl::Status Captured::Finish(absl::Status call) const {
  if (!status_.ok()) return status_;
  if (!call.ok() || !flags_.captures()) return call;
  std::vector<NpzArray> arrays;
  for (const auto& [key, array] : arrays_) {
    const std::string name = absl::StrCat(SiteName(key.first), ".", key.second);
    const int64_t positions = static_cast<int64_t>(array.positions.size());
    arrays.push_back({name, {positions, array.width}, std::span<const float>(array.values)});
    arrays.push_back({name + ".positions", {positions}, std::span<const int64_t>(array.positions)});
  }
  const auto bytes = EncodeNpz(arrays);
  if (!bytes.ok()) return bytes.status();
  return WriteToFile(flags_.capture_out(), *bytes);
}

Json Captured::Describe() const {
  Json arrays = Json::array();
  for (const auto& [key, array] : arrays_) {
    arrays.push_back({{"site", SiteName(key.first)},
                      {"layer", key.second},
                      {"positions", array.positions.size()},
                      {"width", array.width}});
  }
  return {{"path", flags_.capture_out()}, {"arrays", std::move(arrays)}};
}

}  // namespace gatehouse::cli
