#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <set>

#include "server/base/strings.h"
#include "tests/rpc/raw_call.h"
#include "tests/rpc/rpc_fixture.h"

namespace gatehouse::testing {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptorProto;
using google::protobuf::Message;
using ::testing::IsSupersetOf;

constexpr char kPackage[] = "grpc.reflection.v1alpha.";

std::unique_ptr<Message> NewMessage(const std::string& name) {
  const auto* const type = DescriptorPool::generated_pool()->FindMessageTypeByName(StrCat(kPackage, name));
  EXPECT_NE(type, nullptr) << name;
  return std::unique_ptr<Message>(google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

// Asks the server's reflection service; returns the answer.
std::unique_ptr<Message> Ask(const std::shared_ptr<grpc::Channel>& channel, const std::string& request_text) {
  const auto request = NewMessage("ServerReflectionRequest");
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(request_text, request.get()));
  const RawReply reply = RawCall(channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                                 {request->SerializeAsString()});
  EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.messages.size(), 1);
  auto answer = NewMessage("ServerReflectionResponse");
  if (!reply.messages.empty()) {
    EXPECT_TRUE(answer->ParseFromString(reply.messages.front()));
  }
  return answer;
}

const Message& Field(const Message& message, const std::string& name) {
  return message.GetReflection()->GetMessage(message, message.GetDescriptor()->FindFieldByName(name));
}

std::vector<std::string> Services(const std::shared_ptr<grpc::Channel>& channel) {
  const auto answer = Ask(channel, "list_services: ''");
  const Message& list = Field(*answer, "list_services_response");
  const auto* const field = list.GetDescriptor()->FindFieldByName("service");
  std::vector<std::string> names;
  for (int i = 0; i < list.GetReflection()->FieldSize(list, field); ++i) {
    const Message& entry = list.GetReflection()->GetRepeatedMessage(list, field, i);
    names.push_back(entry.GetReflection()->GetString(entry, entry.GetDescriptor()->FindFieldByName("name")));
  }
  return names;
}

// The files that define a symbol or a file name, with what they import.
void Collect(const std::shared_ptr<grpc::Channel>& channel, const std::string& request,
             std::map<std::string, FileDescriptorProto>& files) {
  const auto answer = Ask(channel, request);
  const Message& found = Field(*answer, "file_descriptor_response");
  const auto* const field = found.GetDescriptor()->FindFieldByName("file_descriptor_proto");
  const int count = found.GetReflection()->FieldSize(found, field);
  EXPECT_GT(count, 0) << request;
  std::vector<std::string> imports;
  for (int i = 0; i < count; ++i) {
    FileDescriptorProto file;
    ASSERT_TRUE(file.ParseFromString(found.GetReflection()->GetRepeatedString(found, field, i)));
    imports.insert(imports.end(), file.dependency().begin(), file.dependency().end());
    files[file.name()] = file;
  }
  for (const std::string& import : imports) {
    if (files.count(import) == 0) Collect(channel, StrCat("file_by_filename: '", import, "'"), files);
  }
}

TEST_F(RpcTest, ReflectionListsEveryServiceAndResolvesEverySymbol) {
  StartServer();
  const std::vector<std::string> services = Services(channel_);
  EXPECT_THAT(services, IsSupersetOf({"gatehouse.v1.GenerationService", "gatehouse.v1.ScoringService",
                                      "gatehouse.v1.AnalysisService", "gatehouse.v1.ModelService",
                                      "gatehouse.v1.OperationService", "grpc.health.v1.Health"}));
  std::map<std::string, FileDescriptorProto> files;
  for (const std::string& service : services) {
    Collect(channel_, StrCat("file_containing_symbol: '", service, "'"), files);
  }
  // What was sent is complete: it builds, and every type of every method is in it.
  google::protobuf::SimpleDescriptorDatabase database;
  for (const auto& [name, file] : files) database.Add(file);
  DescriptorPool pool(&database);
  std::set<std::string> messages;
  for (const std::string& service : services) {
    const auto* const descriptor = pool.FindServiceByName(service);
    ASSERT_NE(descriptor, nullptr) << service;
    for (int i = 0; i < descriptor->method_count(); ++i) {
      messages.insert(descriptor->method(i)->input_type()->full_name());
      messages.insert(descriptor->method(i)->output_type()->full_name());
    }
  }
  EXPECT_GE(messages.size(), 28U);
  for (const std::string& message : messages) {
    std::map<std::string, FileDescriptorProto> found;
    Collect(channel_, StrCat("file_containing_symbol: '", message, "'"), found);
    EXPECT_FALSE(found.empty()) << message;
  }
}

}  // namespace
}  // namespace gatehouse::testing
