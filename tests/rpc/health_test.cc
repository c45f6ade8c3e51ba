#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/rpc/rpc_fixture.h"

namespace gatehouse::testing {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr const char* kNames[] = {"",
                                  "readiness",
                                  "m",
                                  "gatehouse.v1.GenerationService",
                                  "gatehouse.v1.ScoringService",
                                  "gatehouse.v1.AnalysisService",
                                  "gatehouse.v1.ModelService",
                                  "gatehouse.v1.OperationService",
                                  "grpc.health.v1.Health"};

class HealthTest : public RpcTest {
 protected:
  HealthCheckResponse::ServingStatus Check(const std::string& name) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(name);
    HealthCheckResponse response;
    const grpc::Status status = health_->Check(&context, request, &response);
    if (status.error_code() == grpc::StatusCode::NOT_FOUND) return HealthCheckResponse::SERVICE_UNKNOWN;
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.status();
  }
};

TEST_F(HealthTest, EveryNameServesUntilTheServerStops) {
  StartServer();
  for (const char* const name : kNames) EXPECT_EQ(Check(name), HealthCheckResponse::SERVING) << name;
  EXPECT_EQ(Check("liveness"), HealthCheckResponse::SERVING);
  EXPECT_EQ(Check("gatehouse.v1.NoService"), HealthCheckResponse::SERVICE_UNKNOWN);
  server_->StopServing();
  for (const char* const name : kNames) EXPECT_EQ(Check(name), HealthCheckResponse::NOT_SERVING) << name;
  EXPECT_EQ(Check("liveness"), HealthCheckResponse::SERVING);
  EXPECT_TRUE(Generate(Prompt("abc", 1)).status.ok());
}

TEST_F(HealthTest, AHangingEngineIsNotAlive) {
  rpc_options_.watchdog = absl::Seconds(3);  // the idle thread goes round each second
  StartServer();
  EXPECT_EQ(Check("liveness"), HealthCheckResponse::SERVING);
  engine_->BlockSteps();
  grpc::ClientContext context;
  const auto reader = generation_->Generate(&context, Prompt("abc", 1));
  engine_->WaitUntilBlocked();
  WaitUntil([&] { return Check("liveness") == HealthCheckResponse::NOT_SERVING; }, "liveness notices");
  EXPECT_EQ(Check("m"), HealthCheckResponse::NOT_SERVING);
  // Neither the models nor the metrics wait for it.
  grpc::ClientContext list;
  v1::ListModelsResponse models;
  EXPECT_TRUE(models_->ListModels(&list, {}, &models).ok());
  EXPECT_GT(Metric("gatehouse_heartbeat_age_seconds"), 2.9);
  engine_->ReleaseSteps();
  WaitUntil([&] { return Check("liveness") == HealthCheckResponse::SERVING; }, "it is alive again");
}

TEST_F(HealthTest, AWatchHearsOfChangesAndEndsWithTheServer) {
  StartServer();
  grpc::ClientContext context, unknown_context;
  HealthCheckRequest request;
  request.set_service("readiness");
  const auto reader = health_->Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  request.set_service("nothing");
  const auto unknown = health_->Watch(&unknown_context, request);
  ASSERT_TRUE(unknown->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  server_->StopServing();
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  // Its deadline is far: the watches must not hold it up.
  server_->Shutdown(absl::Now() + absl::Hours(1));
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(unknown->Read(&response));
}

}  // namespace
}  // namespace gatehouse::testing
