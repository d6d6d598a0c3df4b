// Bytes in, events out: follows both directions of one connection without buffering payloads and
// without touching a socket or a clock. What a decoder cannot follow ends its work, never the
// stream: it reports `lost` and from then on only passes bytes.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "commands.h"
#include "tensor.h"

namespace dllm {

using Bytes = std::span<std::uint8_t>;
using View = std::span<const std::uint8_t>;

inline View view(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

struct Request {
  const Rule* rule = nullptr;
  std::uint64_t size = 0;  // of the payload
};

// What happens in the direction client to worker. A callback that returns false ends the decoding
// for good: nothing behind that point is looked at or passed.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  // The rules to go by; null until the HELLO reply has told the version.
  virtual const Protocol* protocol() = 0;
  // The first byte of a request was seen.
  virtual void opened(std::uint8_t id) = 0;
  // The header is complete. `rule` is null for a command this version does not have.
  virtual bool announced(std::uint8_t id, const Rule* rule, std::uint64_t size) = 0;
  // The fixed part of the payload is complete.
  virtual bool fields(const Request& request, View fields) = 0;
  // One node of a graph, the id of one of its tensors, is complete.
  virtual bool node(const Request& request, std::uint64_t id) = 0;
  // One tensor of a graph is complete.
  virtual bool tensor(const Request& request, Tensor tensor) = 0;
  // The request is complete.
  virtual void closed(const Request& request) = 0;
  // These bytes are next in the stream. Called before the events their last byte causes.
  virtual void passed(View bytes) = 0;
  // What follows cannot be understood.
  virtual bool lost(const char* reason) = 0;
};

class RequestDecoder {
 public:
  explicit RequestDecoder(RequestSink& sink) : sink_(sink) {}
  // Zeroes the RDMA capabilities of a HELLO in place; changes nothing else.
  void feed(Bytes bytes);
  // Whether so many bytes are nothing but payload, or unread anyway. Then it has passed them.
  bool skip(std::uint64_t bytes);
  // Nothing of the next request has come.
  [[nodiscard]] bool is_between() const { return step_ == Step::kHeader && got_ == 0; }
  // From now on only passes bytes, but for the capabilities of a HELLO that is not through.
  void give_up();

 private:
  enum class Step {
    kHeader,
    kFields,
    kNode,
    kTensorCount,
    kTensor,
    kRest,
    kLastHeader,  // given up in, or before, the first header
    kLastCaps,    // given up in a HELLO
    kPipe,
    kEnded
  };

  std::size_t take(Bytes bytes);
  void enter(Step step, std::uint64_t bytes);
  void finish_step();
  void read_header();
  void read_last_header();
  void read_fields();
  void read_node();
  void next_node();
  void read_tensor_count();
  void read_tensor();
  void next_tensor();
  void close();
  void lose(const char* reason);
  const Rule* find_rule(std::uint8_t id);
  [[nodiscard]] bool is_in_caps() const;

  RequestSink& sink_;
  Step step_ = Step::kHeader;
  bool is_first_ = true;                        // no request is through
  std::uint64_t wanted_ = kRequestHeaderBytes;  // bytes of this step
  std::uint64_t got_ = 0;
  Request request_;
  std::uint64_t left_ = 0;     // payload bytes behind this step
  std::uint32_t nodes_ = 0;    // of the graph, still to come
  std::uint32_t tensors_ = 0;  // likewise
  std::array<std::uint8_t, kFieldsMax> gathered_;
};

// What the reply decoder must know about the request whose reply comes next.
struct Awaited {
  const Rule* rule = nullptr;
  std::uint64_t reply = 0;  // bytes; for HELLO not yet known
};

// What happens in the direction worker to client.
class ReplySink {
 public:
  virtual ~ReplySink() = default;
  // The first byte of a reply was seen; null when none is due.
  virtual const Awaited* begun() = 0;
  // Some bytes of the reply were seen.
  virtual void counted(std::uint64_t bytes) = 0;
  // The reply is complete; `payload` is empty when it was too long to keep.
  virtual bool answered(View payload) = 0;
  virtual void reply_lost(const char* reason) = 0;
};

class ReplyDecoder {
 public:
  explicit ReplyDecoder(ReplySink& sink) : sink_(sink) {}
  // Zeroes the RDMA capabilities of a HELLO reply in place; changes nothing else.
  void feed(Bytes bytes);
  void give_up() { pipe_ = true; }

 private:
  std::size_t take(Bytes bytes);
  bool begin();
  void read_header();
  void finish();
  void lose(const char* reason);

  ReplySink& sink_;
  bool pipe_ = false;
  const Awaited* awaited_ = nullptr;  // null between replies
  bool in_payload_ = false;
  std::uint64_t wanted_ = kReplyHeaderBytes;
  std::uint64_t got_ = 0;
  std::array<std::uint8_t, kLongHelloReply> gathered_;
};

// Whether a request of this kind can have a payload of this size.
bool size_fits(const Rule& rule, std::uint64_t size);

// Where in its tensor the data begin that a request sets, gets or names by their hash.
std::uint64_t tensor_offset(std::uint8_t id, View fields);

// Bytes of the reply that this request asks for.
std::uint64_t reply_bytes(const Rule& rule, View fields);

}  // namespace dllm
