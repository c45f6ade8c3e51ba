#ifndef GATEHOUSE_SERVER_BASE_NPZ_H_
#define GATEHOUSE_SERVER_BASE_NPZ_H_

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gatehouse {

// An array of numbers, row-major, as a view of its owner's values.
struct NpzArray {
  std::string name;
  std::vector<int64_t> shape;  // no entry: a scalar
  std::variant<std::span<const float>, std::span<const double>, std::span<const int64_t>> values;
};

// The bytes of a .npz file, numpy's zip of named arrays: `numpy.load` reads it.  The arrays
// are stored as they are, without compression.  InvalidArgument for a name that is empty,
// given twice or holds '/', and for a shape that does not fit the values.
absl::StatusOr<std::string> EncodeNpz(std::span<const NpzArray> arrays);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_BASE_NPZ_H_
