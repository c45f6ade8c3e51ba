// What to do about a failed call.

#include <cctype>
#include <string>
#include <string_view>

#include "client/cli/cli.h"
#include "client/errors.h"

namespace gatehouse::cli {
namespace {

bool Mentions(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

struct Advice {
  std::string_view reason;
  std::string_view text;  // "{model}" is the model that the command line names
};

// By the server's stable reasons; docs/api.md lists them.
constexpr Advice kAdvice[] = {
    {"EMPTY_INPUT", "give it some text"},
    {"PROMPT_TOO_LONG", "shorten it; `gatehouse models {model}` tells the model's context"},
    {"TOKEN_OUT_OF_RANGE", "`gatehouse models {model} --json` tells the vocabulary's size"},
    {"LAYER_OUT_OF_RANGE", "`gatehouse models {model}` lists its layers"},
    {"INVALID_UTF8", "convert the text, such as with `iconv -f latin1 -t utf-8`"},
    {"MALFORMED_MESSAGE", "client and server may differ in version: `gatehouse doctor` compares them"},
    {"MODEL_NOT_FOUND", "`gatehouse models` lists those there are"},
    {"CALIBRATION_NOT_FOUND", "`gatehouse models {model}` lists those there are"},
    {"OPERATION_NOT_FOUND", "`gatehouse operations` lists those there are"},
    {"CORPUS_NOT_FOUND", "the server keeps few texts: start the command again, which uploads it"},
    {"NOT_CALIBRATED", "run `gatehouse calibrate --model {model} --corpus FILE` first"},
    {"OTHER_MODELS_CALIBRATION", "calibrate these weights: `gatehouse calibrate --model {model} --corpus FILE`"},
    {"OTHER_REPLICA", "point --server at that replica"},
    {"NO_RESULT", "`gatehouse operations` tells its state and its files"},
    {"QUEUE_FULL", "try again later, or start the server with a larger --max-waiting"},
    {"TOO_MANY_CALLS", "try again later, or on another server"},
    {"KV_MEMORY_FULL",
     "try again later, ask for less with --max-tokens, or start the server with a larger --kv-memory-mb"},
    {"OUT_OF_MEMORY", "ask for less at once, or give the server more memory"},
    {"READER_TOO_SLOW", "read faster, such as by writing to a file"},
    {"UPLOAD_TOO_LARGE", "upload less, or start the server with a larger --corpus-limit-mb"},
    {"DISK_FULL", "make room in the server's --state-dir"},
    {"TOO_MANY_OPERATIONS", "wait for one to end, or cancel one: `gatehouse operations`"},
    {"DRAINING", "the server is shutting down: try again later, or another with --server"},
    {"MODEL_PRODUCED_NAN", "serve the model with --dtype float32, or check its weights"},
};

struct FlagOf {
  std::string_view field, flag;
};

// The flags that set the fields of a request.
constexpr FlagOf kFlags[] = {{"max_tokens", "--max-tokens"},
                             {"top_logprobs", "--top-logprobs"},
                             {"sampling.temperature", "--temperature"},
                             {"sampling.top_k", "--top-k"},
                             {"sampling.top_p", "--top-p"},
                             {"sampling.min_p", "--min-p"},
                             {"sampling.repetition_penalty", "--repetition-penalty"},
                             {"sampling.logit_bias", "--logit-bias"},
                             {"stop.strings", "--stop"},
                             {"stop.token_ids", "--stop-token-id"},
                             {"gating.mode", "--gating"},
                             {"gating.threshold", "--threshold"},
                             {"gating.ladder_threshold", "--ladder-threshold"},
                             {"gating.layer_thresholds", "--layer-threshold"},
                             {"gating.layers", "--layers"},
                             {"gating.operating_point", "--operating-point"},
                             {"gating.quorum_path", "--quorum-path"},
                             {"gating.quorum", "--quorum"},
                             {"window.size", "--window"},
                             {"window.stride", "--stride"},
                             {"interventions", "--intervene"},
                             {"captures", "--capture"},
                             {"budget.budgets", "--budget"},
                             {"corpora", "--corpus"}};

// The flag that sets the field with whose name the message begins; empty for others.
std::string_view FlagNamedBy(std::string_view message) {
  for (const FlagOf& entry : kFlags) {
    std::string_view field = entry.field;
    // The server names a policy's fields without the policy.
    if (!message.starts_with(field) && field.starts_with("gating.")) field.remove_prefix(7);
    if (!message.starts_with(field)) continue;
    const std::string_view rest = message.substr(field.size());
    // "gating.layers" is not "gating.layers_of".
    const bool whole = rest.empty() || !(std::isalnum(static_cast<unsigned char>(rest.front())) || rest.front() == '_');
    if (whole) return entry.flag;
  }
  return "";
}

std::string Filled(std::string_view text, const std::string& model) {
  constexpr std::string_view kModel = "{model}";
  std::string filled(text);
  if (const size_t place = filled.find(kModel); place != std::string::npos) {
    filled.replace(place, kModel.size(), model);
  }
  return filled;
}

// Empty where the message says what to do, or nothing better is known.
std::string Hint(const absl::Status& status, const std::string& reason, const std::string& model) {
  const std::string message(status.message());
  if (Mentions(message, "`gatehouse ")) return "";
  if (reason == "OPERATING_POINT_NOT_FOUND") {
    return Mentions(message, "has none")
               ? "`gatehouse calibrate --model " + model + " --corpus FILE --budget 1%` makes them"
               : "";
  }
  for (const Advice& advice : kAdvice) {
    if (advice.reason == reason) return Filled(advice.text, model);
  }
  if (const std::string_view flag = FlagNamedBy(message); reason == "INVALID_FIELD" && !flag.empty()) {
    return std::string(flag) + " sets it";
  }
  if (absl::IsDeadlineExceeded(status)) return "give it more with --timeout";
  if (absl::IsUnimplemented(status)) {
    return "the server is older than this client, or no gatehouse-server: `gatehouse doctor` tells";
  }
  if (reason.empty() && Mentions(message, "is not valid UTF-8")) {
    return "convert the text, such as with `iconv -f latin1 -t utf-8`";
  }
  return "";
}

// A failure that gRPC reports, not a server.
std::string DescribeUnavailable(const std::string& message, const std::string& server) {
  if (Mentions(message, "http1.x")) {
    return "what answers at " + server +
           " speaks HTTP, not gRPC: give --server the port of the server's --listen, 50151 by default; `gatehouse "
           "doctor` "
           "tells more";
  }
  if (!Mentions(message, "connect") && !Mentions(message, "resol")) {
    return "the server at " + server + " ended the call (" + message + "): try again later, or another with --server";
  }
  // gRPC wraps the cause in several layers; the last one says it.
  const size_t cause = message.rfind(": ");
  return "no server answers at " + server + " (" + (cause == std::string::npos ? message : message.substr(cause + 2)) +
         "): start one with `gatehouse-server --listen " + server + "`, or name another with --server";
}

}  // namespace

std::string DescribeError(const absl::Status& status, const std::string& server, const std::string& model) {
  const std::string message = OneLine(std::string(status.message()));
  const std::string reason = client::ErrorReason(status);
  // What the program itself found wrong says what to do.
  const bool own = Mentions(message, "`gatehouse ");
  if (absl::IsUnavailable(status) && reason.empty() && !own) return DescribeUnavailable(message, OneLine(server));
  if (absl::IsDeadlineExceeded(status) && reason.empty()) {
    return "--timeout passed before the server was done: give it more, or ask for less; `gatehouse doctor` tells "
           "whether "
           "it answers";
  }
  const std::string hint = Hint(status, reason, OneLine(model));
  return message + (hint.empty() ? "" : ": " + hint);
}

}  // namespace gatehouse::cli
