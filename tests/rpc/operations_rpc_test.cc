#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "server/base/strings.h"
#include "tests/rpc/raw_call.h"
#include "tests/rpc/rpc_fixture.h"

namespace gatehouse::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

class OperationsRpcTest : public RpcTest {
 protected:
  grpc::Status Upload(const std::vector<std::string>& pieces, std::string& corpus) {
    grpc::ClientContext context;
    v1::UploadCorpusResponse response;
    const auto writer = operation_stub_->UploadCorpus(&context, &response);
    v1::UploadCorpusRequest request;
    request.set_display_name("a book");
    for (const std::string& piece : pieces) {
      request.set_data(piece);
      if (!writer->Write(request)) break;
      request.clear_display_name();
    }
    writer->WritesDone();
    grpc::Status status = writer->Finish();
    corpus = response.corpus();
    return status;
  }

  std::string UploadGood() {
    std::string corpus;
    const grpc::Status status = Upload({"some text, ", "and more of it"}, corpus);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return corpus;
  }

  v1::Operation Start(const std::string& corpus, const std::string& calibration) {
    v1::StartOperationRequest request;
    request.set_model("m");
    request.mutable_calibrate()->set_corpus(corpus);
    request.mutable_calibrate()->set_calibration(calibration);
    grpc::ClientContext context;
    v1::StartOperationResponse response;
    const grpc::Status status = operation_stub_->StartOperation(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.operation();
  }

  v1::Operation Get(const std::string& name) {
    v1::GetOperationRequest request;
    request.set_name(name);
    grpc::ClientContext context;
    v1::GetOperationResponse response;
    EXPECT_TRUE(operation_stub_->GetOperation(&context, request, &response).ok());
    return response.operation();
  }

  // The last state that a watch sees.
  v1::Operation Watch(const std::string& name) {
    v1::WatchOperationRequest request;
    request.set_name(name);
    grpc::ClientContext context;
    const auto reader = operation_stub_->WatchOperation(&context, request);
    const auto states = ReadAll(*reader);
    EXPECT_TRUE(reader->Finish().ok());
    EXPECT_FALSE(states.empty());
    return states.empty() ? v1::Operation() : states.back().operation();
  }
};

TEST_F(OperationsRpcTest, ACalibrationRunsFromUploadToResult) {
  StartServer();
  const std::string corpus = UploadGood();
  EXPECT_THAT(corpus, StartsWith("corpora/"));
  const v1::Operation started = Start(corpus, "mine");
  EXPECT_THAT(started.name(), StartsWith("operations/r1/"));
  EXPECT_EQ(started.kind(), "calibrate");
  const v1::Operation ended = Watch(started.name());
  EXPECT_EQ(ended.state(), v1::OPERATION_STATE_SUCCEEDED) << ended.error_message();
  EXPECT_EQ(ended.result(), "mine");
  EXPECT_EQ(ended.progress(), 1);
  EXPECT_EQ(Get(started.name()).state(), v1::OPERATION_STATE_SUCCEEDED);
  EXPECT_EQ(Metric(R"(gatehouse_operations_ended_total{kind="calibrate",state="succeeded"})"), 1);
  EXPECT_EQ(Metric(R"(gatehouse_operations_ended_total{kind="calibrate",state="failed"})"), 0);
  EXPECT_EQ(Metric(R"(gatehouse_operations{kind="calibrate",state="running"})"), 0);
  EXPECT_EQ(Metric("gatehouse_operation_progress"), 0);

  v1::FetchResultRequest fetch;
  fetch.set_name(started.name());
  grpc::ClientContext context;
  const auto reader = operation_stub_->FetchResult(&context, fetch);
  std::string bytes;
  for (const v1::FetchResultResponse& response : ReadAll(*reader)) bytes += response.data();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(bytes.size(), ended.result_bytes());
  EXPECT_THAT(bytes, HasSubstr("mine"));
}

TEST_F(OperationsRpcTest, ALargeResultArrivesWholeInBoundedMessages) {
  StartServer();
  const v1::Operation ended = Watch(Start(UploadGood(), "big").name());
  ASSERT_EQ(ended.state(), v1::OPERATION_STATE_SUCCEEDED);
  const auto path = operations_->ResultPath(ended.name());
  ASSERT_TRUE(path.ok());
  std::string expected(5'000'001, '\0');
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<char>(i * 7 + i / 255);
  std::ofstream(*path, std::ios::binary) << expected;
  v1::FetchResultRequest fetch;
  fetch.set_name(ended.name());
  const RawReply reply = RawCall(channel_, "/gatehouse.v1.OperationService/FetchResult", {fetch.SerializeAsString()});
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  std::string bytes;
  for (const std::string& message : reply.messages) {
    EXPECT_LE(message.size(), size_t{1} << 20);
    v1::FetchResultResponse response;
    ASSERT_TRUE(response.ParseFromString(message));
    bytes += response.data();
  }
  EXPECT_TRUE(bytes == expected);
}

TEST_F(OperationsRpcTest, ARunningOperationIsCancelled) {
  StartServer();
  engine_->BlockCalibrations();
  const v1::Operation started = Start(UploadGood(), "mine");
  engine_->WaitUntilCalibrating();
  v1::FetchResultRequest fetch;
  fetch.set_name(started.name());
  grpc::ClientContext fetch_context;
  const auto reader = operation_stub_->FetchResult(&fetch_context, fetch);
  v1::FetchResultResponse chunk;
  EXPECT_FALSE(reader->Read(&chunk));
  const grpc::Status too_early = reader->Finish();
  EXPECT_EQ(too_early.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ReasonIn(too_early), "NO_RESULT");

  v1::CancelOperationRequest request;
  request.set_name(started.name());
  grpc::ClientContext context;
  v1::CancelOperationResponse response;
  EXPECT_TRUE(operation_stub_->CancelOperation(&context, request, &response).ok());
  EXPECT_EQ(Watch(started.name()).state(), v1::OPERATION_STATE_CANCELLED);
}

TEST_F(OperationsRpcTest, AWatchThatIsCancelledLeavesTheOperationAlone) {
  StartServer();
  engine_->BlockCalibrations();
  const v1::Operation started = Start(UploadGood(), "mine");
  engine_->WaitUntilCalibrating();
  v1::WatchOperationRequest request;
  request.set_name(started.name());
  grpc::ClientContext context;
  const auto reader = operation_stub_->WatchOperation(&context, request);
  v1::WatchOperationResponse state;
  ASSERT_TRUE(reader->Read(&state));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  WaitUntil([&] { return server_->calls_in_work() == 0; }, "the watch is over");
  engine_->ReleaseCalibrations();
  EXPECT_EQ(Watch(started.name()).state(), v1::OPERATION_STATE_SUCCEEDED);
}

TEST_F(OperationsRpcTest, OperationsAreListedInPagesNewestFirst) {
  StartServer();
  const std::string corpus = UploadGood();
  std::vector<std::string> names;
  for (int i = 0; i < 5; ++i) {
    names.push_back(Start(corpus, StrCat("c", i)).name());
    (void)Watch(names.back());
  }
  std::vector<std::string> listed;
  v1::ListOperationsRequest request;
  request.set_page_size(2);
  int pages = 0;
  do {
    grpc::ClientContext context;
    v1::ListOperationsResponse response;
    ASSERT_TRUE(operation_stub_->ListOperations(&context, request, &response).ok());
    EXPECT_LE(response.operations_size(), 2);
    for (const v1::Operation& operation : response.operations()) listed.push_back(operation.name());
    request.set_page_token(response.next_page_token());
    ++pages;
  } while (!request.page_token().empty() && pages < 10);
  std::reverse(names.begin(), names.end());
  EXPECT_EQ(listed, names);
}

TEST_F(OperationsRpcTest, BadUploadsAreRefusedAndLeaveNothing) {
  operations_options_.corpus_limit_bytes = 1000;
  StartServer();
  std::string corpus;
  const grpc::Status large = Upload(std::vector<std::string>(5, std::string(300, 'x')), corpus);
  EXPECT_EQ(large.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReasonIn(large), "UPLOAD_TOO_LARGE");
  const grpc::Status broken = Upload({"fine", "\xFF\xFE"}, corpus);
  EXPECT_EQ(broken.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Upload({""}, corpus).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Upload({}, corpus).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  WaitUntil([&] { return server_->calls_in_work() == 0; }, "the uploads are over");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ + "/corpora")) {
    ADD_FAILURE() << "left behind: " << entry.path();
  }
}

