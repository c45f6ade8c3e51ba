#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "server/base/digest.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/gating/calibration_description.h"
#include "server/engine/gating/loaded_calibration.h"
#include "server/engine/model/safetensors.h"
#include "server/engine/torch_boundary.h"

// The calibration file (docs/calibration-file.md): a safetensors file with four tensors a
// layer and a description in its metadata.

namespace gatehouse {
namespace {

constexpr int kMostLayers = 4096;

using LayerTensors = CalibrationData::Layer;

struct TensorField {
  std::string_view suffix;
  at::Tensor LayerTensors::*member;
};
constexpr std::array<TensorField, 4> kFields = {{{"surrogate.weight", &LayerTensors::surrogate_weight},
                                                 {"surrogate.bias", &LayerTensors::surrogate_bias},
                                                 {"gate.weight", &LayerTensors::gate_weight},
                                                 {"gate.bias", &LayerTensors::gate_bias}}};

std::string TensorName(int layer, const TensorField& field) { return StrCat("layers.", layer, ".", field.suffix); }

std::vector<int64_t> ShapeOf(const TensorField& field, int64_t d_model) {
  if (field.member == &LayerTensors::surrogate_weight) return {d_model, d_model};
  if (field.member == &LayerTensors::gate_bias) return {1};
  return {d_model};
}

// The layer that a tensor's name speaks of; none for a name that is not of this format.
std::optional<int> LayerOf(std::string_view name) {
  constexpr std::string_view kPrefix = "layers.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const size_t dot = name.find('.');
  int layer = 0;
  if (dot == name.npos || !absl::SimpleAtoi(ToAbsl(name.substr(0, dot)), &layer)) return std::nullopt;
  if (layer < 0 || layer >= kMostLayers || StrCat(layer) != name.substr(0, dot)) return std::nullopt;
  for (const TensorField& field : kFields) {
    if (field.suffix == name.substr(dot + 1)) return layer;
  }
  return std::nullopt;
}

// How many layers the file's tensors are for; all four of each must be there.
absl::StatusOr<int> CountLayers(const SafetensorsFile& file) {
  int layers = 0;
  for (const auto& [name, entry] : file.entries()) {
    const std::optional<int> layer = LayerOf(name);
    if (!layer) return absl::InvalidArgumentError(StrCat("tensor ", name, " is not one of this format"));
    layers = std::max(layers, *layer + 1);
  }
  for (int layer = 0; layer < layers; ++layer) {
    for (const TensorField& field : kFields) {
      const std::string name = TensorName(layer, field);
      if (!file.entries().contains(name)) return absl::InvalidArgumentError(StrCat("tensor ", name, " is missing"));
    }
  }
  if (layers == 0) return absl::InvalidArgumentError("the file holds no tensors");
  return layers;
}

absl::StatusOr<CalibrationInfo> ReadInfo(const SafetensorsFile& file) {
  GH_ASSIGN_OR_RETURN(const int layers, CountLayers(file));
  return ParseCalibrationMetadata(file.metadata(), layers);
}

absl::StatusOr<std::string> FileFingerprint(const std::string& path) {
  GH_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return StrCat("sha256:", Sha256Hex(file.bytes()));
}

absl::Status CheckNeurons(const CalibrationInfo& info, int d_mlp) {
  for (size_t layer = 0; layer < info.layers.size(); ++layer) {
    const LayerCalibration& found = info.layers[layer];
    for (const auto* findings : {&found.consensus, &found.exception, &found.gateway}) {
      for (const NeuronFinding& finding : *findings) {
        if (finding.neuron >= d_mlp) {
          return absl::InvalidArgumentError(StrCat("calibration.layers[", layer, "] names neuron ", finding.neuron,
                                                   ", but the model's MLP has ", d_mlp));
        }
      }
    }
  }
  return absl::OkStatus();
}

// What ties the file to the model, before any tensor is looked at.
absl::Status CheckModel(const CalibrationInfo& info, const ModelWeights& model) {
  if (info.model_fingerprint != model.fingerprint) {
    return absl::FailedPreconditionError(
        StrCat("the calibration is for model ", info.model_fingerprint, "; this model is ", model.fingerprint));
  }
  if (info.layers.size() != static_cast<size_t>(model.config.layers)) {
    return absl::InvalidArgumentError(
        StrCat("the calibration has ", info.layers.size(), " layers, the model has ", model.config.layers));
  }
  if (info.sink_positions > model.config.context) {
    return absl::InvalidArgumentError(StrCat("calibration.sink_positions is ", info.sink_positions,
                                             ", more than the model's context of ", model.config.context));
  }
  return CheckNeurons(info, model.config.d_mlp);
}

absl::StatusOr<at::Tensor> ReadTensor(const SafetensorsFile& file, const std::string& name,
                                      const std::vector<int64_t>& shape) {
  const SafetensorsFile::Entry& entry = file.entries().at(name);
  if (entry.shape != shape) {
    return absl::InvalidArgumentError(StrCat("tensor ", name, " has shape [", absl::StrJoin(entry.shape, ", "),
                                             "], not [", absl::StrJoin(shape, ", "), "]"));
  }
  GH_ASSIGN_OR_RETURN(at::Tensor tensor, file.Read(name));
  if (!tensor.is_floating_point()) {
    return absl::InvalidArgumentError(
        StrCat("tensor ", name, " has dtype ", entry.dtype, ", not a floating-point one"));
  }
  tensor = tensor.to(at::kFloat);
  if (!tensor.isfinite().all().item<bool>()) {
    return absl::InvalidArgumentError(StrCat("tensor ", name, " holds a value that is not finite in float32"));
  }
  return tensor;
}

absl::StatusOr<CalibrationData> ReadData(const SafetensorsFile& file, const ModelWeights& model) {
  CalibrationData data;
  GH_ASSIGN_OR_RETURN(data.info, ReadInfo(file));
  GH_RETURN_IF_ERROR(CheckModel(data.info, model));
  for (int layer = 0; layer < model.config.layers; ++layer) {
    LayerTensors tensors;
    for (const TensorField& field : kFields) {
      GH_ASSIGN_OR_RETURN(tensors.*field.member,
                          ReadTensor(file, TensorName(layer, field), ShapeOf(field, model.config.d_model)));
    }
    data.layers.push_back(std::move(tensors));
  }
  return data;
}

at::Tensor NeuronRows(const std::vector<NeuronFinding>& findings, at::Device device) {
  std::vector<int64_t> rows;
  for (const NeuronFinding& finding : findings) rows.push_back(finding.neuron);
  return at::tensor(rows, at::kLong).to(device);
}

}  // namespace

absl::Status WriteCalibrationFile(const std::string& path, const CalibrationData& data) {
  std::map<std::string, at::Tensor> tensors;
  for (size_t layer = 0; layer < data.layers.size(); ++layer) {
    for (const TensorField& field : kFields) {
      tensors[TensorName(static_cast<int>(layer), field)] = data.layers[layer].*field.member;
    }
  }
  return WriteSafetensors(path, tensors, CalibrationMetadata(data.info));
}

absl::StatusOr<CalibrationData> ReadCalibrationFile(const std::string& path, const ModelWeights& model) {
  GH_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  CalibrationData data;
  GH_RETURN_IF_ERROR(Annotate(AtTorchBoundary([&]() -> absl::Status {
                                GH_ASSIGN_OR_RETURN(data, ReadData(file, model));
                                return absl::OkStatus();
                              }),
                              path));
  GH_ASSIGN_OR_RETURN(data.info.fingerprint, FileFingerprint(path));
  return data;
}

absl::StatusOr<CalibrationInfo> ReadCalibrationFileInfo(const std::string& path) {
  GH_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  absl::StatusOr<CalibrationInfo> info = ReadInfo(file);
  if (!info.ok()) return Annotate(info.status(), path);
  GH_ASSIGN_OR_RETURN(info->fingerprint, FileFingerprint(path));
  return info;
}

std::shared_ptr<const LoadedCalibration> PlaceCalibration(CalibrationData data, const ModelWeights& model) {
  const at::Device device = model.token_embedding.device();
  const at::ScalarType dtype = model.token_embedding.scalar_type();
  std::vector<LoadedCalibration::Layer> layers;
  for (size_t i = 0; i < data.layers.size(); ++i) {
    const LayerTensors& tensors = data.layers[i];
    const LayerCalibration& found = data.info.layers[i];
    layers.push_back({{tensors.surrogate_weight.to(device, dtype).contiguous(), tensors.surrogate_bias.to(device)},
                      tensors.gate_weight.to(device),
                      tensors.gate_bias.item<float>(),
                      NeuronRows(found.consensus, device),
                      NeuronRows(found.exception, device)});
  }
  return std::make_shared<const LoadedCalibration>(std::move(data.info), std::move(layers));
}

}  // namespace gatehouse
