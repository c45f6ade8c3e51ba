#include "server/engine/model/safetensors_header.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/base/strings.h"

namespace gatehouse {
namespace {

constexpr size_t kMaxRank = 32;

// Follows the header {name: {"dtype": text, "shape": [n…], "data_offsets": [n, n]}…,
// "__metadata__": {text: text…}} value by value.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  const std::string& error() const { return error_; }
  SafetensorsHeader TakeHeader() { return std::move(header_); }

  bool null() override {
    // "__metadata__": null counts as none.
    return place_ == Place::kTensors && in_metadata_ ? Leave() : Fail("holds a null");
  }
  bool boolean(bool) override { return Fail("holds a boolean"); }
  bool number_integer(number_integer_t) override { return Fail("holds a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return Fail("holds a number that is no integer"); }
  bool binary(binary_t&) override { return Fail("holds binary data"); }

  bool number_unsigned(number_unsigned_t number) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return Fail("holds a number out of place");
    if (number > static_cast<uint64_t>(INT64_MAX)) return Fail("holds a number past 2^63");
    numbers_.push_back(number);
    if (numbers_.size() > kMaxRank) return Fail(StrCat("has more than ", kMaxRank, " dimensions"));
    return true;
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) {
      if (!header_.metadata.emplace(std::move(field_), std::move(text)).second) return Fail("repeats a key");
      return true;
    }
    if (place_ != Place::kTensor || field_ != "dtype") return Fail("holds a string out of place");
    if (SafetensorsElementSize(text) == 0) return Fail(StrCat("has the unknown dtype \"", Shortened(text), "\""));
    tensor_.dtype = std::move(text);
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kTensors;
      return true;
    }
    if (place_ != Place::kTensors) return Fail("holds an object out of place");
    place_ = in_metadata_ ? Place::kMetadata : Place::kTensor;
    return true;
  }

  bool key(string_t& text) override {
    if (place_ == Place::kTensors) {
      name_ = std::move(text);
      in_metadata_ = name_ == "__metadata__";
      if (in_metadata_ ? std::exchange(metadata_seen_, true) : header_.tensors.contains(name_)) {
        return Fail("is listed twice");
      }
      return true;
    }
    field_ = std::move(text);
    if (place_ == Place::kMetadata) return true;
    if (field_ != "dtype" && field_ != "shape" && field_ != "data_offsets") {
      return Fail(StrCat("has the unknown field \"", Shortened(field_), "\""));
    }
    if (!fields_seen_.emplace(field_, true).second) return Fail(StrCat("has two fields ", field_));
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensors) {
      place_ = Place::kOutside;
      return true;
    }
    return place_ == Place::kMetadata ? Leave() : FinishTensor();
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || field_ == "dtype") return Fail("holds an array out of place");
    place_ = field_ == "shape" ? Place::kShape : Place::kOffsets;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kShape) {
      tensor_.shape.assign(numbers_.begin(), numbers_.end());
    } else {
      if (numbers_.size() != 2) return Fail("needs two data_offsets");
      if (numbers_[0] > numbers_[1]) return Fail("has data_offsets that end before they begin");
      tensor_.begin = numbers_[0];
      tensor_.end = numbers_[1];
    }
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    if (error_.empty()) error_ = StrCat("the header is not valid JSON at byte ", position);
    return false;
  }

 private:
  enum class Place { kOutside, kTensors, kMetadata, kTensor, kShape, kOffsets };

  static std::string Shortened(std::string_view text) { return std::string(text.substr(0, 60)); }

  bool Fail(std::string_view what) {
    error_ = name_.empty() ? StrCat("the header ", what) : StrCat("tensor ", Shortened(name_), " ", what);
    return false;
  }

  bool Leave() {
    place_ = Place::kTensors;
    in_metadata_ = false;
    name_.clear();
    return true;
  }

  // Checks the tensor whose object ends, its size against its shape included.
  bool FinishTensor() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!fields_seen_.contains(field)) return Fail(StrCat("has no ", field));
    }
    uint64_t bytes = static_cast<uint64_t>(SafetensorsElementSize(tensor_.dtype));
    for (const int64_t size : tensor_.shape) {
      if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) {
        return Fail("has a shape whose size overflows");
      }
    }
    if (bytes != tensor_.end - tensor_.begin) {
      return Fail(StrCat("needs ", bytes, " bytes for its shape, its data_offsets hold ", tensor_.end - tensor_.begin));
    }
    header_.tensors.emplace(name_, std::exchange(tensor_, {}));
    fields_seen_.clear();
    return Leave();
  }

  SafetensorsHeader header_;
  Place place_ = Place::kOutside;
  bool in_metadata_ = false;
  bool metadata_seen_ = false;
  std::string name_;
  std::string field_;
  std::map<std::string, bool, std::less<>> fields_seen_;
  std::vector<uint64_t> numbers_;
  SafetensorsHeader::Tensor tensor_;
  std::string error_;
};

}  // namespace

int SafetensorsElementSize(std::string_view dtype) {
  static const std::map<std::string_view, int> kSizes = {
      {"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"U16", 2}, {"I16", 2},
      {"F16", 2},  {"BF16", 2}, {"U32", 4}, {"I32", 4},     {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8}};
  const auto found = kSizes.find(dtype);
  return found == kSizes.end() ? 0 : found->second;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json) {
  // The parser would skip a byte order mark, and take a NUL for the end of the text.
  if (json.starts_with("\xEF\xBB\xBF")) return absl::InvalidArgumentError("the header begins with a byte order mark");
  if (json.find('\0') != json.npos) return absl::InvalidArgumentError("the header holds a NUL byte");
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(json, &reader)) {
    return absl::InvalidArgumentError(reader.error().empty() ? "the header is not valid JSON" : reader.error());
  }
  return reader.TakeHeader();
}

}  // namespace gatehouse
