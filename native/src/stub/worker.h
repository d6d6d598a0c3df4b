// A worker that only tells what it would have: one connection's questions and answers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "device.h"
#include "protocol/decoder.h"

namespace dllm {

class StubWorker {
 public:
  StubWorker(const std::vector<StubDevice>& devices, Version version)
      : devices_(devices), protocol_(version) {}

  // The bytes of payload a command has; none for a command that is refused here.
  [[nodiscard]] std::optional<std::uint64_t> expects(std::uint8_t id, std::uint64_t size) const;
  // The reply's payload; none when the request makes no sense.
  std::optional<std::string> answer(std::uint8_t id, View payload);

 private:
  [[nodiscard]] const StubDevice* device_of(View payload) const;
  [[nodiscard]] std::string hello() const;
  [[nodiscard]] std::uint64_t alloc_size(const StubDevice& device, View payload) const;

  const std::vector<StubDevice>& devices_;
  const Protocol protocol_;
  bool greeted_ = false;
};

// Answers until the client leaves or asks for more than a paper worker has.
void attend(int client, const std::vector<StubDevice>& devices, Version version);

}  // namespace dllm
