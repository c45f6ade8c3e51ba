#include "server/rpc/pinned_calibration.h"

#include "server/serving/model_catalog.h"

namespace gatehouse {

std::shared_ptr<const Calibration> PinCalibration(const ServiceContext& service, const std::string& model,
                                                  const RecordRequest& records, GatingChoice& gating) {
  if (!records.consensus) return nullptr;
  const auto served = service.catalog->Find(model);
  if (!served.ok()) return nullptr;
  CalibrationStore& calibrations = *(*served)->calibrations;
  const std::string name = gating.calibration.empty() ? calibrations.ActiveName() : gating.calibration;
  if (name.empty()) return nullptr;
  auto calibration = calibrations.Get(name);
  if (!calibration.ok()) return nullptr;
  gating.calibration = name;
  return *std::move(calibration);
}

}  // namespace gatehouse
