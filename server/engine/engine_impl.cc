#include <ATen/Context.h>

#include <memory>
#include <optional>
#include <utility>

#include "server/base/memory.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/analysis/calibrate.h"
#include "server/engine/analysis/experiments.h"
#include "server/engine/engine.h"
#include "server/engine/gating/loaded_calibration.h"
#include "server/engine/kernels/kernels.h"
#include "server/engine/model/decoder.h"
#include "server/engine/model/kv_cache.h"
#include "server/engine/model/weights.h"
#include "server/engine/torch_boundary.h"

namespace gatehouse {
namespace {

class EngineImpl final : public Engine {
 public:
  EngineImpl(ModelInfo info, ModelWeights model, std::unique_ptr<Kernels> kernels, std::unique_ptr<KvCache> cache)
      : info_(std::move(info)),
        model_(std::move(model)),
        kernels_(std::move(kernels)),
        cache_(std::move(cache)),
        decoder_(model_, *kernels_, *cache_) {}

  const ModelInfo& info() const override { return info_; }

  absl::StatusOr<SequenceId> Open(int max_tokens) override { return cache_->Open(max_tokens); }
  void Close(SequenceId sequence) override { cache_->Close(sequence); }
  absl::Status Rollback(SequenceId sequence, int length) override { return cache_->Rollback(sequence, length); }
  int Length(SequenceId sequence) const override { return cache_->Length(sequence); }
  KvUsage kv_usage() const override { return cache_->usage(); }

  absl::StatusOr<std::vector<RowResult>> Step(std::span<const Row> rows) override { return decoder_.Step(rows); }

  absl::StatusOr<std::shared_ptr<const Calibration>> LoadCalibration(const std::string& path) override {
    std::shared_ptr<const Calibration> calibration;
    GH_RETURN_IF_ERROR(AtTorchBoundary([&]() -> absl::Status {
      GH_ASSIGN_OR_RETURN(CalibrationData data, ReadCalibrationFile(path, model_));
      calibration = PlaceCalibration(std::move(data), model_);
      return absl::OkStatus();
    }));
    return calibration;
  }

  absl::StatusOr<CalibrationInfo> ReadCalibrationInfo(const std::string& path) override {
    return ReadCalibrationFileInfo(path);
  }

  absl::StatusOr<CalibrationInfo> Calibrate(const CalibrateOptions& options, std::span<const int32_t> tokens,
                                            const std::string& path, const ProgressFn& progress,
                                            const std::atomic<bool>& cancelled) override {
    GH_RETURN_IF_ERROR(AtTorchBoundary([&]() -> absl::Status {
      GH_ASSIGN_OR_RETURN(const CalibrationData data,
                          gatehouse::Calibrate(model_, options, tokens, progress, cancelled));
      if (cancelled.load()) return absl::CancelledError("the calibration was cancelled");
      return WriteCalibrationFile(path, data);
    }));
    return ReadCalibrationFileInfo(path);
  }

  absl::StatusOr<ExperimentResult> RunExperiment(const ExperimentSpec& spec, std::span<const Corpus> corpora,
                                                 const std::string& directory, const ProgressFn& progress,
                                                 const std::atomic<bool>& cancelled) override {
    return gatehouse::RunExperiment(model_, spec, corpora, directory, progress, cancelled);
  }

