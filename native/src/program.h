// What every command of the program shares.
#pragma once

#include <stdexcept>

namespace dllm {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

// A command line that cannot be meant; the program exits with kExitUsage.
class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace dllm
