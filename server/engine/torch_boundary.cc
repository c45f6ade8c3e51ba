#include "server/engine/torch_boundary.h"

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "server/base/strings.h"

namespace gatehouse {
namespace {

std::string FirstLine(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

absl::Status FromMessage(std::string_view message) {
  for (const std::string_view sign : {"out of memory", "not enough memory", "can't allocate memory"}) {
    if (message.find(sign) != message.npos) {
      return absl::ResourceExhaustedError(StrCat("out of memory: ", FirstLine(message)));
    }
  }
  return absl::InternalError(FirstLine(message));
}

}  // namespace

absl::Status AtTorchBoundary(const std::function<absl::Status()>& body, bool grad) {
  try {
    const c10::InferenceMode guard(!grad);
    return body();
  } catch (const c10::Error& error) {
    return FromMessage(error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& error) {
    return FromMessage(error.what());
  }
}

}  // namespace gatehouse
