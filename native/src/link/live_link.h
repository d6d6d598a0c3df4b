// A link over its connection, or over one after the other: what both ends do with one in their
// loops.
#pragma once

#include <deque>

#include "link_connection.h"
#include "link_end.h"
#include "meter/rates.h"

namespace dllm::link {

// Which commands the bytes that have left belong to. What a link has to send is sealed, and waits,
// before it leaves: a share counts when the last byte that it went into has left.
class Departures {
 public:
  // For those who have something to send: what is given to the link, and not sealed yet.
  Shares& given() { return given_; }
  // All of it is sealed now, in bytes up to here, counted from the link's first.
  void sealed(std::uint64_t end) {
    if (given_ == Shares{}) return;
    waiting_.emplace_back(end, given_);
    given_ = {};
  }
  // So many bytes have left in all.
  void left(std::uint64_t bytes) {
    for (; !waiting_.empty() && waiting_.front().first <= bytes; waiting_.pop_front()) {
      gone_ += waiting_.front().second;
    }
  }
  // What is sealed and has not left is to be sealed anew.
  void return_waiting() {
    for (const auto& [end, shares] : waiting_) given_ += shares;
    waiting_.clear();
  }
  [[nodiscard]] const Shares& gone() const { return gone_; }

 private:
  Shares given_{};
  std::deque<std::pair<std::uint64_t, Shares>> waiting_;
  Shares gone_{};
};

class LiveLink {
 public:
  // An end that has not said who it is by then is none.
  static constexpr Nanos kGreetingMax = 10 * kNanosPerSecond;
  // Beyond, sessions wait, so that pings do not.
  static constexpr std::size_t kBacklogMax = 256 << 10;
  // Likewise of what the other end has not told to have received.
  static constexpr std::size_t kUnackedMax = 4 << 20;

  LiveLink(UniqueFd fd, std::unique_ptr<TransportSecurity> security, const Hello& own,
           LinkOwner& owner, const Lab& lab, Nanos patience);

  [[nodiscard]] LinkEnd& end() { return end_; }
  // -1 while it has no connection.
  [[nodiscard]] int fd() const { return connection_ ? connection_->fd() : -1; }
  [[nodiscard]] short events();
  // Nothing is left to be sent over this connection.
  [[nodiscard]] bool is_said() const { return untaken() == 0; }
  // Over all its connections.
  [[nodiscard]] std::uint64_t sent_bytes() const;
  [[nodiscard]] std::uint64_t received_bytes() const;

  // Why it has no connection, and waits for another; empty: it has one.
  [[nodiscard]] const std::string& broken() const { return broken_; }
  // Goes on over the connection of another, which is of no use then: its greeting was for this.
  void resume(LiveLink& other);
  // When `take_in` is due though nothing came.
  [[nodiscard]] Nanos due(Nanos now);

  // Takes in what came, tells the owner, and judges silence. Throws LinkBroken, but not for a broken
  // connection where the link outlives it.
  void take_in(Nanos now);
  // Sends what the end has to say. Throws likewise.
  void give_out(Nanos now);
  // Whoever gives the end something of a command to send adds it here.
  Shares& given() { return departures_.given(); }
  // What has left of commands; all else that has is the link's own.
  [[nodiscard]] const Shares& sent() const { return departures_.gone(); }
  // Bytes that may be sent in a session now.
  [[nodiscard]] std::size_t room(std::uint32_t session) const;
  // Whether more that needs no credit may be sent without pings standing behind it.
  [[nodiscard]] bool has_room() const {
    return untaken() < kBacklogMax && end_.unacked() < kUnackedMax;
  }

 private:
  [[nodiscard]] std::size_t untaken() const;
  void detach(const std::string& reason);
  void judge(Nanos now);

  std::unique_ptr<LinkConnection> connection_;
  std::string broken_;
  bool resumed_ = false;  // and what came with the connection is not taken in yet
  std::uint64_t sent_before_ = 0;
  std::uint64_t received_before_ = 0;
  LinkEnd end_;
  Departures departures_;
  const Lab& lab_;
  const Nanos patience_;
  const Nanos begun_;
  ByteQueue opened_;
};

}  // namespace dllm::link
