#include "server/rpc/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gatehouse/v1/generation.pb.h"
#include "server/base/error_reason.h"
#include "tests/rpc/raw_call.h"
#include "tests/rpc/rpc_fixture.h"
#include "tests/support/status_matchers.h"

namespace gatehouse::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

grpc::ByteBuffer Buffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string WithText(const std::string& text) {
  v1::GenerateRequest request;
  request.set_model("m");
  request.mutable_prompt()->set_text(text);
  return request.SerializeAsString();
}

TEST(Wire, ReadsWhatItWrites) {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text(std::string(100'000, 'x'));
  v1::GenerateRequest read;
  ASSERT_TRUE(ParseMessage(SerializeMessage(request), read).ok());
  EXPECT_EQ(read.prompt().text(), request.prompt().text());
}

TEST(Wire, ReadsAnEmptyMessage) {
  v1::GenerateRequest request;
  EXPECT_TRUE(ParseMessage(SerializeMessage(request), request).ok());
}

TEST(Wire, NamesTheFieldThatIsNotUtf8) {
  v1::GenerateRequest request;
  const absl::Status status = ParseMessage(Buffer(WithText("\xFF\xFE")), request);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("prompt.text: ")));
  EXPECT_EQ(ReasonOf(status), "INVALID_UTF8");
}

TEST(Wire, NamesTheElementThatIsNotUtf8) {
  v1::GenerateRequest request;
  request.mutable_stop()->add_strings("fine");
  request.mutable_stop()->add_strings("\xC3");
  v1::GenerateRequest read;
  EXPECT_THAT(ParseMessage(Buffer(request.SerializeAsString()), read),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("stop.strings[1]: ")));
}

TEST(Wire, RefusesBytesThatAreNoMessage) {
  v1::GenerateRequest request;
  const absl::Status status = ParseMessage(Buffer(WithText("abc").substr(0, 5)), request);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("gatehouse.v1.GenerateRequest")));
  EXPECT_EQ(ReasonOf(status), "MALFORMED_MESSAGE");
}

TEST(Wire, RefusesMessagesNestedWithoutEnd) {
  v1::GenerateRequest request;
  const std::string groups(10'000, '\x0B');  // each begins a group in the one before
  EXPECT_THAT(ParseMessage(Buffer(groups), request), StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_));
}

// Left to gRPC these end as UNIMPLEMENTED without a word.
TEST_F(RpcTest, TextThatIsNotUtf8IsAnInvalidArgumentInEveryKindOfCall) {
  StartServer();
  const RawReply stream = RawCall(channel_, "/gatehouse.v1.GenerationService/Generate", {WithText("\xFF\xFE")});
  EXPECT_EQ(stream.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(stream.status.error_message(), HasSubstr("prompt.text"));
  EXPECT_EQ(ReasonIn(stream.status), "INVALID_UTF8");

  const std::string name("\x0A\x02\xFF\xFE");  // field 1 of many requests
  for (const char* const method :
       {"/gatehouse.v1.ModelService/DescribeModel", "/gatehouse.v1.OperationService/GetOperation",
        "/gatehouse.v1.OperationService/WatchOperation", "/gatehouse.v1.OperationService/UploadCorpus",
        "/gatehouse.v1.ScoringService/Score", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"}) {
    const RawReply reply = RawCall(channel_, method, {name});
    EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_EQ(ReasonIn(reply.status), "INVALID_UTF8") << method;
  }
  EXPECT_TRUE(Generate(Prompt("a", 1)).status.ok());
}

// A character cut by the end of a generation.
TEST_F(RpcTest, ACharacterThatIsCutArrivesAsAReplacement) {
  StartServer();
  engine_->SetTokenAt(1, 0xF0);
  engine_->SetTokenAt(2, 0x9F);
  engine_->SetTokenAt(3, 0x98);
  const Generated generated = Generate(Prompt("a", 3));
  ASSERT_TRUE(generated.status.ok());
  EXPECT_EQ(generated.text(), "\xEF\xBF\xBD");
  EXPECT_EQ(generated.responses[1].token().raw(), "\xF0");
}

TEST_F(RpcTest, ARequestOverTheLimitIsRefusedBeforeTheHandler) {
  rpc_options_.max_request_bytes = 4 << 20;
  StartServer();
  std::string request = WithText(std::string((4 << 20) - 64, 'x'));
  request += std::string("\x7A") + std::string(1, static_cast<char>((4 << 20) - request.size() - 2));  // field 15
  request.resize(4 << 20, 'y');
  const RawReply fits = RawCall(channel_, "/gatehouse.v1.GenerationService/Generate", {request});
  EXPECT_EQ(ReasonIn(fits.status), "PROMPT_TOO_LONG") << fits.status.error_message();
  EXPECT_EQ(Metric(R"(gatehouse_requests_total{code="INVALID_ARGUMENT",method="generate",model="m"})"), 1);

  const RawReply over = RawCall(channel_, "/gatehouse.v1.GenerationService/Generate", {request + "y"});
  EXPECT_EQ(over.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Metric(R"(gatehouse_requests_total{code="INVALID_ARGUMENT",method="generate",model="m"})"), 1);
}

TEST_F(RpcTest, AWholeScoreWithEveryRecordArrivesInMessagesOfAtMostOneMebibyte) {
  engine_options_.context = 20'000;
  engine_options_.kv_pages = 4096;
  engine_options_.layers = 12;
  StartServer();
  v1::ScoreRequest request;
  request.set_model("m");
  request.mutable_input()->set_text(std::string(20'000, 'x'));
  request.set_top_logprobs(20);
  request.mutable_records()->set_routing(true);
  request.mutable_records()->set_nonlinearity(true);
  request.mutable_records()->set_consensus(true);
  const RawReply reply = RawCall(channel_, "/gatehouse.v1.ScoringService/Score", {request.SerializeAsString()});
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  size_t bytes = 0;
  int tokens = 0;
  for (const std::string& message : reply.messages) {
    EXPECT_LE(message.size(), kMaxMessageBytes);
    bytes += message.size();
    v1::ScoreResponse response;
    ASSERT_TRUE(response.ParseFromString(message));
    tokens += response.tokens().tokens_size();
  }
  EXPECT_EQ(tokens, 20'000);
  EXPECT_GT(bytes, size_t{8} << 20);
}

}  // namespace
}  // namespace gatehouse::testing
