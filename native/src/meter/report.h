// The lines given out on the stats socket.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "link/link.h"

namespace dllm {

// Copied from a link, so that it is locked for the copying only.
struct News {
  Tally tally;
  PassTotals totals;
  std::vector<Pass> passes;  // complete since the news before
};

std::string hello_line(const std::string& name, const char* version);
std::string snapshot_line(const Link& link, const News& news, Nanos now);
std::string passes_line(const std::string& name, std::span<const Pass> passes);

}  // namespace dllm
