#ifndef GATEHOUSE_SERVER_BASE_CLOCK_H_
#define GATEHOUSE_SERVER_BASE_CLOCK_H_

#include <string>

namespace gatehouse {

// Seconds of a clock that never goes back, from an arbitrary start.
double MonotonicSeconds();

// The time now, in UTC, as RFC 3339 with seconds ("2026-01-31T12:00:00Z").
std::string Rfc3339Now();

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_BASE_CLOCK_H_
