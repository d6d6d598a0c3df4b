// The processors of this machine, and how many of them this user's processes may use.
#pragma once

#include <string>

namespace dllm::agent {

struct Processors {
  std::string name;
  std::string instructions;  // the instruction sets, as the kernel calls them
  int usable = 1;            // logical ones
  // Physical ones of the fastest kind among them, at most as many as a container may use at a time.
  int performance = 1;
};

// As the files below `root` tell on Linux ("" on a real system).
Processors machine_processors(const std::string& root = "");

}  // namespace dllm::agent
