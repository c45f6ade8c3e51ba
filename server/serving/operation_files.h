#ifndef GATEHOUSE_SERVER_SERVING_OPERATION_FILES_H_
#define GATEHOUSE_SERVER_SERVING_OPERATION_FILES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/serving/operations.h"

namespace gatehouse {

// An operation's name taken apart: "operations/REPLICA/ID".
struct OperationName {
  std::string replica, id;

  // InvalidArgument for any other form.
  static absl::StatusOr<OperationName> Parse(std::string_view name);
  // The same for one that a request names, so NotFound for any other form.
  static absl::StatusOr<OperationName> ParseRequested(std::string_view name);
  std::string ToString() const;
};

absl::Status NoSuchOperation(std::string_view why);

// Makes ids: the time in milliseconds, or a little later, so that they differ and grow.
// Not thread-safe.
class OperationIds {
 public:
  std::string Next();

 private:
  int64_t last_ms_ = 0;
};

// The states of operations on disk: one JSON file each, REPLICA/ID.json in one folder
// that replicas may share, written atomically.  Thread-safe.
class OperationFiles {
 public:
  explicit OperationFiles(std::string folder) : folder_(std::move(folder)) {}
  ~OperationFiles();
  OperationFiles(const OperationFiles&) = delete;
  OperationFiles& operator=(const OperationFiles&) = delete;

  // Makes this replica's folder and holds it.  FailedPrecondition when another server
  // holds it.
  absl::Status Hold(const std::string& replica);

  absl::Status Write(const OperationStatus& operation) const;
  void Remove(const OperationName& name) const;
  // NotFound, or InvalidArgument for a damaged file.
  absl::StatusOr<OperationStatus> Read(const OperationName& name) const;
  // The names of every replica's operations, newest first.
  std::vector<OperationName> List() const;
  // Those after `last`, the name that a page ended with; empty: all.  InvalidArgument for
  // what is no name.
  absl::StatusOr<std::vector<OperationName>> ListAfter(const std::string& last) const;

 private:
  std::string PathOf(const OperationName& name) const;

  const std::string folder_;
  int lock_ = -1;  // file descriptor
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_OPERATION_FILES_H_
