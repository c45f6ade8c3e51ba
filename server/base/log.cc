#include "server/base/log.h"

#include <cstdio>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/strings.h"

namespace gatehouse {
namespace {

void Write(char level, std::string_view message) {
  const std::string line = StrCat(absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()), " ",
                                  std::string(1, level), " ", message, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

void LogInfo(std::string_view message) { Write('I', message); }
void LogWarning(std::string_view message) { Write('W', message); }
void LogError(std::string_view message) { Write('E', message); }

}  // namespace gatehouse
