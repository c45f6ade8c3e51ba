#include "server/engine/model/safetensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/model/safetensors_header.h"
#include "server/engine/torch_boundary.h"

namespace gatehouse {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kLengthBytes = 8;

struct DtypeName {
  std::string_view name;
  at::ScalarType type;
};
constexpr DtypeName kDtypes[] = {{"F64", at::kDouble},    {"F32", at::kFloat}, {"F16", at::kHalf},
                                 {"BF16", at::kBFloat16}, {"I64", at::kLong},  {"I32", at::kInt},
                                 {"I16", at::kShort},     {"I8", at::kChar},   {"U8", at::kByte}};

std::optional<at::ScalarType> TypeOf(std::string_view name) {
  for (const DtypeName& dtype : kDtypes) {
    if (dtype.name == name) return dtype.type;
  }
  return std::nullopt;
}

std::optional<std::string_view> NameOf(at::ScalarType type) {
  for (const DtypeName& dtype : kDtypes) {
    if (dtype.type == type) return dtype.name;
  }
  return std::nullopt;
}

// The JSON text of the header.
absl::StatusOr<std::string> HeaderText(const InputFile& file) {
  if (file.size() < kLengthBytes) {
    return absl::InvalidArgumentError(StrCat("too small to be a safetensors file: ", file.size(), " bytes"));
  }
  char length_bytes[kLengthBytes];
  GH_RETURN_IF_ERROR(file.Read(0, length_bytes));
  uint64_t length = 0;
  std::memcpy(&length, length_bytes, kLengthBytes);
  if (length > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(StrCat("the header length ", length, " is above the limit of ", kMaxHeaderBytes));
  }
  if (length > file.size() - kLengthBytes) {
    return absl::InvalidArgumentError(
        StrCat("the header length ", length, " reaches past the end of the file of ", file.size(), " bytes"));
  }
  std::string text(length, '\0');
  GH_RETURN_IF_ERROR(file.Read(kLengthBytes, text));
  return text;
}

// The tensors must tile the data: from its first byte to its last, one after another.
absl::Status CheckTiling(const SafetensorsHeader& header, uint64_t data_bytes) {
  using Item = std::pair<const std::string, SafetensorsHeader::Tensor>;
  std::vector<const Item*> items;
  for (const Item& item : header.tensors) items.push_back(&item);
  std::sort(items.begin(), items.end(), [](const Item* a, const Item* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  uint64_t end = 0;
  for (const Item* item : items) {
    const auto& [name, tensor] = *item;
    if (tensor.end > data_bytes) {
      return absl::InvalidArgumentError(StrCat("tensor ", name, " ends at byte ", tensor.end,
                                               " of the data, which has ", data_bytes, ": the file is truncated"));
    }
    if (tensor.begin < end) return absl::InvalidArgumentError(StrCat("tensor ", name, " overlaps another"));
    if (tensor.begin > end) return absl::InvalidArgumentError(StrCat("there is a hole before tensor ", name));
    end = tensor.end;
  }
  if (end != data_bytes) {
    return absl::InvalidArgumentError(StrCat(data_bytes - end, " bytes of data belong to no tensor"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  GH_ASSIGN_OR_RETURN(InputFile input, InputFile::Open(path));
  SafetensorsFile file(std::move(input), path);
  absl::StatusOr<std::string> text = HeaderText(file.file_);
  if (!text.ok()) return Annotate(text.status(), path);
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(*text);
  if (!header.ok()) return Annotate(header.status(), path);
  const uint64_t data = kLengthBytes + text->size();
  const absl::Status tiling = CheckTiling(*header, file.file_.size() - data);
  if (!tiling.ok()) return Annotate(tiling, path);

  file.header_ = *std::move(text);
  file.metadata_ = std::move(header->metadata);
  for (auto& [name, tensor] : header->tensors) {
    file.entries_.emplace(
        name, Entry{std::move(tensor.dtype), std::move(tensor.shape), data + tensor.begin, tensor.end - tensor.begin});
  }
  return file;
}

absl::StatusOr<at::Tensor> SafetensorsFile::Read(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return absl::NotFoundError(StrCat(path_, ": no tensor ", name));
  const Entry& entry = found->second;
  const std::optional<at::ScalarType> type = TypeOf(entry.dtype);
  if (!type) {
    return absl::InvalidArgumentError(StrCat(path_, ": tensor ", name, " has the unsupported dtype ", entry.dtype));
  }
  at::Tensor tensor;
  // Without inference mode: what is read here may be used in training.
  GH_RETURN_IF_ERROR(AtTorchBoundary(
      [&]() -> absl::Status {
        tensor = at::empty(entry.shape, at::TensorOptions().dtype(*type));
        if (entry.bytes == 0) return absl::OkStatus();
        return Annotate(ReadBytes(entry, 0, {static_cast<char*>(tensor.mutable_data_ptr()), entry.bytes}),
                        StrCat("tensor ", name));
      },
      /*grad=*/true));
  return tensor;
}

namespace {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;  // contiguous, on the CPU
  std::string_view dtype;
};

// Contiguous copies where needed, the widest elements first so that all lie aligned,
// else by name.
absl::StatusOr<std::vector<NamedTensor>> InFileOrder(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<NamedTensor> ordered;
  for (const auto& [name, tensor] : tensors) {
    if (name == "__metadata__") return absl::InvalidArgumentError("a tensor cannot be named __metadata__");
    if (!tensor.defined()) return absl::InvalidArgumentError(StrCat("tensor ", name, " is undefined"));
    const std::optional<std::string_view> dtype = NameOf(tensor.scalar_type());
    if (!dtype) return absl::InvalidArgumentError(StrCat("tensor ", name, " has a dtype that cannot be written"));
    ordered.push_back({name, tensor.detach().to(at::kCPU).contiguous(), *dtype});
  }
  std::stable_sort(ordered.begin(), ordered.end(), [](const NamedTensor& a, const NamedTensor& b) {
    return a.tensor.element_size() > b.tensor.element_size();
  });
  return ordered;
}

std::string HeaderFor(const std::vector<NamedTensor>& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  size_t offset = 0;
  for (const NamedTensor& item : tensors) {
    const size_t end = offset + item.tensor.nbytes();
    header[item.name] = {{"dtype", item.dtype}, {"shape", item.tensor.sizes().vec()}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, kLengthBytes);
  return bytes + text;
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  return AtTorchBoundary([&]() -> absl::Status {
    GH_ASSIGN_OR_RETURN(const std::vector<NamedTensor> ordered, InFileOrder(tensors));
    std::string header;
    try {
      header = HeaderFor(ordered, metadata);
    } catch (const nlohmann::json::exception&) {
      return absl::InvalidArgumentError(StrCat(path, ": a name or a value of the metadata is not valid UTF-8"));
    }
    std::vector<std::string_view> pieces = {header};
    for (const NamedTensor& item : ordered) {
      pieces.emplace_back(static_cast<const char*>(item.tensor.const_data_ptr()), item.tensor.nbytes());
    }
    return WriteFileAtomically(path, pieces);
  });
}

}  // namespace gatehouse
