// A stub worker: its command line, what it answers in every version, and how large tensors
// become on each kind of device.
#include <sys/socket.h>

#include <thread>

#include "check.h"
#include "link/sockets.h"
#include "stub/stub.h"
#include "transcript.h"

using namespace transcript;
using dllm::StubDevice;
using dllm::UniqueFd;

namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint32_t kQ4_0 = 2, kQ8_0 = 8, kF16 = 1;
constexpr std::uint32_t kMulMatId = 30, kArgsort = 69, kTopK = 70, kFlashAttn = 74;
constexpr Version k7{7, 0, 0};

dllm::StubOptions parse(const std::vector<const char*>& args) {
  return dllm::parse_stub_options(args);
}

std::string refusal(const std::vector<const char*>& args) {
  return check::thrown<dllm::UsageError>([&] { parse(args); });
}

// One connection to a stub worker: what it says to some bytes, until it or we hang up.
std::string say(const std::vector<StubDevice>& devices, Version version, const std::string& text) {
  int ends[2];
  dllm::check(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
  UniqueFd ours(ends[0]), theirs(ends[1]);
  std::thread worker([&] {
    dllm::attend(theirs.get(), devices, version);
    theirs.reset();
  });
  dllm::send_all(ours.get(), {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  ::shutdown(ours.get(), SHUT_WR);
  // Closing with requests unread resets the connection, behind the replies sent before.
  std::string all(1 << 20, '\0');
  std::size_t got = 0;
  const dllm::Bytes room(reinterpret_cast<std::uint8_t*>(all.data()), all.size());
  for (ssize_t n = 0; (n = dllm::receive(ours.get(), room.subspan(got))) > 0;) {
    got += static_cast<std::size_t>(n);
  }
  all.resize(got);
  worker.join();
  return all;
}

template <typename... Values>
std::string packed(Values... values) {
  std::string out;
  (put(out, values), ...);
  return out;
}

struct Shape {
  std::uint32_t type = 0;
  std::vector<std::uint32_t> ne;
  std::uint32_t op = 0;
  std::uint64_t id = 1;
};

// A contiguous tensor.
std::string laid_out(const Shape& shape) {
  std::string out(dllm::kTensorBytes, '\0');
  const bool quantized = shape.type == kQ4_0 || shape.type == kQ8_0;
  const std::uint32_t size = shape.type == kQ4_0   ? 18
                             : shape.type == kQ8_0 ? 34
                             : shape.type == kF16  ? 2
                                                   : 4;
  write(out, 0, shape.id);
  write(out, 8, shape.type);
  write(out, 52, shape.op);
  std::uint32_t stride = size;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint32_t ne = i < shape.ne.size() ? shape.ne[i] : 1;
    write(out, 20 + 4 * i, ne);
    write(out, 36 + 4 * i, stride);
    stride = i == 0 && quantized ? size * ne / 32 : stride * ne;
  }
  return out;
}

std::uint64_t alloc(const std::string& device, Version version, const Shape& shape,
                    const std::vector<Shape>& sources = {}) {
  std::string payload = packed(std::uint32_t{0}) + laid_out(shape);
  for (const Shape& source : sources) payload += laid_out(source);
  payload.resize(dllm::kFieldsMax);
  const std::string text = hello(version) + request(dllm::kGetAllocSize, payload);
  const std::string said = say({{device, kGiB, kGiB}}, version, text);
  const std::size_t before = hello_reply(version).size() + 8;
  CHECK(said.size() == before + 8);
  return said.size() == before + 8
             ? dllm::load<std::uint64_t>(reinterpret_cast<const std::uint8_t*>(&said[before]))
             : 0;
}

}  // namespace

TEST(the_command_line_names_devices_and_what_to_speak) {
  const auto options = parse({"--device", "CUDA0:24GiB:20GiB", "--device", "CPU:512MiB", "--listen",
                              "127.0.0.1:99", "--protocol", "8.0.0"});
  CHECK(options.devices.size() == 2);
  CHECK(options.devices[0].name == "CUDA0" && options.devices[0].total_bytes == 24 * kGiB);
  CHECK(options.devices[0].free_bytes == 20 * kGiB);
  CHECK(options.devices[1].free_bytes == kGiB / 2);
  CHECK(options.listen.port == 99 && options.protocol == (Version{8, 0, 0}));
}

TEST(a_command_line_that_makes_no_sense_is_refused_with_what_is_wrong) {
  CHECK(refusal({}) == "stub needs --device NAME:TOTAL[:FREE]");
  for (const char* device : {"CUDA0", "CUDA0:", ":1GiB", "CPU:1TiB", "CPU:-1", "CPU:1GiB:2GiB",
                             "CPU:1GiB:", "CPU:1GiB:1GiB:1", "CPU:99999999999GiB"}) {
    CHECK(check::contains(refusal({"--device", device}), device));
  }
  CHECK(check::contains(refusal({"--device", "CPU:1", "--protocol", "9.0.0"}), "9.0.0"));
  CHECK(check::contains(refusal({"--device", "CPU:1", "--protocol", "7.0"}), "7.0"));
  CHECK(check::contains(refusal({"--device", "CPU:1", "--listen", "1"}), "ADDRESS:PORT"));
  CHECK(check::contains(refusal({"--device", "CPU:1", "--listen"}), "needs a value"));
  CHECK(check::contains(refusal({"--what", "1"}), "--what"));
}

TEST(every_version_is_greeted_and_told_of_the_devices) {
  const std::vector<StubDevice> devices{{"CUDA0", 24 * kGiB, 20 * kGiB}, {"CPU", kGiB, kGiB}};
  for (const Version version : kVersions) {
    const bool numbered = version >= Version{3, 0, 0};
    const std::string first = numbered ? packed(std::uint32_t{0}) : "";
    std::string text = hello(version) + request(dllm::kGetAlignment, first) +
                       request(dllm::kGetMaxSize, first) + request(dllm::kGetDeviceMemory, first);
    std::string expected = hello_reply(version) + reply(packed(std::uint64_t{128})) +
                           reply(packed(UINT64_MAX)) + reply(packed(20 * kGiB, 24 * kGiB));
    if (numbered) {
      text +=
          request(dllm::kDeviceCount, "") + request(dllm::kGetAlignment, packed(std::uint32_t{1}));
      expected += reply(packed(std::uint32_t{2})) + reply(packed(std::uint64_t{32}));
    }
    CHECK(say(devices, version, text) == expected);
  }
}

TEST(buffers_are_kept_without_memory_behind_them) {
  const std::vector<StubDevice> devices{{"CPU", kGiB, kGiB}};
  for (const Version version : kVersions) {
    const std::string device = version >= Version{3, 0, 0} ? packed(std::uint32_t{0}) : "";
    const std::string nothing = version >= Version{6, 0, 0} ? "" : reply("");
    const std::uint64_t first = 4096, second = first + 8192;
    const std::string text = hello(version) +
                             request(dllm::kAllocBuffer, device + packed(std::uint64_t{5000})) +
                             request(dllm::kAllocBuffer, device + packed(16 * kGiB)) +
                             request(dllm::kBufferGetBase, packed(second)) +
                             request(dllm::kBufferClear, packed(second, std::uint8_t{0})) +
                             request(dllm::kFreeBuffer, packed(first)) +
                             request(dllm::kBufferGetBase, packed(first));
    const std::string expected = hello_reply(version) + reply(packed(first, std::uint64_t{5000})) +
                                 reply(packed(second, 16 * kGiB)) + reply(packed(second)) +
                                 nothing + nothing + reply(packed(first));
    CHECK(say(devices, version, text) == expected);
  }
}

TEST(whatever_else_is_asked_closes_the_connection) {
  const std::vector<StubDevice> devices{{"CPU", kGiB, kGiB}};
  const std::string hi = hello(k7), greeted = hello_reply(k7);
  const std::string count = request(dllm::kDeviceCount, "");
  CHECK(say(devices, k7, count) == "");                 // no HELLO before it
  CHECK(say(devices, k7, hi + hi + count) == greeted);  // a second one
  CHECK(say(devices, k7, hi + request(dllm::kGetAlignment, packed(std::uint32_t{1})) + count) ==
        greeted);  // no such device
  CHECK(say(devices, k7, hi + request(dllm::kDeviceCount, "x") + count) == greeted);
  const std::string huge = std::string(1, dllm::kGetAlignment) + packed(UINT64_MAX);
  CHECK(say(devices, k7, hi + huge + count) == greeted);
  for (int id = 0; id < 256; ++id) {
    const auto byte = static_cast<std::uint8_t>(id);
    if (dllm::is_one_of(byte, {dllm::kGetAlignment, dllm::kGetMaxSize, dllm::kGetDeviceMemory,
                               dllm::kGetAllocSize, dllm::kDeviceCount, dllm::kAllocBuffer,
                               dllm::kFreeBuffer, dllm::kBufferGetBase, dllm::kBufferClear})) {
      continue;
    }
    const dllm::Rule* rule = dllm::Protocol(k7).rule(byte);
    const std::string payload(rule ? rule->fields : 0, '\0');
    CHECK(say(devices, k7, hi + request(byte, payload) + count) == greeted);
  }
}

TEST(a_tensor_takes_its_own_bytes_on_a_cpu_and_on_vulkan) {
  for (const char* device : {"CPU", "Vulkan0"}) {
    CHECK(alloc(device, k7, {kQ4_0, {2880, 10}}) == 2880 / 32 * 18 * 10);
    CHECK(alloc(device, k7, {0, {5, 3, 2}}) == 5 * 3 * 2 * 4);
    CHECK(alloc(device, k7, {0, {5, 0}}) == 0);
  }
}

TEST(cuda_pads_the_last_row_of_quantized_weights) {
  // 2880 is 320 short of six times 512: ten blocks more.
  CHECK(alloc("CUDA0", k7, {kQ4_0, {2880, 10}}) == 2880 / 32 * 18 * 10 + 192 / 32 * 18);
  CHECK(alloc("CUDA0", k7, {kQ4_0, {1024, 10}}) == 1024 / 32 * 18 * 10);
  CHECK(alloc("CUDA0", k7, {kF16, {2880, 10}}) == 2880 * 2 * 10);
}

TEST(cuda_keeps_f16_copies_of_a_quantized_cache) {
  const Shape q{0, {64, 512, 8}}, f16{kF16, {64, 4096, 2}}, q8{kQ8_0, {64, 4096, 2}};
  const Shape result{0, {64, 8, 512}, kFlashAttn};
  const std::uint64_t bytes = 64 * 8 * 512 * 4, copy = 64 * 4096 * 2 * 2;
  CHECK(alloc("CUDA0", k7, result, {q, f16, f16}) == bytes);
  CHECK(alloc("CUDA0", k7, result, {q, q8, q8}) == bytes + 2 * copy);
  CHECK(alloc("CUDA0", {6, 0, 0}, result, {q, q8, q8}) == bytes);  // its op numbers are unknown
}

TEST(metal_keeps_scratch_behind_the_results_of_some_ops) {
  CHECK(alloc("MTL0", k7, {0, {100}, kArgsort}) == 800);
  CHECK(alloc("MTL0", k7, {0, {4}, kTopK}, {{0, {100, 3}}}) == 2 * 4 * 300);
  const Shape experts{kQ4_0, {64, 64, 8}}, ids{26, {2, 5}};
  CHECK(alloc("MTL0", k7, {0, {64, 2, 5}, kMulMatId}, {experts, {0, {64, 2, 5}}, ids}) ==
        64 * 2 * 5 * 4 + 4 * 8 * (1 + 5) + 8 + 1024);
  const Shape q{0, {64, 512, 8}}, kv{kF16, {64, 4096, 2}}, mask{kF16, {4096, 512}};
  const std::uint64_t pad = 64 * (128 * 2 + 128 * 2 + 2 * 512), blocks = 64 * 64;
  const std::uint64_t partial = 4ULL * 32 * 8 * 32 * 66, copies = 2 * 64 * 4096 * 2 * 2;
  CHECK(alloc("MTL0", k7, {0, {64, 8, 512}, kFlashAttn}, {q, kv, kv, mask}) ==
        64 * 8 * 512 * 4 + pad + blocks + partial + copies);
}

RUN_TESTS()
