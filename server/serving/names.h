#ifndef GATEHOUSE_SERVER_SERVING_NAMES_H_
#define GATEHOUSE_SERVER_SERVING_NAMES_H_

#include <string_view>

#include "absl/status/status.h"

namespace gatehouse {

// Names of models, calibrations and replicas become names of files: 1 to 64 letters,
// digits, '.', '_' and '-', the first of them not '.' or '-'.  InvalidArgument, naming
// `what`, for any other.
absl::Status CheckName(std::string_view what, std::string_view name);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_SERVING_NAMES_H_
