#include "compression.h"

#ifdef DLLM_ZSTD

#include <zstd.h>

#include <algorithm>
#include <new>
#include <numeric>
#include <set>

namespace dllm::link {

namespace {

// Smaller than 1 and quicker than 5 on what llama-server sends: `make bench-compression`.
constexpr int kLevel = 3;
constexpr std::size_t kChunkBytes = 64 << 10;
// Of a request that sets a tensor, what is before its data in every version; one byte of them more
// before 7.0.
constexpr std::size_t kDataAt = kRequestHeaderBytes + kTensorBytes + 1 + sizeof(std::uint64_t);
// Of the data, to tell what they are.
constexpr std::size_t kProbedBytes = 64;
constexpr unsigned kVerbatim = 1;

View front(View bytes, std::uint64_t most) {
  return bytes.first(static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), most)));
}

void append(std::vector<std::uint8_t>& out, View bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void append_number(std::vector<std::uint8_t>& out, std::uint64_t number) {
  for (; number > 0x7f; number >>= 7) out.push_back(static_cast<std::uint8_t>(number) | 0x80);
  out.push_back(static_cast<std::uint8_t>(number));
}

// Positions and indices, and what begins with few different words: masks of 0 and -inf, and inputs
// that this pass does not use. No states between layers, and no weights.
bool is_compressible(View head) {
  constexpr std::uint32_t kI8 = 24, kI16 = 25, kI32 = 26, kI64 = 27;
  constexpr std::size_t kWordBytes = sizeof(std::uint32_t), kWordsMax = 4;
  const std::uint32_t type = Tensor(&head[kRequestHeaderBytes]).type();
  if (type == kI8 || type == kI16 || type == kI32 || type == kI64) return true;
  std::set<std::uint32_t> words;
  for (View data = head.subspan(kDataAt); data.size() >= kWordBytes;) {
    words.insert(load<std::uint32_t>(data.data()));
    data = data.subspan(kWordBytes);
  }
  return words.size() <= kWordsMax;
}

template <typename Context>
Context* made(Context* context) {
  return context != nullptr ? context : throw std::bad_alloc();
}

}  // namespace

bool has_compression() {
  return true;
}

Compressor::Compressor() : context_(made(ZSTD_createCCtx())), block_(ZSTD_CStreamOutSize()) {
  ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, kLevel);
  ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_windowLog, kWindowLog);
}

Compressor::~Compressor() = default;

void Compressor::Free::operator()(ZSTD_CCtx_s* context) const {
  ZSTD_freeCCtx(context);
}

void Compressor::requests(View bytes, Buffer& out) {
  while (!bytes.empty()) bytes = bytes.subspan(step(bytes, out));
}

void Compressor::head(View head, Buffer& out) {
  id_ = head[0];
  compress(head, true, out);
}

void Compressor::flush(Buffer& out) {
  if (!is_flushed_) compress({}, true, out);
}

// Returns how many bytes it took.
std::size_t Compressor::step(View bytes, Buffer& out) {
  if (head_.empty()) id_ = bytes[0];
  const bool is_head = head_.size() < wanted_;
  const View part = front(bytes, is_head ? wanted_ - head_.size() : left_);
  if (is_head) append(head_, part);
  if (!is_head && is_verbatim_) {
    append(out, part);
    runs_.append(id_, part.size());
  } else {
    compress(part, false, out);
  }
  if (!is_head) left_ -= part.size();
  if (is_head && head_.size() == wanted_) begin_data(out);
  if (head_.size() == wanted_ && left_ == 0) {
    head_.clear();
    wanted_ = kRequestHeaderBytes;
    is_verbatim_ = false;
  }
  return part.size();
}

// The header of a request is here, or also the tensor that it sets, and the first of its data.
void Compressor::begin_data(Buffer& out) {
  if (wanted_ == kRequestHeaderBytes) {
    left_ = load<std::uint64_t>(&head_[1]);
    const bool sets = is_one_of(id_, {kSetTensor, kSetTensor2d});
    if (!sets || left_ <= kDataAt - kRequestHeaderBytes) return;
    const auto more = std::min<std::uint64_t>(left_, kDataAt + kProbedBytes - kRequestHeaderBytes);
    wanted_ += more;
    left_ -= more;
    return;
  }
  // No client that is understood says so much.
  const bool is_absurd = left_ > UINT64_MAX >> 1;
  is_verbatim_ = left_ > 0 && !is_absurd && !is_compressible(head_);
  if (!is_verbatim_) return;
  flush(out);
  const std::size_t before = out.size();
  append_number(out, left_ << 1 | kVerbatim);
  runs_.append(id_, out.size() - before);
}

