#ifndef GATEHOUSE_TESTS_ENGINE_BARE_CALIBRATION_H_
#define GATEHOUSE_TESTS_ENGINE_BARE_CALIBRATION_H_

#include <utility>

#include "server/engine/calibration.h"

namespace gatehouse::testing {

// A calibration that is only described: what requests are checked against.
class BareCalibration final : public Calibration {
 public:
  explicit BareCalibration(CalibrationInfo info) : Calibration(std::move(info)) {}
};

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_ENGINE_BARE_CALIBRATION_H_
