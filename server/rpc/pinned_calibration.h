#ifndef GATEHOUSE_SERVER_RPC_PINNED_CALIBRATION_H_
#define GATEHOUSE_SERVER_RPC_PINNED_CALIBRATION_H_

#include <memory>
#include <string>

#include "server/engine/calibration.h"
#include "server/rpc/service_context.h"
#include "server/serving/requests.h"

namespace gatehouse {

// The calibration whose neurons the call's consensus records will name.  Writes its name
// into `gating`, so that the call uses the same one though another is selected meanwhile.
// Null where the call records no consensus, and where there is no such model or
// calibration: the scheduler says so better.
std::shared_ptr<const Calibration> PinCalibration(const ServiceContext& service, const std::string& model,
                                                  const RecordRequest& records, GatingChoice& gating);

inline const CalibrationInfo* InfoOf(const std::shared_ptr<const Calibration>& calibration) {
  return calibration == nullptr ? nullptr : &calibration->info();
}

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_PINNED_CALIBRATION_H_
