#ifndef GATEHOUSE_SERVER_ENGINE_MODEL_SAFETENSORS_HEADER_H_
#define GATEHOUSE_SERVER_ENGINE_MODEL_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace gatehouse {

// What the JSON header of a safetensors file says, checked against itself but not yet
// against the size of the file.
struct SafetensorsHeader {
  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

// Bytes of one element, or 0 for a dtype the format does not have.
int SafetensorsElementSize(std::string_view dtype);

// Parses the header without building a document: anything that is not of the
// header's form, however deep or long, fails at its first sign.  InvalidArgument, naming
// the tensor.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_ENGINE_MODEL_SAFETENSORS_HEADER_H_
