#include "device.h"

#include <algorithm>
#include <cctype>
#include <limits>

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

// ggml.h ggml_type, ggml-common.h QK*: elements per block, 1 for what is not quantized.
std::uint64_t block_elements(std::uint32_t type) {
  if ((type >= 2 && type <= 9) || type == 20 || type == 39) return 32;
  if ((type >= 10 && type <= 23) || type == 29 || type == 34 || type == 35) return 256;
  if (type == 40 || type == 42) return 64;
  return type == 41 ? 128 : 1;
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

}  // namespace dllm
