#include "tests/rpc/rpc_fixture.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "gatehouse/v1/errors.pb.h"
#include "server/base/files.h"
#include "server/base/strings.h"

namespace gatehouse::testing {
namespace {

constexpr std::chrono::seconds kPatience{60};

std::string NewFolder() {
  static std::atomic<int> count{0};
  std::string folder = StrCat(::testing::TempDir(), "/gatehouse-rpc-", getpid(), "-", ++count);
  EXPECT_TRUE(MakeDirectories(StrCat(folder, "/calibrations/m")).ok());
  return folder;
}

}  // namespace

std::string ReasonIn(const grpc::Status& status) {
  v1::ErrorStatus details;
  v1::ErrorInfo info;
  if (!details.ParseFromString(status.error_details()) || details.details_size() != 1) return "";
  EXPECT_EQ(details.code(), static_cast<int>(status.error_code()));
  EXPECT_EQ(details.message(), status.error_message());
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.ErrorInfo");
  EXPECT_TRUE(info.ParseFromString(details.details(0).value()));
  EXPECT_EQ(info.domain(), "gatehouse");
  return info.reason();
}

void WaitUntil(const std::function<bool()>& condition, std::string_view what) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      FAIL() << "it never came true that " << what;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

RpcTest::RpcTest() : folder_(NewFolder()) {
  rpc_options_.listen = "127.0.0.1:0";
  rpc_options_.replica = "r1";
  operations_options_.state_dir = folder_;
  operations_options_.replica = "r1";
}

RpcTest::~RpcTest() {
  if (engine_ != nullptr) {
    engine_->ReleaseSteps();
    engine_->ReleaseCalibrations();
  }
  StopServer();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void RpcTest::StartServer() {
  const std::string calibrations = StrCat(folder_, "/calibrations/m");
  if (with_calibration_) {
    ASSERT_TRUE(
        WriteFakeCalibration(StrCat(calibrations, "/cal.safetensors"), FakeCalibrationInfo("cal", engine_options_))
            .ok());
  }
  ASSERT_TRUE(catalog_.Add(MakeFakeModel("m", engine_options_, &engine_, calibrations)).ok());
  metrics_ = std::make_unique<Metrics>(catalog_, "1.2.3");
  auto operations = OperationManager::Create(catalog_, operations_options_);
  ASSERT_TRUE(operations.ok()) << operations.status();
  operations_ = *std::move(operations);
  scheduler_ = Scheduler::Create(catalog_, scheduler_options_, *metrics_);
  metrics_->Watch(scheduler_.get(), operations_.get());
  RpcServer::Backend backend;
  backend.catalog = &catalog_;
  backend.scheduler = scheduler_.get();
  backend.operations = operations_.get();
  backend.observer = metrics_.get();
  auto server = RpcServer::Start(backend, rpc_options_);
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);

  channel_ = NewChannel();
  generation_ = v1::GenerationService::NewStub(channel_);
  scoring_ = v1::ScoringService::NewStub(channel_);
  analysis_ = v1::AnalysisService::NewStub(channel_);
  models_ = v1::ModelService::NewStub(channel_);
  operation_stub_ = v1::OperationService::NewStub(channel_);
  health_ = grpc::health::v1::Health::NewStub(channel_);
}

std::shared_ptr<grpc::Channel> RpcTest::NewChannel(grpc::ChannelArguments arguments) const {
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(StrCat("127.0.0.1:", server_->port()), grpc::InsecureChannelCredentials(),
                                   arguments);
}

void RpcTest::StopServer() {
  if (server_ != nullptr) server_->Shutdown(absl::InfinitePast());
  server_.reset();
  if (metrics_ != nullptr) metrics_->Watch(nullptr, nullptr);
  scheduler_.reset();
  operations_.reset();
}

v1::GenerateRequest RpcTest::Prompt(const std::string& text, uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.set_model("m");
  request.mutable_prompt()->set_text(text);
  request.set_max_tokens(max_tokens);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

std::string RpcTest::Generated::text() const {
  std::string text;
  for (const v1::GenerateResponse& response : responses) text += response.token().text() + response.summary().text();
  return text;
}

int RpcTest::Generated::tokens() const {
  int count = 0;
  for (const v1::GenerateResponse& response : responses) count += response.has_token() ? 1 : 0;
  return count;
}

RpcTest::Generated RpcTest::Generate(const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  return Generate(request, context);
}

RpcTest::Generated RpcTest::Generate(const v1::GenerateRequest& request, grpc::ClientContext& context) {
  const auto reader = generation_->Generate(&context, request);
  Generated generated;
  generated.responses = ReadAll(*reader);
  generated.status = reader->Finish();
  return generated;
}

double RpcTest::Metric(const std::string& series) const {
  const std::string page = "\n" + metrics_->Page();
  const size_t at = page.find("\n" + series + " ");
  if (at == std::string::npos) {
    ADD_FAILURE() << "no series " << series;
    return -1;
  }
  return std::stod(page.substr(at + 1 + series.size()));
}

}  // namespace gatehouse::testing
