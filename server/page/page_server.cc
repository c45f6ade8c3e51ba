#include "server/page/page_server.h"

#include <civetweb.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "client/page/report_page.h"
#include "server/base/error_reason.h"
#include "server/base/listen_address.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/page/host_check.h"
#include "server/page/outbox.h"
#include "server/page/page_error.h"
#include "server/page/trace_call.h"
#include "server/page/trace_request.h"

namespace gatehouse {
namespace {

// Threads of the HTTP server beside those of the generations: for the page and refusals.
constexpr int kSpareThreads = 4;
// A silent stream gets an empty line this often, which shows whether anybody still reads.
constexpr absl::Duration kPulse = absl::Milliseconds(500);

constexpr char kPageHeaders[] =
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src "
    "data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n";
constexpr char kCommonHeaders[] =
    "X-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\nCache-Control: no-store\r\nConnection: close\r\n";

std::string_view Header(mg_connection* connection, const char* name) {
  const char* const value = mg_get_header(connection, name);
  return value == nullptr ? "" : value;
}

// False where the client is gone, or takes nothing for too long.
bool Write(mg_connection* connection, std::string_view bytes) {
  return mg_write(connection, bytes.data(), bytes.size()) == static_cast<int>(bytes.size());
}

const char* PhraseOf(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Error";
  }
}

std::string Head(int status, std::string_view type, std::string_view more) {
  return StrCat("HTTP/1.1 ", status, " ", PhraseOf(status), "\r\nContent-Type: ", type, "\r\n", kCommonHeaders, more,
                "\r\n");
}

int Answer(mg_connection* connection, int status, std::string_view type, std::string_view body,
           std::string_view more = "") {
  const bool bodiless = std::string_view(mg_get_request_info(connection)->request_method) == "HEAD";
  Write(connection, StrCat(Head(status, type, StrCat(more, "Content-Length: ", body.size(), "\r\n")),
                           bodiless ? std::string_view() : body));
  return status;
}

// `http_status` where HTTP has a better one than that of the code.
int AnswerError(mg_connection* connection, const absl::Status& status, std::optional<int> http_status = {}) {
  return Answer(connection, http_status.value_or(HttpStatusOf(status.code())), "application/json",
                PageErrorJson(status).dump() + "\n");
}

class Server final : public PageServer {
 public:
  Server(std::unique_ptr<client::Client> client, const PageServerOptions& options, const ListenAddress& address)
      : client_(std::move(client)), options_(options), hosts_(address) {}
  ~Server() override;

  absl::Status Listen(const ListenAddress& address);
  int port() const override { return port_; }
  void Finish(absl::Time deadline) override {
    std::unique_lock lock(mutex_);
    while (traces_ > 0 && absl::Now() < deadline) changed_.wait_for(lock, absl::ToChronoNanoseconds(kPulse));
  }

 private:
  static int OnRequest(mg_connection* connection);
  int Handle(mg_connection* connection);
  int ShowPage(mg_connection* connection);
  int Trace(mg_connection* connection);
  absl::StatusOr<std::string> ReadBody(mg_connection* connection) const;
  int Stream(mg_connection* connection, TraceRequest request);
  // False where there are as many as there may be.
  bool BeginTrace() {
    const std::lock_guard lock(mutex_);
    return traces_ < options_.max_traces && ++traces_ > 0;
  }
  void EndTrace() {
    const std::lock_guard lock(mutex_);
    --traces_;
    changed_.notify_all();
  }

