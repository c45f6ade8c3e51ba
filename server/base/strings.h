#ifndef GATEHOUSE_SERVER_BASE_STRINGS_H_
#define GATEHOUSE_SERVER_BASE_STRINGS_H_

#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gatehouse {

// Debian's Abseil has a string_view of its own, which std::string_view does not
// convert to.  These bridge the two; where they are one type they cost nothing.

inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view ToStd(absl::string_view text) { return {text.data(), text.size()}; }

// absl::StrCat that also takes std::string_view.
template <typename... Args>
std::string StrCat(const Args&... args) {
  const auto piece = []<typename T>(const T& arg) -> decltype(auto) {
    if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      return ToAbsl(std::string_view(arg));
    } else {
      return (arg);
    }
  };
  return absl::StrCat(piece(args)...);
}

// The message of a status.
inline std::string_view Message(const absl::Status& status) { return ToStd(status.message()); }

// The same code and payloads with `prefix` before the message; OK stays OK.
inline absl::Status Annotate(const absl::Status& status, std::string_view prefix) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), StrCat(prefix, ": ", Message(status)));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { annotated.SetPayload(url, payload); });
  return annotated;
}

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_BASE_STRINGS_H_
