#ifndef GATEHOUSE_TESTS_ENGINE_KERNELS_SAMPLING_PARAMS_H_
#define GATEHOUSE_TESTS_ENGINE_KERNELS_SAMPLING_PARAMS_H_

#include <limits>

#include "server/engine/sampling.h"

namespace gatehouse::testing {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline SamplingParams WithTemperature(float temperature) {
  SamplingParams params;
  params.temperature = temperature;
  return params;
}

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_ENGINE_KERNELS_SAMPLING_PARAMS_H_
