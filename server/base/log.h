#ifndef GATEHOUSE_SERVER_BASE_LOG_H_
#define GATEHOUSE_SERVER_BASE_LOG_H_

#include <string_view>

namespace gatehouse {

// One line to standard error each, with the time in UTC.  Never pass text of a
// prompt or a completion.  Thread-safe.
void LogInfo(std::string_view message);
void LogWarning(std::string_view message);
void LogError(std::string_view message);

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_BASE_LOG_H_
