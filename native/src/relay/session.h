// One connection as it is understood: joins the decoders of both directions to the link's
// counters, passes, answers and guard. No sockets; the time is given.
#pragma once

#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "decoder.h"
#include "link.h"

namespace dllm {

// What one step lets through.
struct Outgoing {
  Bytes worker;          // for the worker; of the bytes given, or valid until the next step
  std::string answers;   // for the client; no reply is due before them
  bool refused = false;  // close the connection once the bytes are sent
  // The client is in the middle of something: of a request, or of those that lead to a question.
  bool more_follows = false;
};

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
  // Bytes from the worker. All of them go to the client, before any answers of a later step.
  void replies(Bytes bytes, Nanos now);

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

  void forget_sent();
  Outgoing outgoing();
  bool refuse(const char* reason);
  void go_plain(const std::string& reason);
  void cross(const Rule& rule);
  bool answer(const Rule& rule);
  void note_pass_fields(const Request& request, View fields);
  void note_fetch(Tensor tensor);
  bool learn_version(View payload);
  void count_up(std::uint64_t bytes);
  void attribute();

  Link& link_;
  RequestDecoder request_decoder_{static_cast<RequestSink&>(*this)};
  ReplyDecoder reply_decoder_{static_cast<ReplySink&>(*this)};
  std::optional<Protocol> protocol_;
  bool plain_ = false;
  bool refused_ = false;
  bool greeted_ = false;  // the client said HELLO
  Nanos now_ = 0;

  // On their way to the worker. Of the present request the header and fixed fields (at most
  // kRequestHeaderBytes + kFieldsMax) are held back until they are complete: a worker can do
  // nothing with less, they may be refused or answered here, and what left the client in three
  // pieces goes on in one.
  std::vector<std::uint8_t> pending_;
  std::size_t sent_ = 0;       // of them: let through by the step before
  std::size_t opened_at_ = 0;  // where the present request starts
  bool holding_ = false;
  std::string answers_;  // of this step

  std::uint8_t id_ = kCommands;  // of the present request
  Nanos opened_time_ = 0;
  bool answerable_ = false;
  bool asked_ = true;               // the latest request is due a reply
  std::uint64_t unattributed_ = 0;  // bytes of the present request not yet counted to its command
  Due due_{};                       // of the present request

  // Buffers that were cleared: those of the KV cache and other state, never those of graphs.
  std::set<std::uint64_t> state_buffers_;

  std::deque<Due> dues_;
};

}  // namespace dllm
