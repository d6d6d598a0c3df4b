// The command line of `dllm-relay paper`.
#pragma once

#include <span>
#include <vector>

#include "device.h"
#include "link/sockets.h"
#include "program.h"

namespace dllm {

struct StubOptions {
  Endpoint listen{"127.0.0.1", 0};
  Version protocol{7, 0, 0};
  std::vector<StubDevice> devices;
};

StubOptions parse_stub_options(std::span<const char* const> args);

}  // namespace dllm
