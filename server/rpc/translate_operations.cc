#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/translate.h"

namespace gatehouse {
namespace {

v1::OperationState StateToProto(OperationState state) {
  return static_cast<v1::OperationState>(static_cast<int>(state) + 1);
}
static_assert(static_cast<int>(OperationState::kWaiting) + 1 == v1::OPERATION_STATE_WAITING);
static_assert(static_cast<int>(OperationState::kRunning) + 1 == v1::OPERATION_STATE_RUNNING);
static_assert(static_cast<int>(OperationState::kSucceeded) + 1 == v1::OPERATION_STATE_SUCCEEDED);
static_assert(static_cast<int>(OperationState::kFailed) + 1 == v1::OPERATION_STATE_FAILED);
static_assert(static_cast<int>(OperationState::kCancelled) + 1 == v1::OPERATION_STATE_CANCELLED);
static_assert(static_cast<int>(OperationState::kInterrupted) + 1 == v1::OPERATION_STATE_INTERRUPTED);

// A count of which 0 means the default that is there.
absl::Status SetCount(std::string_view field, uint32_t value, int& count) {
  if (value == 0) return absl::OkStatus();
  GH_ASSIGN_OR_RETURN(count, CountFromProto(value, field));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int>> Counts(const google::protobuf::RepeatedField<uint32_t>& proto,
                                        std::string_view field) {
  std::vector<int> counts;
  for (const uint32_t value : proto) {
    GH_ASSIGN_OR_RETURN(const int count, CountFromProto(value, field));
    counts.push_back(count);
  }
  return counts;
}

// What calibrations and experiments have in common.
template <typename Proto, typename Options>
absl::Status ReadSplits(const Proto& proto, Options& options) {
  options.fit_tokens = proto.fit_tokens();
  options.gate_tokens = proto.gate_tokens();
  options.select_tokens = proto.select_tokens();
  options.report_tokens = proto.report_tokens();
  GH_ASSIGN_OR_RETURN(options.window_tokens, CountFromProto(proto.window_tokens(), "window_tokens"));
  if (proto.has_sink_positions()) {
    GH_ASSIGN_OR_RETURN(options.sink_positions, CountFromProto(proto.sink_positions(), "sink_positions"));
  }
  if (proto.has_ridge()) options.ridge = proto.ridge();
  options.seed = proto.seed();
  return absl::OkStatus();
}

absl::StatusOr<BudgetOptions> Budget(const v1::BudgetSpec& proto) {
  BudgetOptions budget;
  budget.budgets.assign(proto.budgets().begin(), proto.budgets().end());
  if (proto.has_sequential()) budget.sequential = proto.sequential();
  if (proto.has_ladders()) budget.ladders = proto.ladders();
  if (proto.has_ladder_share()) budget.ladder_share = proto.ladder_share();
  if (proto.has_tune()) budget.tune = proto.tune();
  GH_ASSIGN_OR_RETURN(budget.tune_steps, CountFromProto(proto.tune_steps(), "budget.tune_steps"));
  GH_RETURN_IF_ERROR(SetCount("budget.tune_sequences", proto.tune_sequences(), budget.tune_sequences));
  if (proto.has_tune_work_saved()) budget.tune_work_saved = proto.tune_work_saved();
  return budget;
}

absl::StatusOr<CalibrateSpec> Calibrate(const v1::CalibrateSpec& proto) {
  CalibrateSpec spec;
  spec.corpus = proto.corpus();
  if (proto.has_activate()) spec.activate = proto.activate();
  CalibrateOptions& options = spec.options;
  options.name = proto.calibration();
  GH_RETURN_IF_ERROR(ReadSplits(proto, options));
  if (proto.has_gateable_cost_limit()) options.gateable_cost_limit = proto.gateable_cost_limit();
  GH_RETURN_IF_ERROR(SetCount("max_consensus", proto.max_consensus(), options.max_consensus));
  GH_ASSIGN_OR_RETURN(options.budget, Budget(proto.budget()));
  return spec;
}

absl::StatusOr<std::vector<int>> LayerList(const google::protobuf::RepeatedField<uint32_t>& proto,
                                           std::string_view field) {
  std::vector<int> layers;
  for (const uint32_t layer : proto) {
    GH_ASSIGN_OR_RETURN(const int checked, LayerFromProto(layer, field));
    layers.push_back(checked);
  }
  return layers;
}

absl::StatusOr<GateSweepMethod> GateSweep(const v1::GateSweep& proto) {
  GateSweepMethod method;
  if (proto.thresholds_size() > 0) method.thresholds.assign(proto.thresholds().begin(), proto.thresholds().end());
  if (proto.bottlenecks_size() > 0) {
    GH_ASSIGN_OR_RETURN(method.bottlenecks, Counts(proto.bottlenecks(), "gate_sweep.bottlenecks"));
  }
  return method;
}

absl::StatusOr<NoFlyMethod> NoFly(const v1::NoFly& proto) {
  NoFlyMethod method;
  if (proto.has_least_mean()) method.least_mean = proto.least_mean();
  GH_RETURN_IF_ERROR(SetCount("no_fly.least_count", proto.least_count(), method.least_count));
  if (proto.has_least_positive()) method.least_positive = proto.least_positive();
  GH_RETURN_IF_ERROR(SetCount("no_fly.least_count_other", proto.least_count_other(), method.least_count_other));
  return method;
}

absl::StatusOr<TrainingSchedule> Schedule(v1::Training::Schedule schedule) {
  switch (schedule) {
    case v1::Training::SCHEDULE_UNSPECIFIED:
    case v1::Training::SCHEDULE_PROGRESSIVE:
      return TrainingSchedule::kProgressive;
    case v1::Training::SCHEDULE_TWO_PHASE:
      return TrainingSchedule::kTwoPhase;
    case v1::Training::SCHEDULE_ROUTING:
      return TrainingSchedule::kRouting;
    default:
      return absl::InvalidArgumentError(StrCat("training.schedule has the unknown value ", static_cast<int>(schedule)));
  }
}

absl::StatusOr<TrainingMethod> Training(const v1::Training& proto) {
  TrainingMethod method;
  GH_ASSIGN_OR_RETURN(method.schedule, Schedule(proto.schedule()));
  GH_ASSIGN_OR_RETURN(method.order, LayerList(proto.order(), "training.order"));
  if (proto.has_steps_per_layer()) {
    GH_ASSIGN_OR_RETURN(method.steps_per_layer, CountFromProto(proto.steps_per_layer(), "training.steps_per_layer"));
  }
  if (proto.has_final_steps()) {
    GH_ASSIGN_OR_RETURN(method.final_steps, CountFromProto(proto.final_steps(), "training.final_steps"));
  }
  GH_RETURN_IF_ERROR(SetCount("training.batch_sequences", proto.batch_sequences(), method.batch_sequences));
  if (proto.has_learning_rate()) method.learning_rate = proto.learning_rate();
  if (proto.has_weight_decay()) method.weight_decay = proto.weight_decay();
  if (proto.has_gradient_clip()) method.gradient_clip = proto.gradient_clip();
  if (proto.has_gate_learning_rate()) method.gate_learning_rate = proto.gate_learning_rate();
  if (proto.has_gate_pressure()) method.gate_pressure = proto.gate_pressure();
  GH_RETURN_IF_ERROR(SetCount("training.evaluate_every", proto.evaluate_every(), method.evaluate_every));
  method.save_model = proto.save_model();
  return method;
}

absl::StatusOr<PolynomialProbeMethod> PolynomialProbe(const v1::PolynomialProbe& proto) {
  PolynomialProbeMethod method;
  if (proto.degrees_size() > 0) {
    GH_ASSIGN_OR_RETURN(method.degrees, Counts(proto.degrees(), "polynomial_probe.degrees"));
  }
  GH_RETURN_IF_ERROR(SetCount("polynomial_probe.components", proto.components(), method.components));
  if (proto.has_ridge()) method.ridge = proto.ridge();
  if (proto.has_high_share()) method.high_share = proto.high_share();
  return method;
}

absl::StatusOr<NonlinearityMethod> Nonlinearity(const v1::Nonlinearity& proto) {
  NonlinearityMethod method;
  GH_RETURN_IF_ERROR(SetCount("nonlinearity.clusters", proto.clusters(), method.clusters));
  return method;
}

// A method whose only option is how many consensus neurons a layer may have.
template <typename Method, typename Message>
absl::StatusOr<ExperimentMethod> OfConsensus(const Message& proto, std::string_view field) {
  Method method;
  GH_RETURN_IF_ERROR(SetCount(field, proto.max_consensus(), method.max_consensus));
  return method;
}

absl::StatusOr<ExperimentMethod> Method(const v1::ExperimentSpec& proto) {
  switch (proto.method_case()) {
    case v1::ExperimentSpec::kLinearizationCost:
      return LinearizationCostMethod();
    case v1::ExperimentSpec::kGateSweep:
      return GateSweep(proto.gate_sweep());
    case v1::ExperimentSpec::kRoutability:
      return RoutabilityMethod();
    case v1::ExperimentSpec::kNoFly:
      return NoFly(proto.no_fly());
    case v1::ExperimentSpec::kTraining:
      return Training(proto.training());
    case v1::ExperimentSpec::kNonlinearity:
      return Nonlinearity(proto.nonlinearity());
    case v1::ExperimentSpec::kPolynomialProbe:
      return PolynomialProbe(proto.polynomial_probe());
    case v1::ExperimentSpec::kConsensus:
      return OfConsensus<ConsensusMethod>(proto.consensus(), "consensus.max_consensus");
    case v1::ExperimentSpec::kAblation:
      return OfConsensus<AblationMethod>(proto.ablation(), "ablation.max_consensus");
    case v1::ExperimentSpec::kQuorum:
      return OfConsensus<QuorumMethod>(proto.quorum(), "quorum.max_consensus");
    case v1::ExperimentSpec::METHOD_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("experiment.method is missing, or of a kind this server does not know");
}

absl::StatusOr<ExperimentRequest> Experiment(const v1::ExperimentSpec& proto) {
  ExperimentRequest request;
  request.corpora.assign(proto.corpora().begin(), proto.corpora().end());
  request.resume = proto.resume();
  ExperimentOptions& options = request.spec.options;
  GH_RETURN_IF_ERROR(ReadSplits(proto, options));
  GH_ASSIGN_OR_RETURN(options.layers, LayerList(proto.layers(), "layers"));
  GH_RETURN_IF_ERROR(SetCount("bootstrap_resamples", proto.bootstrap_resamples(), options.bootstrap_resamples));
  GH_ASSIGN_OR_RETURN(request.spec.method, Method(proto));
  return request;
}

}  // namespace

absl::StatusOr<OperationSpec> FromProto(const v1::StartOperationRequest& proto) {
  switch (proto.spec_case()) {
    case v1::StartOperationRequest::kCalibrate:
      return Calibrate(proto.calibrate());
    case v1::StartOperationRequest::kExperiment:
      return Experiment(proto.experiment());
    case v1::StartOperationRequest::SPEC_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("spec is missing, or of a kind this server does not know");
}

v1::Operation ToProto(const OperationStatus& status) {
  v1::Operation proto;
  proto.set_name(ValidUtf8(status.name));
  proto.set_kind(ValidUtf8(status.kind));
  proto.set_model(ValidUtf8(status.model));
  proto.set_state(StateToProto(status.state));
  proto.set_progress(status.progress);
  proto.set_stage(ValidUtf8(status.stage));
  proto.set_created(ValidUtf8(status.created));
  proto.set_ended(ValidUtf8(status.ended));
  proto.set_error_message(ValidUtf8(Message(status.error)));
  proto.set_error_code(static_cast<int32_t>(status.error.code()));
  proto.set_result(ValidUtf8(status.result));
  proto.set_result_bytes(status.result_bytes);
  for (const std::string& file : status.files) proto.add_files(ValidUtf8(file));
  return proto;
}

}  // namespace gatehouse
