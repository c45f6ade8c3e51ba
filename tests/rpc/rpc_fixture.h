#ifndef GATEHOUSE_TESTS_RPC_RPC_FIXTURE_H_
#define GATEHOUSE_TESTS_RPC_RPC_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gatehouse/v1/analysis.grpc.pb.h"
#include "gatehouse/v1/generation.grpc.pb.h"
#include "gatehouse/v1/models.grpc.pb.h"
#include "gatehouse/v1/operations.grpc.pb.h"
#include "gatehouse/v1/scoring.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/rpc/server.h"
#include "server/serving/operations.h"
#include "server/serving/scheduler.h"
#include "server/telemetry/metrics.h"
#include "tests/support/fake_engine.h"

namespace gatehouse::testing {

// The reason in a failed call's google.rpc.ErrorInfo; empty where there is none.
std::string ReasonIn(const grpc::Status& status);

// Waits until `condition` holds; fails the test where it takes too long.
void WaitUntil(const std::function<bool()>& condition, std::string_view what);

// A whole server in this process, on a port of its own, with one fake model "m" that has
// the calibration "cal", and a client's stubs.
class RpcTest : public ::testing::Test {
 protected:
  RpcTest();
  ~RpcTest() override;

  // Starts the server.  Called by the stubs' users through Connect; tests with other
  // options call it first.
  void StartServer();
  // A channel with a connection of its own.
  std::shared_ptr<grpc::Channel> NewChannel(grpc::ChannelArguments arguments = {}) const;
  void StopServer();

  // A generation of `max_tokens` tokens that does not end early.
  static v1::GenerateRequest Prompt(const std::string& text, uint32_t max_tokens);
  // Reads the whole stream.
  struct Generated {
    grpc::Status status;
    std::vector<v1::GenerateResponse> responses;
    std::string text() const;
    const v1::GenerationSummary& summary() const { return responses.back().summary(); }
    int tokens() const;
  };
  Generated Generate(const v1::GenerateRequest& request);
  Generated Generate(const v1::GenerateRequest& request, grpc::ClientContext& context);
  // The number of a series on the metrics page; fails the test where there is none.
  double Metric(const std::string& series) const;

  // Set before StartServer.
  FakeEngineOptions engine_options_;
  SchedulerOptions scheduler_options_;
  RpcServerOptions rpc_options_;
  OperationsOptions operations_options_;
  bool with_calibration_ = true;

  std::string folder_;
  FakeEngine* engine_ = nullptr;
  ModelCatalog catalog_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<OperationManager> operations_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<RpcServer> server_;

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::GenerationService::Stub> generation_;
  std::unique_ptr<v1::ScoringService::Stub> scoring_;
  std::unique_ptr<v1::AnalysisService::Stub> analysis_;
  std::unique_ptr<v1::ModelService::Stub> models_;
  std::unique_ptr<v1::OperationService::Stub> operation_stub_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

// Reads a stream to its end.
template <typename Response>
std::vector<Response> ReadAll(grpc::ClientReader<Response>& reader) {
  std::vector<Response> responses;
  Response response;
  while (reader.Read(&response)) responses.push_back(response);
  return responses;
}

}  // namespace gatehouse::testing

#endif  // GATEHOUSE_TESTS_RPC_RPC_FIXTURE_H_
