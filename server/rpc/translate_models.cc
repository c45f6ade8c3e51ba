#include <memory>

#include "server/base/strings.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/translate.h"
#include "server/serving/model_catalog.h"

namespace gatehouse {
namespace {

void AddFindings(const std::vector<NeuronFinding>& findings,
                 google::protobuf::RepeatedPtrField<v1::NeuronFinding>& proto) {
  for (const NeuronFinding& finding : findings) {
    v1::NeuronFinding& entry = *proto.Add();
    entry.set_neuron(static_cast<uint32_t>(finding.neuron));
    entry.set_base_rate(finding.base_rate);
    entry.set_rate_difference(finding.rate_difference);
  }
}

v1::LayerCalibration LayerOf(size_t layer, const LayerCalibration& found) {
  v1::LayerCalibration proto;
  proto.set_layer(static_cast<uint32_t>(layer));
  proto.set_linear_cost(found.linear_cost);
  proto.set_linear_cost_with_sinks(found.linear_cost_with_sinks);
  proto.set_surrogate_r2(found.surrogate_r2);
  proto.set_surrogate_r2_with_sinks(found.surrogate_r2_with_sinks);
  proto.set_gateable(found.gateable);
  proto.set_gate_linear_fraction(found.gate_linear_fraction);
  proto.set_gate_cost(found.gate_cost);
  proto.set_p25(found.p25);
  proto.set_p50(found.p50);
  proto.set_p70(found.p70);
  proto.set_p95(found.p95);
  AddFindings(found.consensus, *proto.mutable_consensus());
  AddFindings(found.exception, *proto.mutable_exception());
  AddFindings(found.gateway, *proto.mutable_gateway());
  proto.set_consensus_null(found.consensus_null);
  proto.set_exception_null(found.exception_null);
  proto.set_gateway_null(found.gateway_null);
  proto.set_consensus_random(found.consensus_random);
  proto.set_exception_random(found.exception_random);
  proto.set_gateway_random(found.gateway_random);
  proto.set_ladder_neurons(static_cast<uint32_t>(found.ladder_neurons));
  return proto;
}

v1::OperatingPoint PointOf(const OperatingPoint& point) {
  v1::OperatingPoint proto;
  proto.set_name(ValidUtf8(point.name));
  proto.set_budget(point.budget);
  proto.set_cost(point.cost);
  proto.set_cost_low(point.cost_low);
  proto.set_cost_high(point.cost_high);
  proto.set_work_saved(point.work_saved);
  proto.set_linear_fraction(point.linear_fraction);
  proto.set_ladder_fraction(point.ladder_fraction);
  for (size_t layer = 0; layer < point.layers.size(); ++layer) {
    v1::OperatingLayer& entry = *proto.add_layers();
    entry.set_layer(static_cast<uint32_t>(layer));
    entry.set_linear_threshold(point.layers[layer].linear_threshold);
    entry.set_ladder_threshold(point.layers[layer].ladder_threshold);
  }
  return proto;
}

v1::CalibrationDescription DescriptionOf(const CalibrationStore::Entry& entry) {
  const CalibrationInfo& calibration = entry.info;
  v1::CalibrationDescription proto;
  proto.set_name(ValidUtf8(entry.name));
  proto.set_fingerprint(calibration.fingerprint);
  proto.set_model_fingerprint(calibration.model_fingerprint);
  proto.set_created(ValidUtf8(calibration.created));
  proto.set_corpus(ValidUtf8(calibration.corpus));
  proto.set_corpus_sha256(ValidUtf8(calibration.corpus_sha256));
  proto.set_fit_tokens(static_cast<uint64_t>(calibration.fit_tokens));
  proto.set_gate_tokens(static_cast<uint64_t>(calibration.gate_tokens));
  proto.set_select_tokens(static_cast<uint64_t>(calibration.select_tokens));
  proto.set_report_tokens(static_cast<uint64_t>(calibration.report_tokens));
  proto.set_window_tokens(static_cast<uint32_t>(calibration.window_tokens));
  proto.set_sink_positions(static_cast<uint32_t>(calibration.sink_positions));
  proto.set_gateable_cost_limit(calibration.gateable_cost_limit);
  proto.set_seed(calibration.seed);
  proto.set_dtype(ValidUtf8(calibration.dtype));
  for (size_t layer = 0; layer < calibration.layers.size(); ++layer) {
    *proto.add_layers() = LayerOf(layer, calibration.layers[layer]);
  }
  for (const std::string& ingredient : calibration.ingredients) proto.add_ingredients(ValidUtf8(ingredient));
  for (const OperatingPoint& point : calibration.operating_points) *proto.add_operating_points() = PointOf(point);
  return proto;
}

}  // namespace

v1::ModelSummary SummaryOf(const ServedModel& model) {
  const ModelInfo& info = model.engine->info();
  v1::ModelSummary proto;
  proto.set_name(ValidUtf8(model.name));
  proto.set_architecture(info.architecture);
  proto.set_parameters(static_cast<uint64_t>(info.parameters));
  proto.set_layers(static_cast<uint32_t>(info.layers));
  proto.set_context_tokens(static_cast<uint32_t>(info.context));
  proto.set_calibration(ValidUtf8(model.calibrations->ActiveName()));
  return proto;
}

v1::DescribeModelResponse DescriptionOf(const ServedModel& model) {
  const ModelInfo& info = model.engine->info();
  v1::DescribeModelResponse proto;
  proto.set_name(ValidUtf8(model.name));
  proto.set_architecture(info.architecture);
  proto.set_parameters(static_cast<uint64_t>(info.parameters));
  proto.set_layers(static_cast<uint32_t>(info.layers));
  proto.set_d_model(static_cast<uint32_t>(info.d_model));
  proto.set_d_mlp(static_cast<uint32_t>(info.d_mlp));
  proto.set_heads(static_cast<uint32_t>(info.heads));
  proto.set_kv_heads(static_cast<uint32_t>(info.kv_heads));
  proto.set_vocab_size(static_cast<uint32_t>(info.vocab_size));
  proto.set_context_tokens(static_cast<uint32_t>(info.context));
  proto.set_dtype(info.dtype);
  proto.set_device(info.device);
  proto.set_kernels(info.kernels);
  proto.set_weight_bytes(static_cast<uint64_t>(info.weight_bytes));
  proto.set_fingerprint(info.fingerprint);
  for (const int32_t id : info.eos_token_ids) proto.add_eos_token_ids(id);
  const std::string active = model.calibrations->ActiveName();
  for (const CalibrationStore::Entry& entry : model.calibrations->List()) {
    *proto.add_calibrations() = SummaryOf(entry, entry.name == active);
    if (entry.name == active) *proto.mutable_calibration() = DescriptionOf(entry);
  }
  return proto;
}

v1::CalibrationSummary SummaryOf(const CalibrationStore::Entry& calibration, bool active) {
  v1::CalibrationSummary proto;
  proto.set_name(ValidUtf8(calibration.name));
  proto.set_active(active);
  proto.set_created(ValidUtf8(calibration.info.created));
  proto.set_fingerprint(calibration.info.fingerprint);
  return proto;
}

}  // namespace gatehouse
