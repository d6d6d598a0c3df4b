// The worker's end of a link: one loop owns the link and the connections to the rpc-server.
#pragma once

#include <list>
#include <optional>
#include <string>

#include "link.h"
#include "local_socket.h"
#include "reconnect.h"
#include "request_receiver.h"
#include "session.h"
#include "weight_report.h"
#include "weights/chunk_reader.h"

namespace dllm::link {

class WorkerEnd final : private ReconnectorOwner {
 public:
  // `link` counts what the rpc-server gets, and says whether it is guarded. `worker` is where the
  // rpc-server listens, `home` the models beside it. Listens for heads at once; throws
  // when it cannot.
  WorkerEnd(Link& link, const LinkAddress& place, Endpoint worker, const weights::ResidentWeights& home);

  // The loop; returns when `stop` becomes readable.
  void run(int stop);
  // Where it listens.
  [[nodiscard]] std::uint16_t port() const { return connections_.port(); }

 private:
  // A connection to the rpc-server, and what it is for. A stock one serves a single connection and
  // lets the next hang, so only the first of them is connected.
  struct Served {
    Served(std::uint32_t session_id, std::uint64_t count) : id(session_id), number(count) {}
    std::uint32_t id;  // of its session; 0: that is over, but replies are still due
    const std::uint64_t number;  // no other has it, of another link neither
    RequestReceiver receiver;
    std::unique_ptr<LocalSocket> worker;
    std::unique_ptr<Session> session;
    ByteQueue back;          // from the rpc-server, waiting for credit
    bool connected = false;  // not just on the way
    Nanos called = 0;
  };

  void greeted(const Hello& other) override;
  void welcomed() override {}
  void opened(std::uint32_t session) override;
  void arrived(std::uint32_t session, Bytes data) override;
  void finished(std::uint32_t session) override;
  void was_reset(std::uint32_t session, const std::string& reason) override;
  void timed(std::uint32_t, Trip) override {}
  void told(std::uint32_t session, Bytes message) override;
  void listed(Bytes) override {}
  void prefetched(std::uint32_t, const std::vector<PrefetchedReply>&) override {}
  void resumed(const std::string& news) override;
  void lost(const std::string& reason) override;

  bool wait(int stop, Nanos now);
  void read_to_end();
  Served* find(std::uint32_t session);
  // What is done for the first; false when it is over.
  bool serve(Served& served, Nanos now);
  bool serve_safely(Served& served, Nanos now);
  void call(Served& served, Nanos now);
  void await_connection(Served& served, Nanos now);
  void take_arriving(Served& served);
  void look(Served& served);
  void take_looked();
  void forward(Served& served, Bytes data);
  void refuse(Served& served, const std::string& reason);
  void end_input(Served& served);
  void read_worker(Served& served, Nanos now);
  void prefetch(Served& served, Nanos now);
  void push_back(Served& served);
  void abandon(Served& served);
  void abandon_all();
  void forget_uncalled();
  void fail(Served& served, const std::string& reason);
  void tell(const std::string& text, Level level = Level::kInfo);
  void publish(bool is_connected, Nanos now);

  Link& link_;
  const Endpoint worker_;
  Reconnector connections_;
  std::list<Served> served_;  // in the order they were opened
  std::uint64_t opened_ = 0;
  std::vector<std::uint8_t> block_;
  const weights::ResidentWeights& home_;
  weights::WeightCounts counts_;
  weights::ChunkReader reader_;
  WeightReport report_;
  Nanos published_ = 0;
};

}  // namespace dllm::link
