// Watches one connection for the counters, passes and placement of its link. Decides nothing and
// changes nothing of the stream. All with the link's mutex held.
#pragma once

#include <set>
#include <string>

#include "link/link.h"
#include "protocol/decoder.h"

namespace dllm {

class Meter {
 public:
  static constexpr std::size_t kStateBuffersMax = 1024;

  // A connection begins.
  explicit Meter(Link& link);
  // It has ended.
  void ended();

  // The time of what is told from here on.
  void set_time(Nanos now) { now_ = now; }

  // The first byte of a request was seen.
  void opened();
  // Its header is known.
  void named(std::uint8_t id) { id_ = id; }
  // It goes to the worker.
  void crosses(const Rule& rule);
  // It was answered without the worker.
  void answered_here(const Rule& rule, View payload);
  // Its fixed fields. Whether the reply, of so many bytes, will be what a pass computed.
  bool fields(const Request& request, View fields, std::uint64_t reply);
  // Its last byte was seen; `replies`: requests that wait for their replies, with this one if it
  // asks for one.
  void closed(const Rule& rule, std::size_t replies);
  // The client waits, or no longer does, for a worker heard or asked just now.
  void waits(bool for_reply);

  // Bytes for the worker; `crosses`: by the way whose rate is measured.
  void count_up(std::uint64_t bytes, bool crosses = true);
  // Of them some go nowhere.
  void drop_up(std::uint64_t bytes);
  // Bytes of a request that was answered here and goes to the worker after all.
  void count_late(std::uint8_t id, std::uint64_t bytes);
  // What was counted up since the last time belongs to the present request.
  void book();

  void refused(const char* reason);
  // "SET_TENSOR: reason", or the reason alone when no request is known.
  [[nodiscard]] std::string named_reason(const char* reason) const;
  [[nodiscard]] bool knows_request() const { return id_ != kCommands; }
  void went_passthrough(const std::string& reason);

  // Bytes from the worker.
  void count_down(std::uint64_t bytes);
  void reply_begun() { link_.passes.reply_begun(now_); }
  // Bytes of the reply to a request of this id.
  void count_reply(std::uint8_t id, std::uint64_t bytes);
  // A reply is complete; `more`: others are due.
  void replied(const Rule& rule, Nanos asked, bool from_pass, bool more, View payload);
  void learned(Version version, bool ops_guarded);
  // The connection ended before the reply to a request of this id.
  void left_unanswered(std::uint8_t id) { ++link_.tally.commands[id].errors; }

 private:
  void note_input(const Request& request, View fields);
  bool note_fetch(Tensor tensor, std::uint64_t reply);

  Link& link_;
  Nanos now_ = 0;
  std::uint8_t id_ = kCommands;  // of the present request
  Nanos opened_time_ = 0;
  std::uint64_t unattributed_ = 0;  // bytes of the present request not yet counted to its command
  // Buffers that were cleared: those of the KV cache and other state, never those of graphs.
  std::set<std::uint64_t> state_buffers_;
};

}  // namespace dllm
