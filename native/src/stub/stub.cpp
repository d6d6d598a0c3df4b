#include "stub.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <limits>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "arguments.h"
#include "json.h"
#include "link/sockets.h"

namespace dllm {

namespace {

// All that follows is llama.cpp's own, of RPC 7.0.0 (0c1e570) and 8.0.0 (b11549).
// ggml-impl.h TENSOR_ALIGNMENT; ggml-cuda.cu and ggml-metal.cpp *_buffer_type_get_alignment.
constexpr std::uint64_t kCpuAlignment = 32, kCudaAlignment = 128, kMetalAlignment = 32;
// Vulkan asks the driver (minStorageBufferOffsetAlignment): 16 to 64 on what is sold.
constexpr std::uint64_t kVulkanAlignment = 64;
// ggml-vulkan.cpp: suballocation_block_size, where the driver sets no lower limit.
constexpr std::uint64_t kVulkanBufferBytes = std::uint64_t{1} << 30;
// ggml-cuda/common.cuh MATRIX_ROW_PADDING.
constexpr std::uint64_t kCudaRowElements = 512;
constexpr std::uint64_t kF16Bytes = 2, kF32Bytes = 4, kI32Bytes = 4;
constexpr std::uint32_t kF16 = 1;
// ggml-metal-impl.h OP_FLASH_ATTN_EXT_*, N_MM_NPART_AMAX; ggml-metal-ops.cpp.
constexpr std::uint64_t kMetalQueries = 8, kMetalCells = 64, kMetalVecCells = 32;
constexpr std::uint64_t kMetalGroups = 32, kMetalRowsMax = 32, kMetalVecBelow = 20;
constexpr std::uint64_t kMetalScalesBytes = 8 + 256 * kF32Bytes;

// ggml.h ggml_op: the numbers move from version to version.
struct Ops {
  std::uint32_t cumsum, mul_mat_id, argsort, top_k, flash_attn;
};
constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();
constexpr Ops kOps7{16, 30, 69, 70, 74};
constexpr Ops kUnknownOps{kNever, kNever, kNever, kNever, kNever};

const Ops& ops_of(Version version) {
  return version.major >= 7 ? kOps7 : kUnknownOps;
}

std::uint64_t block_elements(std::uint32_t id) {
  const TensorType* type = tensor_type(id);
  return type ? type->block : 1;
}

std::uint64_t padded(std::uint64_t bytes, std::uint64_t to) {
  return (bytes + to - 1) / to * to;
}

bool present(const Tensor& tensor) {
  return load<std::uint64_t>(tensor.bytes()) != 0;
}

// The same memory as another: V of latent attention is a part of K.
bool is_view_of(const Tensor& view, const Tensor& other) {
  const auto origin = [](const Tensor& t) { return load<std::uint64_t>(t.bytes() + 204); };
  const auto offset = [](const Tensor& t) { return load<std::uint64_t>(t.bytes() + 212); };
  if (origin(view) == 0) return false;
  return origin(view) == load<std::uint64_t>(other.bytes()) ||
         (origin(view) == origin(other) && offset(view) == offset(other));
}

// ggml-cuda/fattn-common.cuh ggml_cuda_flash_attn_ext_get_f16_extra_data, for the kernels that
// need K and V as f16; the vector kernel of a few cards and shapes takes less.
std::uint64_t cuda_attention(std::uint64_t bytes, const Question& question) {
  const Tensor &k = question.sources[1], &v = question.sources[2];
  if (k.type() != kF16) bytes = padded(bytes, kCudaAlignment) + elements(k) * kF16Bytes;
  if (v.type() != kF16 && !is_view_of(v, k)) {
    bytes = padded(bytes, kCudaAlignment) + elements(v) * kF16Bytes;
  }
  return bytes;
}

// ggml-cuda.cu ggml_backend_cuda_buffer_type_get_alloc_size.
std::uint64_t cuda_bytes(const Ops& ops, const Question& question) {
  const Tensor& tensor = question.tensor;
  std::uint64_t bytes = plain_bytes(tensor);
  if (tensor.op() == ops.flash_attn) bytes = cuda_attention(bytes, question);
  const std::uint64_t block = block_elements(tensor.type());
  const std::uint64_t rest = tensor.ne(0) % kCudaRowElements;
  if (block > 1 && rest != 0) bytes += (kCudaRowElements - rest) / block * tensor.nb(0);
  return bytes;
}

// ggml-metal-ops.cpp ggml_metal_op_flash_attn_ext_use_kv_f16.
bool metal_dequantizes(const Tensor& q, const Tensor& k) {
  return q.ne(1) >= 32 && block_elements(k.type()) == 32 && k.type() <= 8;
}

// ..._extra_pad: the last, partly filled chunk of K, V and the mask.
std::uint64_t metal_pad(const Question& question) {
  const Tensor &q = question.sources[0], &k = question.sources[1];
  const Tensor &v = question.sources[2], &mask = question.sources[3];
  const bool f16 = metal_dequantizes(q, k);
  const std::uint64_t v_width = is_view_of(v, k) ? k.ne(0) : v.ne(0);
  const std::uint64_t k_row = f16 ? kF16Bytes * k.ne(0) : k.nb(1);
  const std::uint64_t v_row = f16 ? kF16Bytes * v_width : v.nb(1);
  std::uint64_t rows = k_row * k.ne(2) * k.ne(3) + v_row * v.ne(2) * v.ne(3);
  if (present(mask)) rows += kF16Bytes * mask.ne(1) * mask.ne(2) * mask.ne(3);
  return kMetalCells * rows;
}

// ..._extra_blk: which blocks of the mask are empty.
std::uint64_t metal_blocks(const Tensor& q, const Tensor& mask) {
  if (!present(mask)) return 0;
  const bool vector = q.ne(1) < kMetalVecBelow && q.ne(0) % 32 == 0;
  const std::uint64_t queries = vector ? 1 : kMetalQueries;
  const std::uint64_t cells = vector ? kMetalVecCells : kMetalCells;
  const std::uint64_t down = (q.ne(1) + queries - 1) / queries;
  const std::uint64_t across = (mask.ne(0) + cells - 1) / cells;
  return padded(down * across * mask.ne(2) * mask.ne(3), 32);
}

// ..._extra_tmp and ..._extra_kv_f16: partial results, and K and V as f16.
std::uint64_t metal_scratch(const Tensor& q, const Tensor& k, const Tensor& v) {
  const std::uint64_t rows = std::min<std::uint64_t>(q.ne(1), kMetalRowsMax);
  const std::uint64_t partial = kF32Bytes * rows * q.ne(2) * q.ne(3) * kMetalGroups * (v.ne(0) + 2);
  const std::uint64_t k_f16 = padded(kF16Bytes * elements(k), 16);
  const std::uint64_t v_f16 = is_view_of(v, k) ? 0 : padded(kF16Bytes * elements(v), 16);
  return partial + k_f16 + v_f16;
}

// ggml-metal.cpp ggml_backend_metal_buffer_type_get_alloc_size. Lists for sparse attention, at
// most 8 MiB and of few models, are left out.
std::uint64_t metal_bytes(const Ops& ops, const Question& question) {
  const Tensor& tensor = question.tensor;
  const auto& sources = question.sources;
  const std::uint64_t bytes = plain_bytes(tensor);
  if (tensor.op() == ops.mul_mat_id) {
    const std::uint64_t experts = sources[0].ne(2), tokens = sources[2].ne(1);
    return bytes + kI32Bytes * experts * (1 + tokens) + kMetalScalesBytes;
  }
  if (tensor.op() == ops.flash_attn) {
    return bytes + metal_pad(question) + metal_blocks(sources[0], sources[3]) +
           metal_scratch(sources[0], sources[1], sources[2]);
  }
  if (tensor.op() == ops.cumsum || tensor.op() == ops.argsort) return 2 * bytes;
  return tensor.op() == ops.top_k ? 2 * kI32Bytes * elements(sources[0]) : bytes;
}

}  // namespace

DeviceKind StubDevice::kind() const {
  const auto digit = std::ranges::find_if(name, [](unsigned char c) { return std::isdigit(c); });
  const std::string letters(name.begin(), digit);
  if (letters == "CPU") return DeviceKind::kCpu;
  if (letters == "MTL" || letters == "Metal") return DeviceKind::kMetal;
  return letters == "Vulkan" ? DeviceKind::kVulkan : DeviceKind::kCuda;
}

std::uint64_t StubDevice::alignment() const {
  switch (kind()) {
    case DeviceKind::kCpu:
      return kCpuAlignment;
    case DeviceKind::kCuda:
      return kCudaAlignment;
    case DeviceKind::kMetal:
      return kMetalAlignment;
    case DeviceKind::kVulkan:
      return kVulkanAlignment;
  }
  return kCudaAlignment;
}

std::uint64_t StubDevice::max_buffer_bytes() const {
  if (kind() == DeviceKind::kVulkan) return kVulkanBufferBytes;
  const bool limited = kind() == DeviceKind::kMetal && total_bytes != 0;
  return limited ? total_bytes : std::numeric_limits<std::uint64_t>::max();
}

std::uint64_t elements(const Tensor& tensor) {
  std::uint64_t count = 1;
  for (int i = 0; i < Tensor::kDims; ++i) count *= tensor.ne(i);
  return count;
}

std::uint64_t plain_bytes(const Tensor& tensor) {
  if (elements(tensor) == 0) return 0;
  const std::uint64_t block = block_elements(tensor.type());
  // The step from element to element is the size of a block.
  std::uint64_t bytes = block > 1 ? std::uint64_t{tensor.ne(0)} * tensor.nb(0) / block
                                  : std::uint64_t{tensor.ne(0)} * tensor.nb(0);
  for (int i = 1; i < Tensor::kDims; ++i) {
    bytes += std::uint64_t{tensor.ne(i) - 1} * tensor.nb(i);
  }
  return bytes;
}

std::uint64_t alloc_bytes(const StubDevice& device, Version version, const Question& question) {
  switch (device.kind()) {
    case DeviceKind::kCuda:
      return cuda_bytes(ops_of(version), question);
    case DeviceKind::kMetal:
      return metal_bytes(ops_of(version), question);
    default:
      return plain_bytes(question.tensor);
  }
}

namespace {

// llama.cpp takes no more (llama_max_devices).
constexpr std::size_t kDevicesMax = 16;
constexpr std::array<std::pair<std::string_view, int>, 5> kUnits{
    {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}}};

// A whole number at the beginning of `text`, which it is cut off.
template <typename Number>
std::optional<Number> cut_number(std::string_view& text) {
  Number number{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return number;
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  const auto number = cut_number<std::uint64_t>(text);
  for (const auto& [unit, shift] : kUnits) {
    if (number && text == unit && *number <= UINT64_MAX >> shift) return *number << shift;
  }
  return std::nullopt;
}

StubDevice parse_device(const std::string& text) {
  const std::size_t first = text.find(':');
  const std::size_t second = first == std::string::npos ? first : text.find(':', first + 1);
  const auto size = [&](std::size_t from, std::size_t to) {
    return from == std::string::npos ? std::nullopt
                                     : parse_size(text.substr(from + 1, to - from - 1));
  };
  const auto total = size(first, second);
  const auto free = second == std::string::npos ? total : size(second, text.size());
  if (first == 0 || !total || !free || *free > *total) {
    throw UsageError("--device needs NAME:TOTAL[:FREE] such as CUDA0:24GiB:20GiB, not '" + text +
                     "'");
  }
  return {text.substr(0, first), *total, *free};
}

Version parse_protocol(const std::string& text) {
  std::string_view rest = text;
  std::array<std::uint8_t, 3> parts{};
  bool valid = true;
  for (std::size_t i = 0; valid && i < parts.size(); ++i) {
    if (i != 0) {
      valid = rest.starts_with('.');
      rest.remove_prefix(valid ? 1 : 0);
    }
    const auto part = cut_number<std::uint8_t>(rest);
    valid = valid && part.has_value();
    parts[i] = part.value_or(0);
  }
  const Version version{parts[0], parts[1], parts[2]};
  if (!valid || !rest.empty() || !Protocol::covers(version)) {
    throw UsageError("--protocol needs a version from 1.0.0 to 8.x.x, not '" + text + "'");
  }
  return version;
}

}  // namespace

StubOptions parse_stub_options(std::span<const char* const> args) {
  StubOptions options;
  parse_arguments(args,
                  {{"--device", [&](auto& text) { options.devices.push_back(parse_device(text)); }},
                   {"--listen", [&](auto& text) { options.listen = port_for("--listen", text); }},
                   {"--protocol", [&](auto& text) { options.protocol = parse_protocol(text); }}});
  if (options.devices.empty()) throw UsageError("stub needs --device NAME:TOTAL[:FREE]");
  if (options.devices.size() > kDevicesMax) throw UsageError("stub takes 16 devices at most");
  return options;
}

namespace {

// llama-fit-params allocates recurrent states and clears them (llama-memory-recurrent.cpp); all
// else it only measures.
constexpr std::initializer_list<Command> kAnswered = {
    kDeviceCount, kGetAlignment, kGetMaxSize,    kGetDeviceMemory, kGetAllocSize,
    kAllocBuffer, kFreeBuffer,   kBufferGetBase, kBufferClear};
// Nothing is behind a buffer: its address, a page's, is all there is of it.
constexpr std::uint64_t kPageBytes = 4096;
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

class StubWorker {
 public:
  StubWorker(const std::vector<StubDevice>& devices, Version version)
      : devices_(devices), protocol_(version) {}

