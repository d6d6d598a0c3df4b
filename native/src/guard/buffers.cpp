#include "buffers.h"

#include <algorithm>

namespace dllm {

void Buffers::given(std::uint64_t handle, std::uint64_t size) {
  // No handle: the worker had no room.
  if (handle == 0) return;
  all_[handle] = {size, {}};
  largest_ = std::max(largest_, size);
}

void Buffers::based(std::uint64_t handle, std::uint64_t base) {
  const auto found = all_.find(handle);
  if (found == all_.end()) return;
  // One that would wrap around holds nothing.
  if (base + found->second.size >= base) found->second.base = base;
}

void Buffers::freed(std::uint64_t handle) {
  all_.erase(handle);
  largest_ = 0;
  for (const auto& [each, buffer] : all_) largest_ = std::max(largest_, buffer.size);
}

std::optional<Region> Buffers::region(std::uint64_t handle) const {
  const auto found = all_.find(handle);
  if (found == all_.end() || !found->second.base) return std::nullopt;
  return Region{*found->second.base, *found->second.base + found->second.size};
}

}  // namespace dllm
