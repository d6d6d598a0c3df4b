// The lines given out on the stats socket.
#pragma once

#include <string>
#include <vector>

#include "link.h"

namespace dllm {

std::string hello_line(const std::string& name, const char* version);
// A copy of the tally, so that the link is locked for the copying only.
std::string snapshot_line(const Link& link, const Tally& tally,
                          const std::vector<std::string>& waiting, Nanos now);
// At most kPassesPerLine of them.
inline constexpr std::size_t kPassesPerLine = 128;
std::string passes_line(const std::string& name, const Pass* passes, std::size_t count);

}  // namespace dllm