  // The bytes of payload a command has; none for a command that is refused here.
  [[nodiscard]] std::optional<std::uint64_t> expects(std::uint8_t id, std::uint64_t size) const;
  // The reply's payload; none when the request makes no sense.
  std::optional<std::string> answer(std::uint8_t id, View payload);
  // Since 6.0 some commands have no reply.
  [[nodiscard]] bool is_silent(std::uint8_t id) const {
    return protocol_.rule(id)->reply_kind == Reply::kNone;
  }

 private:
  [[nodiscard]] const StubDevice* device_of(View payload) const;
  [[nodiscard]] std::string hello() const;
  [[nodiscard]] std::uint64_t alloc_size(const StubDevice& device, View payload) const;
  std::string buffer_of(std::uint64_t bytes);

  const std::vector<StubDevice>& devices_;
  const Protocol protocol_;
  bool greeted_ = false;
  std::uint64_t next_buffer_ = kPageBytes;
};

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

std::string StubWorker::buffer_of(std::uint64_t bytes) {
  const std::uint64_t buffer = std::exchange(next_buffer_, next_buffer_ + padded(bytes, kPageBytes));
  return text_of(buffer) + text_of(bytes);
}

std::optional<std::string> StubWorker::answer(std::uint8_t id, View payload) {
  if (id == kHello) {
    greeted_ = true;
    return hello();
  }
  if (id == kDeviceCount) return text_of(static_cast<std::uint32_t>(devices_.size()));
  if (is_one_of(id, {kFreeBuffer, kBufferClear})) return "";
  if (id == kBufferGetBase) return text_of(load<std::uint64_t>(payload.data()));
  const StubDevice* device = device_of(payload);
  if (!device) return std::nullopt;
  if (id == kGetAlignment) return text_of(device->alignment());
  if (id == kGetMaxSize) return text_of(device->max_buffer_bytes());
  if (id == kGetAllocSize) return text_of(alloc_size(*device, payload));
  if (id == kAllocBuffer) return buffer_of(load<std::uint64_t>(&payload[payload.size() - 8]));
  return text_of(device->free_bytes) + text_of(device->total_bytes);
}

}  // namespace

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
    if (worker.is_silent(id)) continue;
    const std::string message = text_of(std::uint64_t{reply->size()}) + *reply;
    if (!send_all(client,
                  {reinterpret_cast<const std::uint8_t*>(message.data()), message.size()})) {
      return;
    }
  }
}

