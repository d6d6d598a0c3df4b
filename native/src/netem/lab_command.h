// What readers of the stats socket may ask for, one JSON object to the line.
#pragma once

#include <optional>
#include <string>

#include "lab.h"

namespace dllm {

// {"lab": {"latency_ms": 20, "jitter_ms": 2, "rate_mb_s": 30, "seed": 1}}, each member optional;
// {"lab": null} switches it off. None when the line is anything else.
std::optional<LabSettings> parse_lab_command(const std::string& line);

}  // namespace dllm
