// One connection as it is understood: joins the decoders of both directions to the link's
// counters, passes, answers and guard. No sockets; the time is given.
#pragma once

#include <atomic>
#include <deque>
#include <optional>
#include <set>
#include <string>

#include "decoder.h"
#include "link.h"
#include "outgoing.h"

namespace dllm {

class Session final : private RequestSink, private ReplySink {
 public:
  // Requests without their replies. A stock client has one; beyond, nobody means it.
  static constexpr std::size_t kAwaitedMax = 1024;
  static constexpr std::size_t kStateBuffersMax = 1024;

  explicit Session(Link& link);
  ~Session() override;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Bytes from the client; returns what the worker (and the client) gets.
  Outgoing requests(Bytes bytes, Nanos now);
  // The client sends no more: what was still held back.
  Outgoing requests_end();
  // Bytes from the worker. All of them go to the client, then `delivered` is called.
  void replies(Bytes bytes, Nanos now);
  void delivered() { delivering_ = false; }

  // Replies the worker still owes, as far as understood.
  std::size_t awaited();

 private:
  struct Due {
    Awaited awaited;
    Nanos sent = 0;
    std::string key;  // of the answer to keep; empty: none
    bool from_pass = false;
  };

  const Protocol* protocol() override { return protocol_ ? &*protocol_ : nullptr; }
  void opened(std::uint8_t id) override;
  bool announced(std::uint8_t id, const Rule* rule, std::uint64_t size) override;
  bool fields(const Request& request, View fields) override;
  bool tensor(const Request& request, Tensor tensor) override;
  void closed(const Request& request) override;
  void passed(View bytes) override;
  bool lost(const char* reason) override;

  const Awaited* begun() override;
  void counted(std::uint64_t bytes) override;
  bool answered(View payload) override;
  void reply_lost(const char* reason) override;

  bool refuse(const char* reason);
  void go_plain(const std::string& reason);
  void cross(const Rule& rule);
  bool answer(const Rule& rule);
  void note_pass_fields(const Request& request, View fields);
  void note_fetch(Tensor tensor);
  void note_pass_request(const Rule& rule);
  bool learn_version(View payload);
  void attribute();
  void release();

  Link& link_;
  RequestDecoder request_decoder_{static_cast<RequestSink&>(*this)};
  ReplyDecoder reply_decoder_{static_cast<ReplySink&>(*this)};
  std::optional<Protocol> protocol_;
  bool plain_ = false;
  bool refused_ = false;
  bool greeted_ = false;  // the client said HELLO
  Nanos now_ = 0;

  Outgoing* out_ = nullptr;      // of the present step
  std::uint8_t id_ = kCommands;  // of the present request
  Nanos opened_at_ = 0;
  // Of the present request the header and fixed fields (at most kRequestHeaderBytes + kFieldsMax)
  // are held back until they are complete: a worker can do nothing with less, they may be refused
  // or answered here, and what left the client in three pieces goes on in one.
  bool holding_ = false;
  bool answerable_ = false;
  std::string held_;
  std::uint64_t unattributed_ = 0;  // bytes of the present request not yet counted to its command
  Due due_{};                       // of the present request

  // Buffers that were cleared: those of the KV cache and other state, never those of graphs.
  std::set<std::uint64_t> state_buffers_;

  std::deque<Due> dues_;
  std::atomic<bool> delivering_ = false;
};

}  // namespace dllm
