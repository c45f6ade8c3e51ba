#ifndef GATEHOUSE_SERVER_BASE_STATUS_MACROS_H_
#define GATEHOUSE_SERVER_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// The Abseil release this project builds with has no such macros yet.

// Returns from the enclosing function when `expr` is not OK.
#define GH_RETURN_IF_ERROR(expr)                            \
  do {                                                      \
    if (absl::Status gh_status = (expr); !gh_status.ok()) { \
      return gh_status;                                     \
    }                                                       \
  } while (false)

// NOLINTBEGIN(bugprone-macro-parentheses)

// Assigns the value of `expr` to `lhs`, or returns its error.
#define GH_ASSIGN_OR_RETURN(lhs, expr) GH_ASSIGN_OR_RETURN_IMPL(GH_CONCAT(gh_or_, __LINE__), lhs, expr)
#define GH_ASSIGN_OR_RETURN_IMPL(or_value, lhs, expr) \
  auto or_value = (expr);                             \
  if (!or_value.ok()) return or_value.status();       \
  lhs = *std::move(or_value)
// NOLINTEND(bugprone-macro-parentheses)

#define GH_CONCAT(a, b) GH_CONCAT_IMPL(a, b)
#define GH_CONCAT_IMPL(a, b) a##b

#endif  // GATEHOUSE_SERVER_BASE_STATUS_MACROS_H_