  const std::unique_ptr<client::Client> client_;
  const PageServerOptions options_;
  const HostCheck hosts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int traces_ = 0;  // that run
  std::atomic<bool> stopping_{false};
  mg_context* context_ = nullptr;
  int port_ = 0;
};

Server::~Server() {
  stopping_ = true;
  if (context_ == nullptr) return;
  mg_stop(context_);
  mg_exit_library();
}

absl::Status Server::Listen(const ListenAddress& address) {
  // The HTTP library's own message does not say what is wrong with an address.
  if (address.port != 0) {
    GH_ASSIGN_OR_RETURN(const int probe, OpenListener(address));
    close(probe);
  }
  const std::string where = address.ToString();
  const std::string threads = StrCat(options_.max_traces + kSpareThreads);
  const std::string patience = StrCat(absl::ToInt64Milliseconds(options_.patience));
  const char* settings[] = {"listening_ports",
                            where.c_str(),
                            "num_threads",
                            threads.c_str(),
                            "request_timeout_ms",
                            patience.c_str(),
                            "enable_keep_alive",
                            "no",
                            "tcp_nodelay",
                            "1",
                            "max_request_size",
                            "16384",
                            nullptr};
  mg_callbacks callbacks{};
  callbacks.begin_request = &Server::OnRequest;
  callbacks.log_message = [](const mg_connection*, const char*) { return 1; };  // of clients' mistakes
  mg_init_library(0);
  char text[256] = {};
  unsigned code = 0;
  mg_init_data init{&callbacks, this, settings};
  mg_error_data error{&code, text, sizeof(text)};
  context_ = mg_start2(&init, &error);
  if (context_ == nullptr) {
    mg_exit_library();
    return absl::UnavailableError(StrCat("cannot listen on ", where, ": ", text));
  }
  mg_server_port ports[1] = {};
  if (mg_get_server_ports(context_, 1, ports) != 1) return absl::InternalError("the page has no port");
  port_ = ports[0].port;
  return absl::OkStatus();
}

int Server::OnRequest(mg_connection* connection) {
  return static_cast<Server*>(mg_get_user_data(mg_get_context(connection)))->Handle(connection);
}

int Server::Handle(mg_connection* connection) {
  const mg_request_info& request = *mg_get_request_info(connection);
  if (absl::Status status = hosts_.CheckHost(Header(connection, "Host")); !status.ok()) {
    return AnswerError(connection, status);
  }
  const std::string_view method = request.request_method;
  const std::string_view path = request.local_uri == nullptr ? "" : request.local_uri;
  if (path != "/" && path != "/trace") {
    return AnswerError(connection, absl::NotFoundError("the page is at /, and generations at /trace"));
  }
  const bool reads = method == "GET" || method == "HEAD";
  if (path == "/" ? !reads : method != "POST") {
    return AnswerError(connection, absl::InvalidArgumentError(path == "/" ? "GET / only" : "POST /trace only"), 405);
  }
  return path == "/" ? ShowPage(connection) : Trace(connection);
}

int Server::ShowPage(mg_connection* connection) {
  const absl::StatusOr<std::string> json = LivePageJson(*client_);
  if (!json.ok()) return AnswerError(connection, json.status());
  return Answer(connection, 200, "text/html; charset=utf-8", client::RenderLivePage(*json), kPageHeaders);
}

absl::StatusOr<std::string> Server::ReadBody(mg_connection* connection) const {
  const auto length = static_cast<size_t>(mg_get_request_info(connection)->content_length);
  std::string body(length, '\0');
  for (size_t have = 0; have < length;) {
    const int got = mg_read(connection, body.data() + have, length - have);
    if (got <= 0) return absl::InvalidArgumentError("the body ended before its Content-Length");
    have += static_cast<size_t>(got);
  }
  return body;
}

int Server::Trace(mg_connection* connection) {
  const absl::Status same =
      CheckSameOrigin(Header(connection, "Host"), Header(connection, "Origin"), Header(connection, "Sec-Fetch-Site"));
  if (!same.ok()) return AnswerError(connection, same);
  // A form of another site cannot send this type without asking first.
  if (!Header(connection, "Content-Type").starts_with("application/json")) {
    return AnswerError(connection, absl::InvalidArgumentError("the Content-Type must be application/json"), 415);
  }
  const long long length = mg_get_request_info(connection)->content_length;
  if (length < 0 || Header(connection, "Content-Length").empty())
    return AnswerError(connection, absl::InvalidArgumentError("a Content-Length is needed"), 411);
  if (static_cast<size_t>(length) > options_.max_body_bytes) {
    return AnswerError(
        connection, absl::InvalidArgumentError(StrCat("the body is larger than ", options_.max_body_bytes, " bytes")),
        413);
  }
  const absl::StatusOr<std::string> body = ReadBody(connection);
  if (!body.ok()) return AnswerError(connection, body.status());
  absl::StatusOr<TraceRequest> request = ParseTraceRequest(*body);
  if (!request.ok()) return AnswerError(connection, request.status());
  if (!BeginTrace()) {
    const std::string text = StrCat("the page shows ", options_.max_traces, " generations, its limit");
    return AnswerError(connection, WithReason(absl::ResourceExhaustedError(text), reason::kTooManyCalls));
  }
  const int status = Stream(connection, *std::move(request));
  EndTrace();
  return status;
}

// One thread runs the generation and fills the outbox, which pauses it while the browser is
// slow; this one empties it.
int Server::Stream(mg_connection* connection, TraceRequest request) {
  Outbox outbox(options_.outbox_bytes);
  client::Canceller canceller;
  absl::Status end;
  std::thread generation([&] {
    end = RunTrace(*client_, std::move(request), canceller, outbox);
    outbox.End();
  });
  bool begun = false, gone = false;
  const auto send = [&](std::string_view lines) {
    if (!begun) gone = !Write(connection, Head(200, "application/x-ndjson", ""));
    begun = true;
    gone = gone || !Write(connection, lines);
  };
  while (!gone && !stopping_) {
    const Outbox::Taken taken = outbox.Take(kPulse);
    // What fails at once is an answer of its own.
    if (taken.ended && taken.lines.empty()) break;
    send(taken.lines.empty() ? "\n" : taken.lines);
    if (taken.ended) break;
  }
  if (gone || stopping_) canceller.Cancel();
  outbox.Close();
  generation.join();
  if (gone || end.ok()) return 200;
  if (!begun) return AnswerError(connection, end);
  cli::Json event = PageErrorJson(end);
  event["event"] = "error";
  send(event.dump() + "\n");
  return 200;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::Start(std::unique_ptr<client::Client> client,
                                                              const PageServerOptions& options) {
  GH_ASSIGN_OR_RETURN(const ListenAddress address, ParsePageListen(options.listen));
  auto server = std::make_unique<Server>(std::move(client), options, address);
  GH_RETURN_IF_ERROR(server->Listen(address));
  return server;
}

}  // namespace gatehouse
