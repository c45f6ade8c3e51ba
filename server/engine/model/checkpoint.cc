#include "server/engine/model/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_join.h"
#include "server/base/digest.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/engine/model/json_object.h"

namespace gatehouse {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxIndexBytes = 100'000'000;
// A tensor up to this size is hashed whole; of a larger one, pieces spread evenly.
constexpr size_t kWholeBytes = size_t{1} << 20;
constexpr size_t kPieces = 64;
constexpr size_t kPieceBytes = 4096;

std::string ShapeText(std::span<const int64_t> shape) { return StrCat("[", absl::StrJoin(shape, ", "), "]"); }

// The folder that links in a model directory may lead into: the directory itself, or
// for a snapshot in a hub cache (<repository>/snapshots/<revision>) the repository.
fs::path RootOf(const fs::path& directory) {
  const fs::path snapshots = directory.parent_path();
  return snapshots.filename() == "snapshots" ? snapshots.parent_path() : directory;
}

bool IsWithin(const fs::path& path, const fs::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

// The real path of a shard, which must lie in the model's own folder: the name comes
// from a file, not from the operator.
absl::StatusOr<std::string> ResolveShard(const std::string& directory, const std::string& shard) {
  const fs::path relative(shard);
  const bool climbs = std::find(relative.begin(), relative.end(), "..") != relative.end();
  if (shard.empty() || relative.is_absolute() || climbs || shard.find('\0') != shard.npos) {
    return absl::InvalidArgumentError(StrCat("weight_map names \"", shard, "\", which is outside the model directory"));
  }
  std::error_code error;
  const fs::path root = fs::canonical(directory, error);
  if (error) return absl::NotFoundError(StrCat("cannot resolve ", directory, ": ", error.message()));
  const fs::path path = fs::canonical(root / relative, error);
  if (error) return absl::NotFoundError(StrCat("shard ", shard, " is not there: ", error.message()));
  if (!IsWithin(path, RootOf(root))) {
    return absl::InvalidArgumentError(StrCat("shard ", shard, " is a link that leads outside the model directory"));
  }
  return path.string();
}

absl::Status HashTensor(const SafetensorsFile& file, const SafetensorsFile::Entry& entry, Sha256& hash) {
  std::string bytes(entry.bytes <= kWholeBytes ? entry.bytes : kPieceBytes, '\0');
  const auto update = [&](uint64_t offset) -> absl::Status {
    GH_RETURN_IF_ERROR(file.ReadBytes(entry, offset, bytes));
    hash.Update(bytes);
    return absl::OkStatus();
  };
  if (entry.bytes <= kWholeBytes) return update(0);
  const uint64_t last = entry.bytes - kPieceBytes;
  for (size_t piece = 0; piece < kPieces; ++piece) GH_RETURN_IF_ERROR(update(last / (kPieces - 1) * piece));
  return update(last);
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& directory, std::string_view prefix) {
  Checkpoint checkpoint(directory);
  const std::string single = directory + "/model.safetensors";
  const std::string index = directory + "/model.safetensors.index.json";
  std::error_code error;
  if (fs::exists(single, error)) {
    GH_RETURN_IF_ERROR(checkpoint.OpenSingle(single, prefix));
  } else if (fs::exists(index, error)) {
    const absl::Status status = checkpoint.OpenShards(index, prefix);
    if (!status.ok()) return Annotate(status, index);
  } else {
    return absl::NotFoundError(StrCat(directory, " has neither model.safetensors nor model.safetensors.index.json",
                                      " (weights in pickle files are not read)"));
  }
  return checkpoint;
}

absl::Status Checkpoint::OpenSingle(const std::string& path, std::string_view prefix) {
  GH_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
  files_.push_back(std::make_unique<SafetensorsFile>(std::move(file)));
  for (const auto& [name, entry] : files_.back()->entries()) {
    GH_RETURN_IF_ERROR(Add(files_.back().get(), name, prefix));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::OpenShards(const std::string& index_path, std::string_view prefix) {
  GH_ASSIGN_OR_RETURN(const std::string text, ReadFile(index_path, kMaxIndexBytes));
  GH_ASSIGN_OR_RETURN(const JsonObject index, JsonObject::Parse(text, "index"));
  if (!index.Has("weight_map")) return index.Error("weight_map", "is missing");
  GH_ASSIGN_OR_RETURN(const JsonObject weight_map, index.ObjectOr("weight_map"));
  std::map<std::string, const SafetensorsFile*> shards;
  for (const std::string& name : weight_map.Keys()) {
    GH_ASSIGN_OR_RETURN(const std::string shard, weight_map.String(name));
    const SafetensorsFile*& file = shards[shard];
    if (file == nullptr) {
      GH_ASSIGN_OR_RETURN(const std::string path, ResolveShard(directory_, shard));
      GH_ASSIGN_OR_RETURN(SafetensorsFile opened, SafetensorsFile::Open(path));
      files_.push_back(std::make_unique<SafetensorsFile>(std::move(opened)));
      file = files_.back().get();
    }
    if (!file->entries().contains(name)) {
      return absl::NotFoundError(StrCat("tensor ", name, " is not in its shard ", shard));
    }
    GH_RETURN_IF_ERROR(Add(file, name, prefix));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Add(const SafetensorsFile* file, const std::string& file_name, std::string_view prefix) {
  const std::string name = file_name.starts_with(prefix) ? file_name.substr(prefix.size()) : file_name;
  if (!tensors_.emplace(name, Tensor{file, file_name}).second) {
    return absl::InvalidArgumentError(
        StrCat(directory_, ": tensor ", name, " is there twice, with and without \"", prefix, "\""));
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> Checkpoint::Get(const std::string& name, std::span<const int64_t> shape) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return absl::NotFoundError(StrCat(directory_, ": tensor ", name, " is missing"));
  const auto& [file, file_name] = found->second;
  const SafetensorsFile::Entry& entry = file->entries().at(file_name);
  if (!std::equal(shape.begin(), shape.end(), entry.shape.begin(), entry.shape.end())) {
    return absl::InvalidArgumentError(StrCat(directory_, ": tensor ", file_name, " has the shape ",
                                             ShapeText(entry.shape), ", the configuration asks for ",
                                             ShapeText(shape)));
  }
  GH_ASSIGN_OR_RETURN(at::Tensor tensor, file->Read(file_name));
  if (!tensor.is_floating_point()) {
    return absl::InvalidArgumentError(StrCat(directory_, ": tensor ", file_name, " has the dtype ", entry.dtype,
                                             ", which is no floating-point type"));
  }
  used_.insert(name);
  read_.insert(name);
  return tensor;
}

absl::Status Checkpoint::CheckAllUsed() const {
  for (const auto& [name, tensor] : tensors_) {
    if (!used_.contains(name)) {
      return absl::InvalidArgumentError(
          StrCat(directory_, ": tensor ", tensor.file_name, " has no place in the model that config.json describes"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Checkpoint::Fingerprint(std::string_view essentials) const {
  Sha256 hash;
  hash.Update(essentials);
  for (const std::string& name : read_) {
    const Tensor& tensor = tensors_.at(name);
    const SafetensorsFile::Entry& entry = tensor.file->entries().at(tensor.file_name);
    hash.Update(StrCat("\n", name, " ", entry.dtype, " ", ShapeText(entry.shape), "\n"));
    GH_RETURN_IF_ERROR(HashTensor(*tensor.file, entry, hash));
  }
  return StrCat("sha256:", hash.HexDigest());
}

}  // namespace gatehouse
