#include "server/engine/training/training_checkpoint.h"

#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "server/base/digest.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/model/safetensors.h"
#include "server/engine/torch_boundary.h"

namespace gatehouse {
namespace {

using Json = nlohmann::json;
using Tensors = std::map<std::string, at::Tensor>;

constexpr std::string_view kCheckpointFormat = "gatehouse.training";
constexpr std::string_view kCheckpointVersion = "1";
constexpr std::string_view kParameter = "parameter.", kFirst = "moment1.", kSecond = "moment2.";

// JSON has no NaN; null stands for it.
double NumberOf(const Json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

Json ProgressJson(const TrainingProgress& progress) {
  Json curve = Json::array(), fits = Json::array();
  for (const CurvePoint& point : progress.curve) {
    curve.push_back(
        {point.step, point.stage, point.perplexity, point.linear_fraction, point.training_loss, point.gradient_norm});
  }
  for (const SurrogateFit& fit : progress.fits) fits.push_back({fit.layer, fit.r2});
  return {{"step", progress.step},
          {"stage", progress.stage},
          {"loss_sum", progress.loss_sum},
          {"norm_sum", progress.norm_sum},
          {"summed_steps", progress.summed_steps},
          {"curve", curve},
          {"fits", fits}};
}

TrainingProgress ProgressOf(const Json& json) {
  TrainingProgress progress;
  progress.step = json.at("step").get<int64_t>();
  progress.stage = json.at("stage").get<int>();
  progress.loss_sum = NumberOf(json.at("loss_sum"));
  progress.norm_sum = NumberOf(json.at("norm_sum"));
  progress.summed_steps = json.at("summed_steps").get<int64_t>();
  for (const Json& point : json.at("curve")) {
    progress.curve.push_back({point.at(0).get<int64_t>(), point.at(1).get<int>(), NumberOf(point.at(2)),
                              NumberOf(point.at(3)), NumberOf(point.at(4)), NumberOf(point.at(5))});
  }
  for (const Json& fit : json.at("fits")) progress.fits.push_back({fit.at(0).get<int>(), NumberOf(fit.at(1))});
  return progress;
}

// Over the tensors' names, shapes and bytes, and what is said of them.
std::string DigestOf(const Tensors& tensors, std::string_view progress, std::string_view optimizer_steps) {
  Sha256 hash;
  hash.Update(StrCat(progress, "\n", optimizer_steps, "\n"));
  for (const auto& [name, tensor] : tensors) {
    hash.Update(StrCat(name, " "));
    for (const int64_t size : tensor.sizes()) hash.Update(StrCat(size, ","));
    hash.Update({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
  }
  return hash.HexDigest();
}

// The tensors on the CPU, by their names in the file.
Tensors FileTensors(const TrainingCheckpoint& checkpoint) {
  Tensors tensors;
  const auto add = [&](std::string_view prefix, const std::string& name, const at::Tensor& tensor) {
    tensors[StrCat(prefix, name)] = tensor.detach().cpu().contiguous();
  };
  for (const auto& [name, value] : checkpoint.parameters) add(kParameter, name, value);
  for (const auto& [name, moments] : checkpoint.moments) {
    add(kFirst, name, moments.first);
    add(kSecond, name, moments.second);
  }
  return tensors;
}

absl::Status CheckIdentity(const Json& stored, const TrainingIdentity& identity) {
  for (const auto& [name, value] : identity) {
    const std::string there = stored.value(name, std::string("absent"));
    if (there != value) {
      return absl::FailedPreconditionError(StrCat("the checkpoint is of another training: its ", name, " is ", there,
                                                  " there, here ", value,
                                                  "; start anew, or with the settings it began with"));
    }
  }
  if (stored.size() != identity.size()) {
    return absl::FailedPreconditionError("the checkpoint is of another training: it has settings this one has not");
  }
  return absl::OkStatus();
}

absl::StatusOr<TrainingCheckpoint> Parse(const SafetensorsFile& file, const TrainingIdentity& identity) {
  const auto& metadata = file.metadata();
  const auto text = [&](const std::string& key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::string() : found->second;
  };
  if (text("format") != kCheckpointFormat || text("version") != kCheckpointVersion) {
    return absl::InvalidArgumentError(StrCat("not a training checkpoint of version ", kCheckpointVersion));
  }
  GH_RETURN_IF_ERROR(CheckIdentity(Json::parse(text("identity")), identity));
  Tensors tensors;
  for (const auto& [name, entry] : file.entries()) {
    GH_ASSIGN_OR_RETURN(tensors[name], file.Read(name));
  }
  if (DigestOf(tensors, text("progress"), text("optimizer_steps")) != text("digest")) {
    return absl::InvalidArgumentError("the checkpoint is damaged: its content does not match its digest");
  }
  TrainingCheckpoint checkpoint;
  checkpoint.progress = ProgressOf(Json::parse(text("progress")));
  const Json steps = Json::parse(text("optimizer_steps"));
  for (auto& [name, tensor] : tensors) {
    if (name.starts_with(kParameter)) checkpoint.parameters[name.substr(kParameter.size())] = tensor;
  }
  for (const auto& [name, count] : steps.items()) {
    checkpoint.moments[name] = {count.get<int64_t>(), tensors.at(StrCat(kFirst, name)),
                                tensors.at(StrCat(kSecond, name))};
  }
  return checkpoint;
}

}  // namespace

absl::Status WriteTrainingCheckpoint(const std::string& path, const TrainingIdentity& identity,
                                     const TrainingCheckpoint& checkpoint) {
  Json steps = Json::object();
  for (const auto& [name, moments] : checkpoint.moments) steps[name] = moments.steps;
  const std::string progress = ProgressJson(checkpoint.progress).dump(), optimizer_steps = steps.dump();
  const Tensors tensors = FileTensors(checkpoint);
  return WriteSafetensors(path, tensors,
                          {{"format", std::string(kCheckpointFormat)},
                           {"version", std::string(kCheckpointVersion)},
                           {"identity", Json(identity).dump()},
                           {"progress", progress},
                           {"optimizer_steps", optimizer_steps},
                           {"digest", DigestOf(tensors, progress, optimizer_steps)}});
}

absl::StatusOr<TrainingCheckpoint> ReadTrainingCheckpoint(const std::string& path, const TrainingIdentity& identity) {
  GH_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  try {
    absl::StatusOr<TrainingCheckpoint> checkpoint = Parse(file, identity);
    return checkpoint.ok() ? std::move(checkpoint) : Annotate(checkpoint.status(), path);
  } catch (const std::exception& error) {  // of the JSON library, or a tensor that is not there
    return absl::InvalidArgumentError(StrCat(path, ": the checkpoint is damaged: ", error.what()));
  }
}

}  // namespace gatehouse
