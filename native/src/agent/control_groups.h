// The control groups a process is in, of version 1 and 2, with the limits they set.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dllm::agent {

// A file of /proc or /sys; empty where it cannot be read.
std::string slurp(const std::string& path);

// The number a text begins with; none when it is no number, for example "max".
std::optional<std::uint64_t> number_in(const std::string& text);

struct ControlGroup {
  std::string folder;  // where its files are, with a final slash
  std::string name;    // the same without the root, for people
  bool unified;        // of version 2
};

// The groups of this process that have a controller ("memory", "cpu"), each before those above it,
// as the files below `root` tell ("" on a real system). Each may be narrower than those below.
std::vector<ControlGroup> control_groups(const std::string& controller, const std::string& root);

}  // namespace dllm::agent