const char* const kStubHelp =
    R"(usage: dllm-relay stub --device NAME:TOTAL[:FREE] … [options]

Speaks for a worker that does not run: answers how many devices it has, their memory, alignment and
the size of a tensor there, and keeps buffers without memory, which is all llama-fit-params asks.
Refuses everything else by closing.
Prints {"port", "pid"} when it listens; ends with SIGTERM, or when the pipe at its input closes.

  --device NAME:TOTAL[:FREE]  a device as its engine names it, such as CUDA0:24GiB:20GiB or CPU:8GiB;
                              the n-th is the worker's device n-1
  --listen ADDRESS:PORT       where to listen; default 127.0.0.1:0, which takes a free port
  --protocol X.Y.Z            the RPC version to speak; default 7.0.0
)";

namespace {

constexpr int kClientsMax = 64;

// A terminal, a file or /dev/null tells nothing of the parent.
bool is_parents_pipe(int fd) {
  struct stat status{};
  return ::fstat(fd, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode));
}

void end_with_parent() {
  char scrap[64];
  while (retry([&] { return ::read(STDIN_FILENO, scrap, sizeof scrap); }) > 0) {
  }
  ::_exit(kExitOk);
}

void admit(int listener, const StubOptions& options) {
  static std::atomic<int> clients = 0;
  for (;;) {
    UniqueFd client = accept_client(listener);
    if (!client) {
      ::poll(nullptr, 0, 10);  // no descriptor left: one may be free soon
      continue;
    }
    if (clients >= kClientsMax) continue;
    ++clients;
    tune(client.get());
    std::thread([&options, fd = std::move(client)] {
      attend(fd.get(), options.devices, options.protocol);
      --clients;
    }).detach();
  }
}

}  // namespace

void stub(std::span<char* const> args) {
  const StubOptions options = parse_stub_options(args);
  const sigset_t signals = block_ending_signals();
  ::signal(SIGPIPE, SIG_IGN);
  const UniqueFd listener = listen_tcp(options.listen);
  std::thread([&] { admit(listener.get(), options); }).detach();
  if (is_parents_pipe(STDIN_FILENO)) std::thread(end_with_parent).detach();
  const std::string line =
      json::Object().number("port", bound_port(listener.get())).number("pid", ::getpid()).line();
  write_all(STDOUT_FILENO, line, "cannot print the port");
  int signal = 0;
  ::sigwait(&signals, &signal);
  // Not `return`: a thread that still answers must not see all this vanish.
  ::_exit(kExitOk);
}

}  // namespace dllm