 private:
  const ModelInfo info_;
  const ModelWeights model_;
  const std::unique_ptr<Kernels> kernels_;
  const std::unique_ptr<KvCache> cache_;
  Decoder decoder_;
};

absl::StatusOr<at::Device> FindDevice(const std::string& name) {
  if (name == "cpu") return at::Device(at::kCPU);
  if (name != "auto" && name != "cuda") {
    return absl::InvalidArgumentError(StrCat("device is \"", name, "\", must be auto, cpu or cuda"));
  }
  if (at::globalContext().hasCUDA()) return at::Device(at::kCUDA, 0);
  if (name == "auto") return at::Device(at::kCPU);
  return absl::FailedPreconditionError("device is cuda, and this machine has no CUDA device or LibTorch no CUDA");
}

absl::StatusOr<at::ScalarType> FindDtype(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  return absl::InvalidArgumentError(StrCat("dtype is \"", name, "\", must be float32 or bfloat16"));
}

ModelInfo Describe(const ModelWeights& model, const EngineOptions& options, at::Device device, const Kernels& kernels) {
  const ModelConfig& config = model.config;
  ModelInfo info;
  switch (config.architecture) {
    case Architecture::kGpt2:
      info.architecture = "gpt2";
      break;
    case Architecture::kGptNeoX:
      info.architecture = "gpt_neox";
      break;
    case Architecture::kLlama:
      info.architecture = "llama";
      break;
  }
  info.layers = config.layers;
  info.d_model = config.d_model;
  info.d_mlp = config.d_mlp;
  info.gated_mlp = config.gated_mlp;
  info.heads = config.heads;
  info.kv_heads = config.kv_heads;
  info.head_dim = config.head_dim;
  info.vocab_size = config.vocab_size;
  info.context = config.context;
  info.parameters = model.parameters;
  info.weight_bytes = model.bytes;
  info.eos_token_ids = config.eos_token_ids;
  info.bos_token_id = config.bos_token_id;
  info.fingerprint = model.fingerprint;
  info.dtype = options.dtype;
  info.device = device.is_cuda() ? "cuda" : "cpu";
  info.kernels = kernels.name();
  return info;
}

// Before the weights are read, so that what is too much is said at once.  On a CPU the system
// hands out memory that it does not have, up to a point: what the machine cannot have at all
// is refused here.
absl::StatusOr<std::unique_ptr<KvCache>> ReserveCache(const std::string& directory, at::ScalarType dtype,
                                                      at::Device device, int64_t bytes) {
  GH_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(directory));
  const std::string asked = StrCat("--kv-memory-mb asks for ", bytes >> 20, " MiB for keys and values");
  const std::optional<int64_t> total = device.is_cpu() ? TotalMemory() : std::nullopt;
  if (total && bytes > *total) {
    return absl::ResourceExhaustedError(StrCat(asked, ", this machine has ", *total >> 20, " MiB of memory"));
  }
  std::unique_ptr<KvCache> cache;
  const absl::Status status = AtTorchBoundary([&]() -> absl::Status {
    GH_ASSIGN_OR_RETURN(cache, KvCache::Create(config, dtype, device, bytes));
    return absl::OkStatus();
  });
  if (absl::IsResourceExhausted(status)) return Annotate(status, StrCat(asked, ", which there are not"));
  if (!status.ok()) return status;
  return cache;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> LoadEngine(const std::string& directory, const EngineOptions& options) {
  std::unique_ptr<Engine> engine;
  GH_RETURN_IF_ERROR(AtTorchBoundary([&]() -> absl::Status {
    GH_ASSIGN_OR_RETURN(const at::Device device, FindDevice(options.device));
    GH_ASSIGN_OR_RETURN(const at::ScalarType dtype, FindDtype(options.dtype));
    GH_ASSIGN_OR_RETURN(std::unique_ptr<Kernels> kernels, MakeKernels(options.kernels, device, dtype));
    GH_ASSIGN_OR_RETURN(std::unique_ptr<KvCache> cache, ReserveCache(directory, dtype, device, options.kv_bytes));
    GH_ASSIGN_OR_RETURN(ModelWeights model, LoadModelWeights(directory, dtype, device));
    ModelInfo info = Describe(model, options, device, *kernels);
    engine = std::make_unique<EngineImpl>(std::move(info), std::move(model), std::move(kernels), std::move(cache));
    return absl::OkStatus();
  }));
  return engine;
}

}  // namespace gatehouse
