#ifndef GATEHOUSE_SERVER_BASE_MEMORY_H_
#define GATEHOUSE_SERVER_BASE_MEMORY_H_

#include <cstdint>
#include <optional>
#include <string>

namespace gatehouse {

// Bytes that this process may still take before the system would end it: what is free or can
// be freed, and no more than the container's limit leaves.  Nothing where the system does not
// say.  Folders are given for tests alone.
std::optional<int64_t> AvailableMemory(const std::string& proc = "/proc", const std::string& cgroup = "/sys/fs/cgroup");

// Bytes of memory that there are in all: the system's, and no more than the container's limit.
std::optional<int64_t> TotalMemory(const std::string& proc = "/proc", const std::string& cgroup = "/sys/fs/cgroup");

}  // namespace gatehouse

#endif  // GATEHOUSE_SERVER_BASE_MEMORY_H_
