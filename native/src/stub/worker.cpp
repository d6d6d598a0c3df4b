#include "worker.h"

#include <array>

#include "link/sockets.h"

namespace dllm {

namespace {

constexpr std::initializer_list<Command> kAnswered = {kDeviceCount, kGetAlignment, kGetMaxSize,
                                                      kGetDeviceMemory, kGetAllocSize};
// Since 3.0 a request begins with the device it is about.
constexpr Version kDevicesSince{3, 0, 0};

template <typename Value>
void put(std::string& out, Value value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename Value>
std::string text_of(Value value) {
  std::string out;
  put(out, value);
  return out;
}

// Without sources (before 3.6) all of them are tensors of zeros: none.
Question question_of(View tensors) {
  static constexpr std::array<std::uint8_t, kTensorBytes> kNoTensor{};
  const auto source = [&](std::size_t i) {
    const std::size_t at = (i + 1) * kTensorBytes;
    return Tensor(at + kTensorBytes <= tensors.size() ? &tensors[at] : kNoTensor.data());
  };
  return {Tensor(tensors.data()),
          {source(0), source(1), source(2), source(3), source(4), source(5), source(6), source(7),
           source(8), source(9)}};
}

bool receive_all(int fd, Bytes into) {
  while (!into.empty()) {
    const ssize_t count = receive(fd, into);
    if (count <= 0) return false;
    into = into.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

}  // namespace

std::optional<std::uint64_t> StubWorker::expects(std::uint8_t id, std::uint64_t size) const {
  if (!greeted_) {
    const bool fits = id == kHello && (size == 0 || size == kHelloCapsBytes);
    return fits ? std::optional(size) : std::nullopt;
  }
  const Rule* rule = is_one_of(id, kAnswered) ? protocol_.rule(id) : nullptr;
  return rule && rule->fields == size ? std::optional(size) : std::nullopt;
}

std::string StubWorker::hello() const {
  const Version version = protocol_.version();
  const bool has_caps = protocol_.rule(kHello)->fields != 0;
  std::string out(has_caps ? kLongHelloReply : kShortHelloReply, '\0');
  out[0] = static_cast<char>(version.major);
  out[1] = static_cast<char>(version.minor);
  out[2] = static_cast<char>(version.patch);
  return out;
}

const StubDevice* StubWorker::device_of(View payload) const {
  if (protocol_.version() < kDevicesSince) return &devices_.front();
  const auto index = load<std::uint32_t>(payload.data());
  return index < devices_.size() ? &devices_[index] : nullptr;
}

std::uint64_t StubWorker::alloc_size(const StubDevice& device, View payload) const {
  const std::size_t start = protocol_.version() < kDevicesSince ? 0 : sizeof(std::uint32_t);
  return alloc_bytes(device, protocol_.version(), question_of(payload.subspan(start)));
}

std::optional<std::string> StubWorker::answer(std::uint8_t id, View payload) {
  if (id == kHello) {
    greeted_ = true;
    return hello();
  }
  if (id == kDeviceCount) return text_of(static_cast<std::uint32_t>(devices_.size()));
  const StubDevice* device = device_of(payload);
  if (!device) return std::nullopt;
  if (id == kGetAlignment) return text_of(device->alignment());
  if (id == kGetMaxSize) return text_of(device->max_buffer_bytes());
  if (id == kGetAllocSize) return text_of(alloc_size(*device, payload));
  return text_of(device->free_bytes) + text_of(device->total_bytes);
}

void attend(int client, const std::vector<StubDevice>& devices, Version version) {
  StubWorker worker(devices, version);
  std::array<std::uint8_t, kRequestHeaderBytes> header;
  std::array<std::uint8_t, kFieldsMax> payload;
  while (receive_all(client, header)) {
    const std::uint8_t id = header[0];
    const auto size = worker.expects(id, load<std::uint64_t>(header.data() + 1));
    if (!size) return;
    const Bytes fields = Bytes(payload).first(*size);
    if (!receive_all(client, fields)) return;
    const auto reply = worker.answer(id, fields);
    if (!reply) return;
    const std::string message = text_of(std::uint64_t{reply->size()}) + *reply;
    if (!send_all(client,
                  {reinterpret_cast<const std::uint8_t*>(message.data()), message.size()})) {
      return;
    }
  }
}

}  // namespace dllm
