// One connection as it is understood: its requests are decoded, policy judges them, and what it
// lets through goes on; a meter watches. No sockets; the time is given.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "link.h"
#include "meter/meter.h"
#include "policy.h"
#include "prefetch.h"
#include "protocol/decoder.h"
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
  // Bytes from the worker; returns those for the client, which go there before any answers of a
  // later step. Of the bytes given, or valid until the next call.
  Bytes replies(Bytes bytes, Nanos now);

  // At the head's end of a pair: what the worker's end told of replies to come. False when that
  // makes no sense.
  bool keep_prefetched(const PrefetchedReply& prefetched);
  // Whether all the client asks may be known here.
  [[nodiscard]] bool may_stay_here(Nanos now);
  // The worker is not what the client was told it is: the connection cannot go on.
  [[nodiscard]] bool is_contradicted() const { return is_contradicted_; }

  // At the worker's end of a pair: from now on asks by itself what is wanted next, and holds
  // replies back until that is known.
  void enable_prefetch() { prefetches_ = true; }
  // How many of these bytes from the client `requests` may be given now: what follows a HELLO waits
  // for its reply, and for all that is asked behind it.
  std::size_t ready(View bytes);
  // Questions of its own, for the worker.
  Outgoing own_requests(Nanos now);
  // What they found out, to be told before the replies that were held back.
  std::vector<PrefetchedReply> take_prefetched() { return std::exchange(found_, {}); }
  // The worker says no more: what was held back.
  std::vector<std::uint8_t> take_held();

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
    bool is_own = false;      // nobody but us gets the reply
    std::string wanted;       // of our own: what the reply is known by
    std::string asked;        // fields of a question that others may follow
    std::optional<std::string> told;  // to the client, before the worker was asked
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
  void go_passthrough(const std::string& reason);
  bool detaches(const Request& request, View fields);
  bool may_recall(std::uint8_t id);
  bool answer(const Rule& rule);
  void say(const std::string& payload);
  void answer_here(const Rule& rule, const std::string& payload);
  bool answer_hash(const Rule& rule);
  void recall(View fields, std::uint64_t bytes);
  bool learn_version(View payload);
  bool answer_greeting(const Rule& rule);
  void greet_late();
  [[nodiscard]] std::size_t open_questions() const;
  void own_closed(Due due);
  bool own_answered(const Due& due, View payload);
  void follow(const Due& due, View payload);
  void lead_on(const Due& due, View payload);
  bool compare(const Due& due, View payload);
  void be_answerable(std::uint8_t id);
  [[nodiscard]] bool holds_replies() const { return own_open_ > 0 || !to_ask_.empty(); }
  void pass_reply(std::size_t count, bool is_own);
  Bytes released(Bytes bytes);
  void attribute();

  Link& link_;
  Weights* const weights_;
  Policy policy_;
  Meter meter_;
  RequestDecoder request_decoder_{static_cast<RequestSink&>(*this)};
  ReplyDecoder reply_decoder_{static_cast<ReplySink&>(*this)};
  bool passthrough_ = false;
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

  // At the head's end of a pair.
  std::string greeting_;      // what the reply to HELLO is known by
  std::string told_;          // that reply, when it was known
  std::size_t owed_ = 0;      // bytes of that HELLO; `pending_` begins with them
  std::vector<PrefetchedReply> early_;  // told before the version
  bool greets_late_ = false;  // that HELLO is with the worker
  std::size_t late_ = 0;      // questions with the worker whose replies the client has already
  bool is_contradicted_ = false;

  // At the worker's end.
  bool prefetches_ = false;
  bool is_hurried_ = false;  // behind HELLO comes what was not waited for
  std::vector<Prefetch> to_ask_;
  std::string asking_;        // what the reply to the question we ask is known by
  std::size_t own_open_ = 0;  // questions of our own without a reply
  std::vector<PrefetchedReply> found_;
  std::vector<std::uint8_t> held_replies_;  // behind our questions
  std::vector<std::uint8_t> released_;

  // Of the replies of this step so many were seen, and so many of them go on, up to here at once.
  Bytes replies_;
  std::size_t seen_ = 0;
  std::size_t kept_ = 0;
  std::size_t part_ = 0;  // the latest
  std::size_t held_from_ = 0;
  std::optional<Trip> trip_;
  std::deque<Due> dues_;
};

}  // namespace dllm