void Compressor::compress(View bytes, bool flushes, Buffer& out) {
  if (id_ < kCommands) said_[id_] += bytes.size();
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  const ZSTD_EndDirective how = flushes ? ZSTD_e_flush : ZSTD_e_continue;
  for (bool is_done = false; !is_done;) {
    ZSTD_outBuffer made{block_.data(), block_.size(), 0};
    const std::size_t left = ZSTD_compressStream2(context_.get(), &made, &in, how);
    if (ZSTD_isError(left)) throw std::bad_alloc();
    append(chunk_, View(block_).first(made.pos));
    is_done = flushes ? left == 0 : in.pos == in.size;
    if (chunk_.size() >= kChunkBytes || (flushes && is_done)) write_chunk(out);
  }
  is_flushed_ = flushes;
}

void Compressor::write_chunk(Buffer& out) {
  if (chunk_.empty()) return;
  const std::size_t before = out.size();
  append_number(out, std::uint64_t{chunk_.size()} << 1);
  append(out, chunk_);
  chunk_.clear();
  const std::uint64_t all = out.size() - before;
  const std::uint64_t said = std::accumulate(said_.begin(), said_.end(), std::uint64_t{0});
  std::uint64_t shared = 0;
  for (std::uint8_t each = 0; said > 0 && each < kCommands; ++each) {
    const std::uint64_t share = all * said_[each] / said;
    runs_.append(each, share);
    shared += share;
  }
  runs_.append(id_, all - shared);
  said_ = {};
}

Decompressor::Decompressor() : context_(made(ZSTD_createDCtx())), block_(kMostBytes) {
  ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kWindowLog);
}

Decompressor::~Decompressor() = default;

void Decompressor::Free::operator()(ZSTD_DCtx_s* context) const {
  ZSTD_freeDCtx(context);
}

std::size_t Decompressor::take(View in, Buffer& out) {
  const std::size_t start = out.size();
  std::size_t taken = 0;
  while (!is_lost_ && out.size() - start < kMostBytes && (taken < in.size() || has_more_)) {
    taken += step(in.subspan(taken), out);
  }
  return taken;
}

std::size_t Decompressor::step(View in, Buffer& out) {
  if (left_ == 0 && !has_more_) {
    read_length(in[0]);
    return 1;
  }
  const View part = front(in, std::min<std::uint64_t>(left_, kMostBytes));
  if (is_verbatim_) append(out, part);
  const std::size_t taken = is_verbatim_ ? part.size() : decompress(part, out);
  left_ -= taken;
  return taken;
}

void Decompressor::read_length(std::uint8_t byte) {
  constexpr unsigned kLengthBits = 64;
  is_lost_ = length_bits_ >= kLengthBits;
  if (is_lost_) return;
  length_ |= std::uint64_t{byte & 0x7fU} << length_bits_;
  length_bits_ += 7;
  if (byte & 0x80) return;
  is_verbatim_ = length_ & kVerbatim;
  left_ = length_ >> 1;
  length_ = length_bits_ = 0;
}

std::size_t Decompressor::decompress(View in, Buffer& out) {
  ZSTD_inBuffer from{in.data(), in.size(), 0};
  ZSTD_outBuffer to{block_.data(), block_.size(), 0};
  is_lost_ = ZSTD_isError(ZSTD_decompressStream(context_.get(), &to, &from)) != 0;
  append(out, View(block_).first(to.pos));
  has_more_ = !is_lost_ && to.pos == to.size;
  return from.pos;
}

}  // namespace dllm::link

#else

#include <stdexcept>

namespace dllm::link {

// The hello offers no compression then, so nothing of it is ever used.
bool has_compression() {
  return false;
}
Compressor::Compressor() { throw std::logic_error("built without zstd"); }
Compressor::~Compressor() = default;
void Compressor::Free::operator()(ZSTD_CCtx_s*) const {}
void Compressor::requests(View, Buffer&) {}
void Compressor::head(View, Buffer&) {}
void Compressor::flush(Buffer&) {}
Decompressor::Decompressor() { throw std::logic_error("built without zstd"); }
Decompressor::~Decompressor() = default;
void Decompressor::Free::operator()(ZSTD_DCtx_s*) const {}
std::size_t Decompressor::take(View in, Buffer&) { return in.size(); }

}  // namespace dllm::link

#endif
