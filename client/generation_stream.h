#ifndef GATEHOUSE_CLIENT_GENERATION_STREAM_H_
#define GATEHOUSE_CLIENT_GENERATION_STREAM_H_

#include "client/client.h"
#include "gatehouse/v1/generation.grpc.pb.h"

namespace gatehouse::client {

// Passes one message of a generation on to who listens; false where that cancels the call.
bool TellGeneration(const GenerationEvents& events, const v1::GenerateResponse& response);

// Client::StartGenerate: one call on gRPC's threads.
void StartGenerationStream(v1::GenerationService::Stub& stub, const v1::GenerateRequest& request,
                           GenerationEvents events, GenerationEnd on_end, const CallOptions& options);

}  // namespace gatehouse::client

#endif  // GATEHOUSE_CLIENT_GENERATION_STREAM_H_
