// What becomes of the requests of one connection: let through, refused, or answered here.
#pragma once

#include <optional>
#include <string>

#include "guard/guard.h"
#include "reply_cache.h"

namespace dllm {

class Policy {
 public:
  // `replies` are those of the worker, for all its connections.
  Policy(bool guarding, bool answering, ReplyCache& replies)
      : guarding_(guarding), answering_(answering), replies_(replies) {}

  // Null until the worker has told a version that is in the table.
  [[nodiscard]] const Protocol* protocol() const { return protocol_ ? &*protocol_ : nullptr; }
  [[nodiscard]] bool guards() const { return guarding_; }

  // Whether a request of this kind may be answered here, once it is complete.
  [[nodiscard]] bool may_answer(std::uint8_t id) const;
  // What its answer depends on; empty for a kind that is not answered here.
  [[nodiscard]] std::string key(const Rule& rule, View fields) const;
  // None when the worker must be asked.
  [[nodiscard]] std::optional<std::string> answer(const Rule& rule, const std::string& key) const;
  // The relay beside the worker told this before anybody asked.
  void keep_prefetched(const PrefetchedReply& prefetched, Nanos now);
  // Likewise, the greeting it came with; HELLO is answered here from now on.
  void begin_start(const std::string& greeting, View payload, Nanos now);
  // A request is on its way to the worker: a graph says that llama-server has started.
  void crosses(std::uint8_t id);
  // What the worker is told now was told before otherwise.
  [[nodiscard]] bool contradicts(const PrefetchedReply& prefetched) const;
  // Whether what was told for a start may be told again.
  [[nodiscard]] bool is_starting(Nanos now) const;

  // Why a request must not reach the worker, or null. `open_questions`: without their replies.
  // `rule` is null for a command that this version does not have.
  [[nodiscard]] const char* refuses_header(const Rule* rule, std::uint64_t size,
                                           std::size_t open_questions) const;
  [[nodiscard]] const char* refuses_fields(const Request& request, View fields,
                                           std::size_t open_questions);
  [[nodiscard]] const char* refuses_node(std::uint64_t id);
  [[nodiscard]] const char* refuses_tensor(Tensor tensor);

  // The client said HELLO.
  void greeted() { greeted_ = true; }
  // It did, and the version is not known yet.
  [[nodiscard]] bool awaits_version() const { return greeted_ && !protocol_; }
  // The fixed fields of a request were let through.
  void passed(const Request& request, View fields);
  // The worker told its version; whether it is in the table. `changed`: it was another before.
  bool learn(Version version, bool changed);
  // Whether ops are judged too.
  [[nodiscard]] bool guards_ops(Version version) const;
  // The worker replied to a request of this kind, with this key, or for the address of `buffer`.
  void replied(std::uint8_t id, std::uint64_t buffer, const std::string& key, View payload);

 private:
  void end_start();

  const bool guarding_;
  const bool answering_;
  ReplyCache& replies_;
  ReplyCache own_replies_;  // of this connection: addresses of buffers, and memory they leave
  bool allocates_ = false;  // it is the one that loads
  bool computes_ = false;
  Guard guard_;
  std::optional<Protocol> protocol_;
  bool greeted_ = false;
};

}  // namespace dllm
