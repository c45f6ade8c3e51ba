#ifndef GATEHOUSE_SERVER_ENGINE_TORCH_BOUNDARY_H_
#define GATEHOUSE_SERVER_ENGINE_TORCH_BOUNDARY_H_

#include <functional>

#include "absl/status/status.h"

namespace gatehouse {

// The one place where exceptions of LibTorch become a Status: runs `body` in inference
// mode unless `grad`.  Out-of-memory errors (also std::bad_alloc) become
// ResourceExhausted, everything else Internal, with the first line of the message.
absl::Status AtTorchBoundary(const std::function<absl::Status()>& body, bool grad = false);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_TORCH_BOUNDARY_H_
