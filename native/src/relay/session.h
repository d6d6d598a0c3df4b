// One connection as it is understood: its requests are decoded, policy judges them, and what it
// lets through goes on; a meter watches. No sockets; the time is given.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "decoder.h"
#include "link.h"
#include "meter.h"
#include "policy.h"
#include "weights.h"

namespace dllm {

// When the worker could begin what was asked of it, and when its reply came; on its own clock.
struct Trip {
  Nanos began = 0;
  Nanos ended = 0;
};

// The head (header and fixed fields) of a SET_TENSOR whose data go another way: where in
// Outgoing::worker it begins and ends. Data that the client sends stand behind it.
struct Detached {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// What one step lets through.
struct Outgoing {
  Bytes worker;          // for the worker; of the bytes given, or valid until the next step
  std::string answers;   // for the client; no reply is due before them
  bool refused = false;  // close the connection once the bytes are sent
  // The client is in the middle of something: of a request, or of those that lead to a question.
  bool more_follows = false;
  std::span<const Detached> detached{};  // in the order they were asked about
};

class Session final : private RequestSink, private ReplySink {
 public:
  // `weights`: who may take data out of the stream; null: nobody.
  explicit Session(Link& link, Weights* weights = nullptr);
  ~Session() override;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Bytes from the client; returns what the worker (and the client) gets.
  Outgoing requests(Bytes bytes, Nanos now);
  // The client sends no more: what was still held back.
  Outgoing requests_end();
  // Bytes from the worker. All of them go to the client, before any answers of a later step.
  void replies(Bytes bytes, Nanos now);

  // Of the reply that comes next, as the worker's end timed it.
  void timed(Trip trip);
  // Of the latest reply that began, once: as seen here.
  std::optional<Trip> take_trip();

  // Once the worker has told a version that is in the table. For whoever feeds the replies.
  [[nodiscard]] std::optional<Version> version() const;

  // Replies the worker still owes, as far as understood.
  std::size_t awaited();

 private:
  struct Due {
    Awaited awaited;
    Nanos sent = 0;
    std::string key;           // of the answer to keep; empty: none
    std::uint64_t buffer = 0;  // whose address is asked
    bool from_pass = false;
  };

  const Protocol* protocol() override { return policy_.protocol(); }
  void opened(std::uint8_t id) override;
  bool announced(std::uint8_t id, const Rule* rule, std::uint64_t size) override;
  bool fields(const Request& request, View fields) override;
  bool node(const Request& request, std::uint64_t id) override;
  bool tensor(const Request& request, Tensor tensor) override;
  void closed(const Request& request) override;
  void passed(View bytes) override;
  bool lost(const char* reason) override;

  const Awaited* begun() override;
  void counted(std::uint64_t bytes) override;
  bool answered(View payload) override;
  void reply_lost(const char* reason) override;

  void set_time(Nanos now);
  void forget_sent();
  Outgoing outgoing();
  void hold();
  bool judged(const char* reason);
  void drop_held();
  bool refuse(const char* reason);
  void go_plain(const std::string& reason);
  bool detaches(const Request& request, View fields);
  bool may_recall(std::uint8_t id);
  bool answer(const Rule& rule);
  void answer_here(const Rule& rule, const std::string& payload);
  bool answer_hash(const Rule& rule);
  void recall(View fields, std::uint64_t bytes);
  bool learn_version(View payload);
  void attribute();

  Link& link_;
  Weights* const weights_;
  Policy policy_;
  Meter meter_;
  RequestDecoder request_decoder_{static_cast<RequestSink&>(*this)};
  ReplyDecoder reply_decoder_{static_cast<ReplySink&>(*this)};
  bool plain_ = false;
  bool refused_ = false;
  Nanos now_ = 0;

  // On their way to the worker. Of the present request the header and fixed fields (at most
  // kRequestHeaderBytes + kFieldsMax) are held back until they are complete, under guard the nodes
  // and tensors of a graph as well, each until it is: a worker can do nothing with less, they may
  // be refused or answered here, and what left the client in three pieces goes on in one.
  std::vector<std::uint8_t> pending_;
  std::size_t sent_ = 0;     // of them: let through by the step before
  std::size_t held_at_ = 0;  // where what is held back starts
  bool holding_ = false;
  std::string answers_;  // of this step
  std::vector<Detached> detached_;
  bool is_detached_ = false;  // the data of the present request

  bool answerable_ = false;  // the present request
  bool asked_ = true;        // the latest request is due a reply
  Due due_{};                // of the present request
  Nanos trip_begun_ = 0;     // the first graph, or else question, since the latest reply; 0: none
  std::optional<Trip> trip_;
  std::deque<Due> dues_;
};

}  // namespace dllm
