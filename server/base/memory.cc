#include "server/base/memory.h"

#include <algorithm>
#include <fstream>
#include <string_view>

namespace gatehouse {
namespace {

// The number after `key` in a file of lines "key number"; of a file that is one number, for
// an empty key.
std::optional<int64_t> NumberIn(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  int64_t value = 0;
  if (key.empty()) return file >> value ? std::optional(value) : std::nullopt;
  while (file >> word) {
    if (word == key) return file >> value ? std::optional(value) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> AvailableMemory(const std::string& proc, const std::string& cgroup) {
  std::optional<int64_t> available = NumberIn(proc + "/meminfo", "MemAvailable:");
  if (available) *available *= 1024;
  // No limit is the word "max", which is no number.
  const std::optional<int64_t> limit = NumberIn(cgroup + "/memory.max", "");
  const std::optional<int64_t> used = NumberIn(cgroup + "/memory.current", "");
  if (limit && used) {
    const int64_t cache = NumberIn(cgroup + "/memory.stat", "inactive_file").value_or(0);
    const int64_t left = std::max<int64_t>(0, *limit - *used + cache);
    available = std::min(available.value_or(left), left);
  }
  return available;
}

std::optional<int64_t> TotalMemory(const std::string& proc, const std::string& cgroup) {
  std::optional<int64_t> total = NumberIn(proc + "/meminfo", "MemTotal:");
  if (total) *total *= 1024;
  const std::optional<int64_t> limit = NumberIn(cgroup + "/memory.max", "");
  if (limit) total = std::min(total.value_or(*limit), *limit);
  return total;
}

}  // namespace gatehouse
