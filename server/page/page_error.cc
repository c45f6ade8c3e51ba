#include "server/page/page_error.h"

#include <algorithm>
#include <cctype>
#include <tuple>

#include "client/errors.h"
#include "server/base/error_reason.h"
#include "server/base/strings.h"
#include "server/page/trace_request.h"

namespace gatehouse {
namespace {

bool IsWordCharacter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Where `word` stands alone in the text; npos where it does not.
size_t FindWord(std::string_view text, std::string_view word) {
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !IsWordCharacter(text[at - 1])) && (end == text.size() || !IsWordCharacter(text[end]))) return at;
  }
  return std::string_view::npos;
}

std::string FieldOf(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status) && !absl::IsNotFound(status)) return "";
  const std::string_view message = Message(status);
  std::string_view first;
  size_t least = std::string::npos;
  for (const std::string_view field : kTraceFields) {
    const size_t at = FindWord(message, field);
    if (at < least) std::tie(least, first) = std::pair(at, field);
  }
  return std::string(first);
}

}  // namespace

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

cli::Json PageErrorJson(const absl::Status& status) {
  cli::Json json = cli::ErrorJson(status);
  cli::Json& error = json["error"];
  // As calls name it; a status of this server's own carries none, or its own kind.
  if (error["reason"] == "") error["reason"] = ReasonOf(status);
  error["field"] = FieldOf(status);
  return json;
}

}  // namespace gatehouse
