#ifndef GATEHOUSE_SERVER_RPC_SERVICES_H_
#define GATEHOUSE_SERVER_RPC_SERVICES_H_

#include <memory>

namespace grpc {
class Service;
}  // namespace grpc

namespace gatehouse {

struct ServiceContext;

// The services of proto/gatehouse/v1.  Each translates and nothing more; `service`
// outlives it.
std::unique_ptr<grpc::Service> MakeGenerationService(const ServiceContext& service);
std::unique_ptr<grpc::Service> MakeScoringService(const ServiceContext& service);
std::unique_ptr<grpc::Service> MakeAnalysisService(const ServiceContext& service);
std::unique_ptr<grpc::Service> MakeModelService(const ServiceContext& service);
std::unique_ptr<grpc::Service> MakeOperationService(const ServiceContext& service);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_RPC_SERVICES_H_
