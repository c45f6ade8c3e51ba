#include "server/base/npz.h"

#include <zip.h>

#include <bit>
#include <ctime>
#include <memory>
#include <set>

#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

static_assert(std::endian::native == std::endian::little, "arrays are written as they lie in memory");

// Of every entry, so that equal arrays make equal files: the first day of zip's calendar.
constexpr zip_uint16_t kDosDate = (1 << 5) | 1;
constexpr zip_uint16_t kDosTime = 0;

std::string_view BytesOf(const NpzArray& array) {
  return std::visit(
      [](const auto& values) {
        return std::string_view(reinterpret_cast<const char*>(values.data()), values.size_bytes());
      },
      array.values);
}

std::string_view DtypeOf(const NpzArray& array) {
  constexpr std::string_view kDtypes[] = {"<f4", "<f8", "<i8"};
  return kDtypes[array.values.index()];
}

// What stands before the values in a .npy file, of version 1.0: numpy's format is documented
// as NEP 1.
std::string NpyHeader(const NpzArray& array) {
  constexpr size_t kAlignment = 64, kPreamble = 10;
  std::string shape;
  for (const int64_t size : array.shape) shape += StrCat(size, ",");
  std::string header = StrCat("{'descr': '", DtypeOf(array), "', 'fortran_order': False, 'shape': (", shape, "), }");
  while ((kPreamble + header.size() + 1) % kAlignment != 0) header += ' ';
  header += '\n';
  const std::string size = {static_cast<char>(header.size() & 0xFF), static_cast<char>(header.size() >> 8)};
  return StrCat(std::string("\x93NUMPY\x01", 7), std::string(1, '\0'), size, header);
}

absl::Status Check(const NpzArray& array, std::set<std::string>& names) {
  constexpr size_t kMaxDimensions = 32;  // numpy's own bound
  if (array.name.empty() || array.name.find('/') != std::string::npos) {
    return absl::InvalidArgumentError(StrCat("'", array.name, "' cannot be the name of an array"));
  }
  if (!names.insert(array.name).second) {
    return absl::InvalidArgumentError(StrCat("two arrays are named '", array.name, "'"));
  }
  size_t count = 1;
  bool fits = array.shape.size() <= kMaxDimensions;
  for (const int64_t size : array.shape) {
    fits = fits && size >= 0;
    count *= fits ? static_cast<size_t>(size) : 0;
  }
  const size_t values = std::visit([](const auto& span) { return span.size(); }, array.values);
  if (!(fits && count == values)) {
    return absl::InvalidArgumentError(StrCat("the shape of array '", array.name, "' does not fit its values"));
  }
  return absl::OkStatus();
}

absl::Status Failed(std::string_view what, const char* why) {
  return absl::InternalError(StrCat("cannot ", what, " the archive: ", why));
}

struct SourceFree {
  void operator()(zip_source_t* source) const { zip_source_free(source); }
};
using SourcePtr = std::unique_ptr<zip_source_t, SourceFree>;
struct Discard {
  void operator()(zip_t* archive) const { zip_discard(archive); }
};
using ArchivePtr = std::unique_ptr<zip_t, Discard>;

// Adds `entry`, which stays valid until the archive is closed.
absl::Status Add(zip_t* archive, const std::string& name, std::string_view entry) {
  SourcePtr source(zip_source_buffer(archive, entry.data(), entry.size(), /*freep=*/0));
  if (source == nullptr) return Failed("make", zip_strerror(archive));
  const zip_int64_t index = zip_file_add(archive, name.c_str(), source.get(), ZIP_FL_ENC_UTF_8);
  if (index < 0) return Failed("make", zip_strerror(archive));
  (void)source.release();  // the archive owns it now
  const auto entry_index = static_cast<zip_uint64_t>(index);
  if (zip_set_file_compression(archive, entry_index, ZIP_CM_STORE, 0) != 0 ||
      zip_file_set_dostime(archive, entry_index, kDosTime, kDosDate, 0) != 0) {
    return Failed("make", zip_strerror(archive));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadAll(zip_source_t* source) {
  zip_stat_t stat;
  if (zip_source_stat(source, &stat) != 0 || zip_source_open(source) != 0) {
    return Failed("read", zip_error_strerror(zip_source_error(source)));
  }
  std::string bytes(stat.size, '\0');
  const zip_int64_t read = zip_source_read(source, bytes.data(), bytes.size());
  zip_source_close(source);
  if (read != static_cast<zip_int64_t>(bytes.size())) {
    return Failed("read", zip_error_strerror(zip_source_error(source)));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::string> EncodeNpz(std::span<const NpzArray> arrays) {
  std::set<std::string> names;
  for (const NpzArray& array : arrays) GH_RETURN_IF_ERROR(Check(array, names));

  zip_error_t error;
  zip_error_init(&error);
  const SourcePtr file(zip_source_buffer_create(nullptr, 0, 0, &error));
  if (file == nullptr) return Failed("make", zip_error_strerror(&error));
  ArchivePtr archive(zip_open_from_source(file.get(), ZIP_TRUNCATE, &error));
  if (archive == nullptr) return Failed("make", zip_error_strerror(&error));
  zip_source_keep(file.get());  // both the archive and we own it
  std::vector<std::string> entries;
  entries.reserve(arrays.size());
  for (const NpzArray& array : arrays) {
    const std::string& entry = entries.emplace_back(StrCat(NpyHeader(array), BytesOf(array)));
    GH_RETURN_IF_ERROR(Add(archive.get(), StrCat(array.name, ".npy"), entry));
  }
  if (arrays.empty()) {
    // The library writes no archive without an entry; this is one, the end of the directory
    // alone.
    return std::string("PK\x05\x06", 4) + std::string(18, '\0');
  }
  if (zip_close(archive.get()) != 0) return Failed("write", zip_strerror(archive.get()));
  (void)archive.release();  // closed
  return ReadAll(file.get());
}

}  // namespace gatehouse
