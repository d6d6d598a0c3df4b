// Bytes as text, to be copied at once: through iterators each would be a call, for tests are compiled
// without optimisation.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

inline std::string_view text_of(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
