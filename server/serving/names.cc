#include "server/serving/names.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "server/base/strings.h"

namespace gatehouse {

absl::Status CheckName(std::string_view what, std::string_view name) {
  const auto allowed = [](char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-'; };
  if (!name.empty() && name.size() <= 64 && name[0] != '.' && name[0] != '-' &&
      std::all_of(name.begin(), name.end(), allowed)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      StrCat(what, " must be 1 to 64 letters, digits, '.', '_' and '-', and begin with a letter, a digit or '_'"));
}

}  // namespace gatehouse
