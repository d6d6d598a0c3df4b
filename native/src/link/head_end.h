// The head's end of a link: one loop owns the link and the client it serves.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>

#include "link.h"
#include "local_socket.h"
#include "reconnect.h"
#include "request_sender.h"
#include "weight_report.h"
#include "weights/chunk_reader.h"
#include "worker_transport.h"

namespace dllm::link {

class HeadEnd final : public WorkerTransport, private ReconnectorOwner {
 public:
  // How long a client waits for the link to come up, without the lab's delay.
  static constexpr Nanos kLinkMax = 8 * kNanosPerSecond;
  // A client that says nothing, or takes nothing, for so long after its worker has finished is
  // closed.
  static constexpr Nanos kSilence = 2 * kNanosPerSecond;
  // A machine that is not heard for so long is told about; it is given up much later.
  static constexpr Nanos kUnheardMin = 1500 * kNanosPerMilli;

  // Throws where what crosses would not be protected. `home`: models that llama-server may load.
  HeadEnd(Link& link, const LinkAddress& place, const std::string& own_name,
          const weights::ResidentWeights& home);
  ~HeadEnd() override;

  // The loop, in a thread of its own.
  void start();
  // Returns when it has ended, or soon: the link's last words have been said.
  void await_end();
  Outcome carry(UniqueFd client) override;
  void stop() override;

 private:
  struct Served;

  void greeted(const Hello& other) override;
  void welcomed() override {}
  void opened(std::uint32_t) override {}
  void arrived(std::uint32_t session, Bytes data) override;
  void finished(std::uint32_t session) override;
  void was_reset(std::uint32_t session, const std::string& reason) override;
  void timed(std::uint32_t session, Trip trip) override;
  void told(std::uint32_t session, Bytes message) override;
  void listed(Bytes message) override;
  void prefetched(std::uint32_t session, const std::vector<PrefetchedReply>& replies) override;
  void resumed(const std::string& news) override;
  void lost(const std::string& reason) override;

  void run();
  void wait(Nanos now);
  void take_client(Nanos now);
  void begin(Nanos now);
  void open(LinkEnd& end);
  void send_up(const Outgoing& out, LiveLink& link);
  void serve(Nanos now);
  void read_client(LiveLink& link, Nanos now);
  void look();
  void take_looked();
  void push_up(LiveLink& link);
  void give_up(const std::string& reason);
  void close_client(const std::string& reason);
  void tell_version();
  void judge_end(Nanos now);
  void wait_for_link(Nanos now);
  void over(Outcome outcome);
  void note_call(std::optional<Nanos> since);
  void publish(Nanos now);
  bool is_stopping();

  Link& link_;
  Reconnector connections_;
  const Pipe wake_ = make_pipe();
  HeadWeights weights_;
  WeightReport report_;
  Shares told_shares_{};  // what came down for commands, beside their replies
  std::unique_ptr<Served> served_;
  weights::ChunkReader reader_;
  std::uint64_t taken_ = 0;  // clients, so far
  std::vector<std::uint8_t> block_;
  Nanos published_ = 0;
  bool unheard_ = false;  // told

  std::mutex mutex_;  // over everything below
  std::condition_variable changed_;
  UniqueFd asked_;  // a client that waits for the loop to take it
  std::optional<Outcome> outcome_;
  bool stopping_ = false;
  bool ended_ = true;
};

}  // namespace dllm::link
