#include "stream.h"

#include <algorithm>
#include <array>

namespace dllm::lean {

namespace {

constexpr std::size_t kVersionBytes = 4;
constexpr std::uint64_t kEndless = UINT64_MAX;
constexpr std::size_t kLengthBytesMax = 3;

// The first so many; fewer where there are no more.
View front(View bytes, std::uint64_t most) {
  return bytes.first(static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), most)));
}

void write_message(View message, Buffer& out) {
  Writer writer(out);
  writer.number(message.size());
  writer.bytes(message);
}

// A message at the front of some bytes.
struct Length {
  std::size_t own = 0;  // bytes of the length itself; 0: they are not all there
  std::uint64_t message = 0;
};

Length read_length(View bytes) {
  Reader in(bytes);
  const std::uint64_t message = in.number();
  return in.failed() ? Length{} : Length{in.taken(), message};
}

}  // namespace

void Sender::requests(View bytes, Buffer& out) {
  while (!bytes.empty()) {
    const std::size_t before = out.size();
    bytes = bytes.subspan(step(bytes, out));
    runs_.append(id_, out.size() - before);
  }
}

void Sender::head(View head, Buffer& out) {
  const std::size_t before = out.size();
  learn(out);
  message_.clear();
  encoder_->head(head, message_);
  write_message(message_, out);
  runs_.append(head[0], out.size() - before);
}

// Returns how many bytes it took.
std::size_t Sender::step(View bytes, Buffer& out) {
  if (left_ > 0 && !in_blocks_) return pass(bytes, out);
  if (!held_.empty()) return gather(bytes, out);
  if (left_ == 0) learn(out);
  const std::size_t needed = wanted(bytes);
  if (bytes.size() >= needed) return consume(bytes.first(needed), out);
  held_.assign(bytes.begin(), bytes.end());
  return bytes.size();
}

std::size_t Sender::pass(View bytes, Buffer& out) {
  const View more = front(bytes, left_);
  Writer(out).bytes(more);
  left_ -= more.size();
  return more.size();
}

std::size_t Sender::gather(View bytes, Buffer& out) {
  const View more = front(bytes, wanted(held_) - held_.size());
  held_.insert(held_.end(), more.begin(), more.end());
  // Of a request's header it may want more than before.
  if (held_.size() < wanted(held_)) return more.size();
  const std::size_t taken = consume(held_, out);
  held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(taken));
  if (!in_blocks_) {
    pass(held_, out);
    held_.clear();
  }
  return more.size();
}

void Sender::learn(Buffer& out) {
  if (!learned_) return;
  write_message(std::to_array({kVersion, learned_->major, learned_->minor, learned_->patch}), out);
  encoder_.emplace(*learned_);
  learned_.reset();
}

std::size_t Sender::wanted(View beginning) const {
  if (in_blocks_) return static_cast<std::size_t>(std::min<std::uint64_t>(left_, kBlockBytes));
  if (beginning.size() < kRequestHeaderBytes) return kRequestHeaderBytes;
  return encoder_->wants(beginning);
}

// Returns how much of it the message stands for.
std::size_t Sender::consume(View gathered, Buffer& out) {
  message_.clear();
  std::size_t taken = gathered.size();
  if (in_blocks_) {
    encoder_->block(gathered, message_);
    left_ -= taken;
    in_blocks_ = left_ > 0;
  } else {
    id_ = gathered[0];
    const Begun begun = encoder_->begin(gathered, message_);
    taken = begun.taken;
    left_ = load<std::uint64_t>(gathered.data() + 1) - (taken - kRequestHeaderBytes);
    in_blocks_ = begun.in_blocks;
  }
  write_message(message_, out);
  return taken;
}

void Sender::end(Buffer& out) {
  if (held_.empty()) return;
  const std::size_t before = out.size();
  write_message(std::to_array({kLoose}), out);
  Writer(out).bytes(held_);
  runs_.append(in_blocks_ ? id_ : held_[0], out.size() - before);
  held_.clear();
}

std::size_t Receiver::take(View in, Buffer& out) {
  const std::size_t start = out.size();
  std::size_t taken = 0;
  while (!is_lost_ && taken < in.size() && out.size() - start < kMostBytes) {
    taken += step(in.subspan(taken), out);
  }
  return taken;
}

std::size_t Receiver::step(View in, Buffer& out) {
  if (as_is_ > 0) return pass(in, out);
  if (!held_.empty()) return gather(in, out);
  const Length length = read_length(in);
  if (length.own > 0 && length.message <= in.size() - length.own) {
    open(in.subspan(length.own, length.message), out);
    return length.own + length.message;
  }
  held_.push_back(in[0]);
  return 1;
}

std::size_t Receiver::pass(View in, Buffer& out) {
  const View more = front(in, std::min<std::uint64_t>(as_is_, kMostBytes));
  Writer(out).bytes(more);
  if (as_is_ != kEndless) as_is_ -= more.size();
  return more.size();
}

std::size_t Receiver::gather(View in, Buffer& out) {
  const Length length = read_length(held_);
  is_lost_ = held_.size() >= kLengthBytesMax && length.own == 0;
  is_lost_ = is_lost_ || length.message > kGraphRequestBytes;
  if (is_lost_) return 0;
  const std::uint64_t needed = length.own == 0 ? held_.size() + 1 : length.own + length.message;
  const View more = front(in, needed - held_.size());
  held_.insert(held_.end(), more.begin(), more.end());
  if (length.own == 0 || held_.size() < needed) return more.size();
  open(View(held_).subspan(length.own), out);
  held_.clear();
  return more.size();
}

void Receiver::open(View message, Buffer& out) {
  is_lost_ = !read(message, out);
}

bool Receiver::read(View message, Buffer& out) {
  if (message.empty()) return false;
  if (message[0] == kLoose) {
    as_is_ = kEndless;
    return message.size() == 1;
  }
  if (message[0] == kVersion) {
    if (message.size() != kVersionBytes) return false;
    decoder_.emplace(Version{message[1], message[2], message[3]});
    return true;
  }
  const Decoded decoded = decoder_->decode(message, out);
  as_is_ = decoded.follows;
  return decoded.taken == message.size();
}

}  // namespace dllm::lean
