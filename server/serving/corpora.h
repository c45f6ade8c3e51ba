#ifndef GATEHOUSE_SERVER_SERVING_CORPORA_H_
#define GATEHOUSE_SERVER_SERVING_CORPORA_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/serving/operations.h"

namespace gatehouse {

// The uploaded corpora: a file a corpus in one folder, named by the SHA-256 of its
// bytes, beside a small JSON file with its label.  Replicas may share the folder.
// Thread-safe.
class CorpusStore {
 public:
  // A corpus that is there.
  struct Found {
    std::string path;
    std::string label;
    std::string sha256;
  };

  // Makes the folder, and clears what uploads to this replica left when it stopped.
  static absl::StatusOr<std::unique_ptr<CorpusStore>> Create(std::string folder, std::string replica,
                                                             int64_t limit_bytes);

  // InvalidArgument for a label of over 256 bytes, or one that is not UTF-8 on one line.
  absl::StatusOr<std::unique_ptr<CorpusUpload>> BeginUpload(const std::string& label);
  // By name, "corpora/SHA256"; counts as a use.  InvalidArgument for any other form; NotFound.
  absl::StatusOr<Found> Find(const std::string& name) const;
  // Removes those not used for longest, until `keep` are left, but none of `needed`, by
  // name.  An upload counts as a use.
  void Prune(size_t keep, const std::set<std::string>& needed) const;

  int64_t limit_bytes() const { return limit_bytes_; }

 private:
  CorpusStore(std::string folder, std::string replica, int64_t limit_bytes);

  const std::string folder_, replica_;
  const int64_t limit_bytes_;
  std::atomic<int> uploads_{0};
};

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_CORPORA_H_
