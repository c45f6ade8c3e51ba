#include <memory>

#include "gatehouse/v1/models.grpc.pb.h"
#include "server/base/status_macros.h"
#include "server/rpc/call_runner.h"
#include "server/rpc/services.h"
#include "server/rpc/translate.h"
#include "server/serving/model_catalog.h"

namespace gatehouse {
namespace {

using ModelBase =
    v1::ModelService::WithRawCallbackMethod_ListModels<v1::ModelService::WithRawCallbackMethod_DescribeModel<
        v1::ModelService::WithRawCallbackMethod_SelectCalibration<v1::ModelService::Service>>>;

// Reads the catalog, which never waits for an engine.
class Models final : public ModelBase {
 public:
  explicit Models(const ServiceContext& service) : service_(service) {}

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                       grpc::ByteBuffer* reply) override {
    return RunUnary<v1::ListModelsRequest>(
        service_, context, bytes, reply,
        [this](const v1::ListModelsRequest&) -> absl::StatusOr<v1::ListModelsResponse> {
          v1::ListModelsResponse response;
          response.set_replica(service_.replica);
          for (const ServedModel* model : service_.catalog->models()) *response.add_models() = SummaryOf(*model);
          return response;
        });
  }

  grpc::ServerUnaryReactor* DescribeModel(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                          grpc::ByteBuffer* reply) override {
    return RunUnary<v1::DescribeModelRequest>(
        service_, context, bytes, reply,
        [this](const v1::DescribeModelRequest& request) -> absl::StatusOr<v1::DescribeModelResponse> {
          GH_ASSIGN_OR_RETURN(const ServedModel* const model, service_.catalog->Find(request.model()));
          return DescriptionOf(*model);
        });
  }

  grpc::ServerUnaryReactor* SelectCalibration(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                              grpc::ByteBuffer* reply) override {
    return RunUnary<v1::SelectCalibrationRequest>(
        service_, context, bytes, reply,
        [this](const v1::SelectCalibrationRequest& request) -> absl::StatusOr<v1::SelectCalibrationResponse> {
          GH_ASSIGN_OR_RETURN(const ServedModel* const model, service_.catalog->Find(request.model()));
          GH_ASSIGN_OR_RETURN(const CalibrationStore::Entry selected,
                              model->calibrations->Select(request.calibration()));
          v1::SelectCalibrationResponse response;
          *response.mutable_calibration() = SummaryOf(selected, /*active=*/true);
          return response;
        });
  }

 private:
  const ServiceContext& service_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeModelService(const ServiceContext& service) {
  return std::make_unique<Models>(service);
}

}  // namespace gatehouse
