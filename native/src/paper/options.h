// The command line of `dllm-relay paper`.
#pragma once

#include <span>
#include <vector>

#include "device.h"
#include "program.h"
#include "relay/sockets.h"

namespace dllm {

struct PaperOptions {
  Endpoint listen{"127.0.0.1", 0};
  Version protocol{7, 0, 0};
  std::vector<PaperDevice> devices;
};

PaperOptions parse_paper_options(std::span<const char* const> args);

}  // namespace dllm
