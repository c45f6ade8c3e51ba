#ifndef GATEHOUSE_SERVER_SERVING_CALIBRATION_STORE_H_
#define GATEHOUSE_SERVER_SERVING_CALIBRATION_STORE_H_

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/engine.h"

namespace gatehouse {

// The calibrations of one model: the files NAME.safetensors in its folders whose
// fingerprint is the model's.  The active one serves requests that name none: the
// one selected last (remembered in the state directory, across restarts), else the
// newest.  Thread-safe; a request keeps the calibration it began with.
class CalibrationStore {
 public:
  struct Entry {
    std::string name;
    std::string path;
    CalibrationInfo info;
  };

  // Scans `folders` (missing ones are fine); files of other models and damaged files are
  // left out with a warning in the log.  New calibrations go to `state_folder`, which
  // may be empty where nothing is to be written.
  static absl::StatusOr<std::unique_ptr<CalibrationStore>> Create(Engine& engine, std::string model_name,
                                                                  std::vector<std::string> folders,
                                                                  std::string state_folder);

  // Newest first.
  std::vector<Entry> List() const;
  // Empty when there is none.
  std::string ActiveName() const;
  // The active calibration, or null.
  std::shared_ptr<const Calibration> Active() const;
  // By name; empty means active.  NotFound for an unknown name; FailedPrecondition with
  // "not calibrated" when there is none at all.  Loads the tensors on first use.
  absl::StatusOr<std::shared_ptr<const Calibration>> Get(std::string_view name);
  // NotFound, or the loader's error; then the active one stays.
  absl::StatusOr<Entry> Select(std::string_view name);

  // Where a new calibration of that name is to be written.  InvalidArgument for a bad
  // name; AlreadyExists for one in use; FailedPrecondition without a state folder.
  absl::StatusOr<std::string> PathFor(std::string_view name) const;
  // Takes up a file just written at PathFor(name), and selects it where asked.
  absl::Status Adopt(std::string_view name, bool activate);

 private:
  // For the implementation.
  struct State;
  explicit CalibrationStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;

 public:
  ~CalibrationStore();
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_CALIBRATION_STORE_H_
