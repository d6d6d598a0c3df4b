// SHA-256 (FIPS 180-4), so that a machine without OpenSSL can tell which bytes a file holds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dllm::agent {

class Sha256 {
 public:
  void add(std::string_view data);

  // 64 hex digits; nothing may be added afterwards.
  std::string hex();

 private:
  void take_block(const unsigned char* block);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> block_{};
  std::size_t held_ = 0;  // bytes in block_
  std::uint64_t size_bytes_ = 0;
};

}  // namespace dllm::agent
