#ifndef GATEHOUSE_SERVER_SERVING_OPERATION_RESULTS_H_
#define GATEHOUSE_SERVER_SERVING_OPERATION_RESULTS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/report.h"
#include "server/serving/operation_files.h"
#include "server/serving/operations.h"

namespace gatehouse {

inline constexpr std::string_view kCalibrateKind = "calibrate";
inline constexpr std::string_view kReportFile = "report.json";
inline constexpr std::string_view kArraysFile = "arrays.npz";

// The files that operations leave under the state directory: a calibration's is in its
// model's store, calibrations/MODEL/NAME.safetensors; all others have a folder each,
// results/REPLICA/ID.  Thread-safe.
class OperationResults {
 public:
  explicit OperationResults(std::string state_dir) : state_dir_(std::move(state_dir)) {}

  std::string FolderOf(const OperationName& name) const;

  // What an operation that has ended left, as paths from its folder, sorted.  Half-written
  // files do not count.
  std::vector<std::string> Files(const OperationStatus& status) const;
  // The path of `file`, one of the operation's files; empty: of its result.
  // FailedPrecondition where it has none, or not yet; NotFound for a file it did not leave,
  // or that has been deleted.
  absl::StatusOr<std::string> PathOf(const OperationStatus& status, const std::string& file) const;
  // The same errors; DataLoss for one that is damaged.
  absl::StatusOr<Report> ReadReport(const OperationStatus& status) const;

  // Removes the operation's folder, if it has one.
  void Remove(const OperationName& name) const;
  // Removes the folders of the replica's operations that are not among `known`: what a stop
  // in the middle of a removal left.
  void RemoveAllBut(const std::vector<OperationName>& known, const std::string& replica) const;

 private:
  const std::string state_dir_;
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_OPERATION_RESULTS_H_
