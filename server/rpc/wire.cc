#include "server/rpc/wire.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <map>
#include <string>
#include <string_view>

#include "server/base/error_reason.h"
#include "server/base/strings.h"
#include "server/serving/utf8_stream.h"

namespace gatehouse {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr int kMaxDepth = 100;  // protobuf's own

// Path of the first string field in `bytes` that is not UTF-8; empty when there is none.
std::string FindInvalidString(const Descriptor& type, std::string_view bytes, int depth) {
  CodedInputStream input(reinterpret_cast<const uint8_t*>(bytes.data()), static_cast<int>(bytes.size()));
  std::map<int, int> seen;  // of repeated fields, by number
  for (uint32_t tag = input.ReadTag(); tag != 0; tag = input.ReadTag()) {
    const FieldDescriptor* const field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    if (field == nullptr || WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&input, tag)) return "";
      continue;
    }
    std::string value;
    uint32_t size = 0;
    if (!input.ReadVarint32(&size) || !input.ReadString(&value, static_cast<int>(size))) return "";
    std::string name = field->name();
    if (field->is_repeated()) name = StrCat(name, "[", seen[field->number()]++, "]");
    if (field->type() == FieldDescriptor::TYPE_STRING && !IsUtf8(value)) return name;
    if (field->type() == FieldDescriptor::TYPE_MESSAGE && depth < kMaxDepth) {
      const std::string inner = FindInvalidString(*field->message_type(), value, depth + 1);
      if (!inner.empty()) return StrCat(name, ".", inner);
    }
  }
  return "";
}

}  // namespace

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
  {
    grpc::ByteBuffer copy(bytes);
    grpc::ProtoBufferReader reader(&copy);
    if (reader.status().ok() && message.ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  }
  grpc::Slice whole;
  if (bytes.DumpToSingleSlice(&whole).ok()) {
    const std::string_view view(reinterpret_cast<const char*>(whole.begin()), whole.size());
    const std::string field = FindInvalidString(*message.GetDescriptor(), view, 0);
    if (!field.empty()) {
      return WithReason(absl::InvalidArgumentError(StrCat(field, ": the text is not UTF-8")), reason::kInvalidUtf8);
    }
  }
  return WithReason(
      absl::InvalidArgumentError(StrCat("the bytes received are no ", message.GetDescriptor()->full_name())),
      reason::kMalformedMessage);
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message) {
  grpc::ByteBuffer bytes;
  bool own_buffer = false;
  // Fails only where memory is out, and then the call ends without this message.
  (void)grpc::SerializationTraits<google::protobuf::Message>::Serialize(message, &bytes, &own_buffer);
  return bytes;
}

}  // namespace gatehouse
