#include "client/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/utf8.h"

namespace gatehouse::client {
namespace {

constexpr int kMaxAttempts = 5;       // gRPC's own bound
constexpr int kMaxMessage = 1 << 30;  // a sane bound on what a caller may ask for

// A port out of range would be found out only when the connection fails.
absl::Status CheckServer(const std::string& server) {
  if (server.empty()) return absl::InvalidArgumentError("server is empty: HOST:PORT is wanted");
  if (FindInvalidUtf8(server) != std::string::npos) return absl::InvalidArgumentError("server is not UTF-8");
  const size_t colon = server.rfind(':');
  const std::string port = colon == std::string::npos ? "" : server.substr(colon + 1);
  const bool is_port = !port.empty() && port.find_first_not_of("0123456789") == std::string::npos;
  int number = 0;
  if (!is_port || (absl::SimpleAtoi(port, &number) && number >= 1 && number <= 65535)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("server has the port ", port, ", must be in [1, 65535]"));
}

// Calls that may be repeated: all but StartOperation, which would start twice.
std::string ServiceConfig(int attempts) {
  std::string config = R"({"loadBalancingConfig": [{"round_robin": {}}])";
  if (attempts > 1) {
    absl::StrAppend(&config, R"(, "methodConfig": [{"name": [
      {"service": "gatehouse.v1.GenerationService"}, {"service": "gatehouse.v1.ScoringService"},
      {"service": "gatehouse.v1.AnalysisService"}, {"service": "gatehouse.v1.ModelService"})");
    for (const char* method : {"UploadCorpus", "GetOperation", "WatchOperation", "CancelOperation", "ListOperations",
                               "FetchResult", "GetReport"}) {
      absl::StrAppend(&config, R"(, {"service": "gatehouse.v1.OperationService", "method": ")", method, "\"}");
    }
    absl::StrAppend(&config, R"(], "retryPolicy": {"maxAttempts": )", attempts,
                    R"(, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 2,
                       "retryableStatusCodes": ["UNAVAILABLE"]}}])");
  }
  return config + "}";
}

bool IsLoopback(const std::string& server) {
  return server.starts_with("127.") || server.starts_with("localhost:") || server.starts_with("[::1]");
}

grpc::ChannelArguments ChannelArgumentsFor(const ClientOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetServiceConfigJSON(ServiceConfig(options.attempts));
  arguments.SetMaxReceiveMessageSize(options.max_message_bytes);
  arguments.SetMaxSendMessageSize(options.max_message_bytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(absl::ToInt64Milliseconds(options.keepalive)));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  // Pings may go on while a long prefill is silent.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5000);
  if (options.own_connection) arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (IsLoopback(options.server)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return arguments;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const ClientOptions& options) {
  if (absl::Status status = CheckServer(options.server); !status.ok()) return status;
  if (!(options.attempts >= 1 && options.attempts <= kMaxAttempts)) {
    return absl::InvalidArgumentError(absl::StrCat("attempts must lie in [1, ", kMaxAttempts, "]"));
  }
  if (!(options.max_message_bytes >= 1 && options.max_message_bytes <= kMaxMessage)) {
    return absl::InvalidArgumentError(absl::StrCat("max_message_bytes must lie in [1, ", kMaxMessage, "]"));
  }
  if (options.keepalive < absl::Seconds(10)) {
    return absl::InvalidArgumentError("keepalive must be at least 10 s: the server ends connections that ping faster");
  }
  const auto credentials = options.credentials ? options.credentials : grpc::InsecureChannelCredentials();
  return grpc::CreateCustomChannel(options.server, credentials, ChannelArgumentsFor(options));
}

}  // namespace gatehouse::client