TEST_F(OperationsRpcTest, AnUploadThatIsCutLeavesNothing) {
  StartServer();
  (void)UploadGood();  // makes the folder
  const auto files = [&] {
    const std::filesystem::recursive_directory_iterator entries(folder_ + "/corpora");
    return std::distance(begin(entries), end(entries));
  };
  const auto before = files();
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext context;
    v1::UploadCorpusResponse response;
    const auto writer = operation_stub_->UploadCorpus(&context, &response);
    v1::UploadCorpusRequest request;
    request.set_data(StrCat("the first half of text ", i));
    ASSERT_TRUE(writer->Write(request));
    context.TryCancel();
    EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  WaitUntil([&] { return server_->calls_in_work() == 0; }, "the uploads are over");
  EXPECT_EQ(files(), before);
}

TEST_F(OperationsRpcTest, WrongNamesAndSpecsAreErrors) {
  StartServer();
  v1::GetOperationRequest get;
  get.set_name("operations/r1/none");
  grpc::ClientContext get_context;
  v1::GetOperationResponse got;
  const grpc::Status missing = operation_stub_->GetOperation(&get_context, get, &got);
  EXPECT_EQ(missing.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(ReasonIn(missing), "OPERATION_NOT_FOUND");

  const auto start = [&](const v1::StartOperationRequest& request) {
    grpc::ClientContext context;
    v1::StartOperationResponse response;
    return operation_stub_->StartOperation(&context, request, &response);
  };
  v1::StartOperationRequest request;
  request.set_model("m");
  EXPECT_THAT(start(request).error_message(), HasSubstr("spec is missing"));
  request.mutable_calibrate()->set_corpus(StrCat("corpora/", std::string(64, 'a')));
  EXPECT_EQ(ReasonIn(start(request)), "CORPUS_NOT_FOUND");
  request.mutable_calibrate()->set_ridge(-1);
  EXPECT_THAT(start(request).error_message(), HasSubstr("ridge is -1"));
  request.mutable_calibrate()->clear_ridge();
  request.mutable_calibrate()->set_max_consensus(65);
  EXPECT_THAT(start(request).error_message(), HasSubstr("max_consensus is 65"));
}

}  // namespace
}  // namespace gatehouse::testing
