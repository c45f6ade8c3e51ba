#ifndef GATEHOUSE_SERVER_SERVING_EXPERIMENT_CHECKS_H_
#define GATEHOUSE_SERVER_SERVING_EXPERIMENT_CHECKS_H_

#include "absl/status/status.h"
#include "server/engine/model_info.h"
#include "server/serving/operations.h"

namespace gatehouse {

// What an experiment has to be told, checked against the model: InvalidArgument naming the
// field and its bound.  Whether its corpora are long enough is seen when it runs.
absl::Status CheckExperiment(const ExperimentRequest& request, const ModelInfo& model);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_EXPERIMENT_CHECKS_H_
