#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>
#include <limits>
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
#include "server/base/huge_pages.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/gating/calibration_description.h"
#include "server/engine/gating/loaded_calibration.h"
#include "server/engine/model/safetensors.h"
#include "server/engine/torch_boundary.h"

// The calibration file (docs/calibration-file.md): a safetensors file with four tensors a
// layer, three more for a layer that has a ladder, one for its neurons' mean activations, and
// a description in its metadata.

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

// A layer's ladder: all three, or none.
constexpr TensorField kLadderNeurons = {"ladder.neurons", &LayerTensors::ladder_neurons};
constexpr std::array<TensorField, 2> kLadderFields = {
    {{"ladder.weight", &LayerTensors::ladder_weight}, {"ladder.bias", &LayerTensors::ladder_bias}}};

// Mean activations, which a file need not have.
constexpr TensorField kNeuronMean = {"neuron_mean", &LayerTensors::neuron_mean};

std::string TensorName(int layer, const TensorField& field) { return StrCat("layers.", layer, ".", field.suffix); }

std::vector<int64_t> ShapeOf(const TensorField& field, int64_t d_model) {
  if (field.member == &LayerTensors::surrogate_weight || field.member == &LayerTensors::ladder_weight) {
    return {d_model, d_model};
  }
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
  const auto is_it = [suffix = name.substr(dot + 1)](const TensorField& field) { return field.suffix == suffix; };
  const bool known = std::any_of(kFields.begin(), kFields.end(), is_it) ||
                     std::any_of(kLadderFields.begin(), kLadderFields.end(), is_it) || is_it(kLadderNeurons) ||
                     is_it(kNeuronMean);
  return known ? std::optional(layer) : std::nullopt;
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

// How many neurons the ladder of a layer keeps exact, by the shape of its tensor; 0 where it
// has none.
absl::StatusOr<int> CountLadderNeurons(const SafetensorsFile& file, int layer) {
  const auto found = file.entries().find(TensorName(layer, kLadderNeurons));
  for (const TensorField& field : kLadderFields) {
    const std::string name = TensorName(layer, field);
    if (file.entries().contains(name) == (found != file.entries().end())) continue;
    return absl::InvalidArgumentError(StrCat("tensor ",
                                             found != file.entries().end() ? name : TensorName(layer, kLadderNeurons),
                                             " is missing: a ladder has a weight, a bias and neurons"));
  }
  if (found == file.entries().end()) return 0;
  const std::vector<int64_t>& shape = found->second.shape;
  if (shape.size() != 1 || !(shape[0] >= 1 && shape[0] <= std::numeric_limits<int>::max())) {
    return absl::InvalidArgumentError(
        StrCat("tensor ", found->first, " has shape [", absl::StrJoin(shape, ", "), "], not that of a list"));
  }
  return static_cast<int>(shape[0]);
}

// A point may send tokens to a ladder only where there is one.
absl::Status CheckOperatingPoints(const CalibrationInfo& info) {
  for (const OperatingPoint& point : info.operating_points) {
    for (size_t layer = 0; layer < info.layers.size(); ++layer) {
      if (point.layers[layer].ladder_threshold >= 1 || info.layers[layer].ladder_neurons > 0) continue;
      return absl::InvalidArgumentError(StrCat("the operating point ", point.name, " has a ladder_threshold in layer ",
                                               layer, ", which has no ladder"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CalibrationInfo> ReadInfo(const SafetensorsFile& file) {
  GH_ASSIGN_OR_RETURN(const int layers, CountLayers(file));
  GH_ASSIGN_OR_RETURN(CalibrationInfo info, ParseCalibrationMetadata(file.metadata(), layers));
  for (int layer = 0; layer < layers; ++layer) {
    GH_ASSIGN_OR_RETURN(info.layers[layer].ladder_neurons, CountLadderNeurons(file, layer));
    info.layers[layer].neuron_means = file.entries().contains(TensorName(layer, kNeuronMean));
  }
  GH_RETURN_IF_ERROR(CheckOperatingPoints(info));
  return info;
}

absl::StatusOr<std::string> FileFingerprint(const std::string& path) {
  GH_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  Sha256 hash;
  std::string piece;
  for (uint64_t at = 0; at < file.size(); at += piece.size()) {
    piece.resize(std::min<uint64_t>(file.size() - at, uint64_t{1} << 20));
    GH_RETURN_IF_ERROR(file.Read(at, piece));
    hash.Update(piece);
  }
  return StrCat("sha256:", hash.HexDigest());
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

absl::StatusOr<at::Tensor> ReadNeurons(const SafetensorsFile& file, const std::string& name, int64_t d_mlp) {
  const std::string& dtype = file.entries().at(name).dtype;
  if (dtype != "I64" && dtype != "I32") {
    return absl::InvalidArgumentError(StrCat("tensor ", name, " has dtype ", dtype, ", not I64 or I32"));
  }
  GH_ASSIGN_OR_RETURN(at::Tensor neurons, file.Read(name));
  neurons = neurons.to(at::kLong);
  int64_t least = 0;
  for (int64_t i = 0; i < neurons.numel(); ++i) {
    const int64_t neuron = neurons.const_data_ptr<int64_t>()[i];
    if (!(neuron >= least && neuron < d_mlp)) {
      return absl::InvalidArgumentError(StrCat("tensor ", name, " holds ", neuron, " at index ", i,
                                               ", must be neurons in [0, ", d_mlp, "), ascending, each once"));
    }
    least = neuron + 1;
  }
  return neurons;
}

absl::StatusOr<LayerTensors> ReadLayer(const SafetensorsFile& file, int layer, const LayerCalibration& info,
                                       const ModelConfig& config) {
  LayerTensors tensors;
  const auto read = [&](const TensorField& field) -> absl::Status {
    GH_ASSIGN_OR_RETURN(tensors.*field.member,
                        ReadTensor(file, TensorName(layer, field), ShapeOf(field, config.d_model)));
    return absl::OkStatus();
  };
  for (const TensorField& field : kFields) GH_RETURN_IF_ERROR(read(field));
  if (info.neuron_means) {
    GH_ASSIGN_OR_RETURN(tensors.neuron_mean, ReadTensor(file, TensorName(layer, kNeuronMean), {config.d_mlp}));
  }
  if (info.ladder_neurons == 0) return tensors;
  for (const TensorField& field : kLadderFields) GH_RETURN_IF_ERROR(read(field));
  GH_ASSIGN_OR_RETURN(tensors.ladder_neurons, ReadNeurons(file, TensorName(layer, kLadderNeurons), config.d_mlp));
  return tensors;
}

absl::StatusOr<CalibrationData> ReadData(const SafetensorsFile& file, const ModelWeights& model) {
  CalibrationData data;
  GH_ASSIGN_OR_RETURN(data.info, ReadInfo(file));
  GH_RETURN_IF_ERROR(CheckModel(data.info, model));
  for (int layer = 0; layer < model.config.layers; ++layer) {
    GH_ASSIGN_OR_RETURN(data.layers.emplace_back(), ReadLayer(file, layer, data.info.layers[layer], model.config));
  }
  return data;
}

at::Tensor NeuronRows(const std::vector<NeuronFinding>& findings, at::Device device) {
  std::vector<int64_t> rows;
  for (const NeuronFinding& finding : findings) rows.push_back(finding.neuron);
  return at::tensor(rows, at::kLong).to(device);
}

// Matrices side by side, as products read them.
at::Tensor Packed(const std::vector<at::Tensor>& parts, at::Device device, at::ScalarType dtype) {
  int64_t columns = 0;
  for (const at::Tensor& part : parts) columns += part.size(1);
  at::Tensor packed = at::empty({parts.front().size(0), columns}, at::TensorOptions().dtype(dtype).device(device));
  if (device.is_cpu()) PreferHugePages(packed.mutable_data_ptr(), packed.nbytes());
  int64_t column = 0;
  for (const at::Tensor& part : parts) {
    packed.narrow(1, column, part.size(1)).copy_(part);
    column += part.size(1);
  }
  return packed;
}

// What the quorum gate computes.  Of a gated MLP the gates' rows come first, so that the
// neurons' own indices name them.
LinearWeights PlaceConsensus(const at::Tensor& neurons, const LayerWeights& layer) {
  LinearWeights in;
  in.weight =
      Packed({layer.mlp_in.weight.index_select(0, neurons)}, neurons.device(), layer.mlp_in.weight.scalar_type());
  if (layer.mlp_in.bias.defined()) in.bias = layer.mlp_in.bias.index_select(0, neurons);
  return in;
}

LoadedCalibration::Ladder PlaceLadder(const LayerTensors& tensors, const LayerWeights& layer,
                                      const ModelConfig& config) {
  const at::Device device = layer.mlp_in.weight.device();
  const at::ScalarType dtype = layer.mlp_in.weight.scalar_type();
  const at::Tensor neurons = tensors.ladder_neurons.to(device);
  // Their rows of mlp_in: of a gated MLP first the gates', then the ups'.
  const at::Tensor rows = config.gated_mlp ? at::cat({neurons, neurons.add(config.d_mlp)}) : neurons;
  LoadedCalibration::Ladder ladder;
  ladder.in.weight = Packed({layer.mlp_in.weight.index_select(0, rows)}, device, dtype);
  if (layer.mlp_in.bias.defined()) ladder.in.bias = layer.mlp_in.bias.index_select(0, rows);
  ladder.joint.weight =
      Packed({tensors.ladder_weight.to(device, dtype), layer.mlp_out.weight.index_select(1, neurons)}, device, dtype);
  ladder.joint.bias = tensors.ladder_bias.to(device);
  return ladder;
}

}  // namespace

absl::Status WriteCalibrationFile(const std::string& path, const CalibrationData& data) {
  std::map<std::string, at::Tensor> tensors;
  for (size_t layer = 0; layer < data.layers.size(); ++layer) {
    const auto add = [&](const TensorField& field) {
      tensors[TensorName(static_cast<int>(layer), field)] = data.layers[layer].*field.member;
    };
    for (const TensorField& field : kFields) add(field);
    if (data.layers[layer].neuron_mean.defined()) add(kNeuronMean);
    if (!data.layers[layer].ladder_neurons.defined()) continue;
    for (const TensorField& field : kLadderFields) add(field);
    add(kLadderNeurons);
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
    LayerCalibration& found = data.info.layers[i];
    found.ladder_neurons = tensors.ladder_neurons.defined() ? static_cast<int>(tensors.ladder_neurons.numel()) : 0;
    LoadedCalibration::Layer& layer = layers.emplace_back();
    layer.surrogate = {Packed({tensors.surrogate_weight}, device, dtype), tensors.surrogate_bias.to(device)};
    layer.gate_weight = tensors.gate_weight.to(device);
    layer.gate_bias = tensors.gate_bias.item<float>();
    layer.consensus_rows = NeuronRows(found.consensus, device);
    layer.exception_rows = NeuronRows(found.exception, device);
    if (!found.consensus.empty()) layer.consensus_in = PlaceConsensus(layer.consensus_rows, model.layers[i]);
    found.neuron_means = tensors.neuron_mean.defined();
    if (found.neuron_means) layer.neuron_mean = tensors.neuron_mean.to(device);
    if (found.ladder_neurons > 0) layer.ladder = PlaceLadder(tensors, model.layers[i], model.config);
  }
  return std::make_shared<const LoadedCalibration>(std::move(data.info), std::move(layers));
}

}  // namespace gatehouse
