#ifndef GATEHOUSE_SERVER_ENGINE_TRAINING_SAVED_MODEL_H_
#define GATEHOUSE_SERVER_ENGINE_TRAINING_SAVED_MODEL_H_

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "absl/status/status.h"
#include "server/engine/calibration.h"
#include "server/engine/model/weights.h"
#include "server/engine/training/trainable_model.h"

namespace gatehouse {

// The tensors of a Hugging Face checkpoint of these weights: its names, layouts and order of
// heads, the inverse of LoadModelWeights.  They may share memory with the weights.
std::map<std::string, at::Tensor> CheckpointTensors(const ModelWeights& model);

// Writes the trained weights as a new model directory, `directory`, that LoadModelWeights and
// transformers load: config.json, tokenizer.json and their like of the model they came from,
// and float32 weights.  The architecture has no word for a surrogate, so the surrogates and
// gates go into calibrations/default.safetensors within it; a layer without an MLP of its
// own has a gate that is always linear there, a layer that nothing happened to one that
// never is.  `info` describes the calibration; its layers and fingerprints are filled in.
// The directory appears in one step, in the place of one that is there.
absl::Status SaveTrainedModel(const std::string& directory, const std::string& source, const TrainableModel& model,
                              CalibrationInfo info);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_TRAINING_SAVED_MODEL_H_
