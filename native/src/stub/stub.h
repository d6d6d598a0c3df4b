// `dllm-relay stub`: speaks for workers that do not run, so that a plan's memory can be asked.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "link/sockets.h"
#include "posix.h"
#include "protocol/commands.h"
#include "protocol/decoder.h"
#include "protocol/tensor.h"

namespace dllm {

enum class DeviceKind : std::uint8_t { kCpu, kCuda, kMetal, kVulkan };

struct StubDevice {
  std::string name;  // as its engine calls it: CPU, CUDA0, MTL0, Vulkan0
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;

  // By the name's letters; a device of an unknown kind is padded as CUDA is, the most generous.
  [[nodiscard]] DeviceKind kind() const;
  [[nodiscard]] std::uint64_t alignment() const;
  // The largest single buffer.
  [[nodiscard]] std::uint64_t max_buffer_bytes() const;
};

inline constexpr int kSourcesMax = 10;

// A tensor and what it is computed from; a source whose id is 0 is none.
struct Question {
  Tensor tensor;
  std::array<Tensor, kSourcesMax> sources;
};

// Elements of a tensor, and its bytes without any padding (ggml_nelements, ggml_nbytes).
std::uint64_t elements(const Tensor& tensor);
std::uint64_t plain_bytes(const Tensor& tensor);

// What a worker with that device answers to GET_ALLOC_SIZE.
std::uint64_t alloc_bytes(const StubDevice& device, Version version, const Question& question);

struct StubOptions {
  Endpoint listen{"127.0.0.1", 0};
  Version protocol{7, 0, 0};
  std::vector<StubDevice> devices;
};

StubOptions parse_stub_options(std::span<const char* const> args);

// Answers until the client leaves or asks for more than a stub worker has.
void attend(int client, const std::vector<StubDevice>& devices, Version version);

extern const char* const kStubHelp;

// Does not return while it serves; the program's exit code.
[[noreturn]] void stub(std::span<char* const> args);

}  // namespace dllm
