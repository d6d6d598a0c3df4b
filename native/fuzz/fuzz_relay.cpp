// A client of any kind before a worker that is there to be harmed: the worker lives, every question
// gets its own reply in its own turn, nothing passes unread, and how the stream is cut into pieces
// and when replies come changes nothing the worker sees.
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "input.h"
#include "link/session.h"
#include "model_worker.h"

namespace {

using dllm::Link;
using dllm::Session;
using fuzz::demand;

dllm::Bytes bytes_of(std::string& text) {
  return {reinterpret_cast<std::uint8_t*>(text.data()), text.size()};
}

// What a worker is, as the input says.
struct Kind {
  dllm::Version version;
  std::uint32_t devices;
  auto operator<=>(const Kind&) const = default;
};

// One connection, relayed in memory as `Relay` does over sockets.
class Connection {
 public:
  Connection(Kind kind, bool answers)
      : link_("fuzz", answers, true), session_(link_), worker_(kind.version, kind.devices) {}

  void ask(std::string bytes) { ask(bytes_of(bytes)); }
  void ask(dllm::Bytes bytes) {
    const dllm::Outgoing out = session_.requests(bytes, ++now_);
    to_client_ += out.answers;
    pass(std::string(text_of(out.worker)));
  }
  void end() {
    const dllm::Outgoing out = session_.requests_end();
    pass(std::string(text_of(out.worker)));
  }
  // What the worker replied so far, in pieces of this size, or larger ones when there is much.
  void reply(std::size_t piece) {
    piece = std::max(piece, replies_.size() / kPieces);
    for (std::size_t at = 0; at < replies_.size(); at += piece) {
      std::string part = replies_.substr(at, piece);
      session_.replies(bytes_of(part), ++now_);
      to_client_ += part;
    }
    replies_.clear();
  }
  [[nodiscard]] const std::string& to_worker() const { return to_worker_; }
  [[nodiscard]] const std::string& to_client() const { return to_client_; }
  [[nodiscard]] const dllm::Tally& tally() const { return link_.tally; }
  [[nodiscard]] bool was_cut_short() const {
    return link_.tally.refused > 0 || worker_.closed();
  }

 private:
  void pass(const std::string& bytes) {
    to_worker_ += bytes;
    replies_ += worker_.feed(bytes);
  }

  Link link_;
  Session session_;
  fuzz::ModelWorker worker_;
  dllm::Nanos now_ = 0;
  std::string replies_, to_worker_, to_client_;

  static constexpr std::size_t kPieces = 32;
};

// All that a link knows.
void copy(const Link& from, Link& to) {
  to.tally = from.tally;
  to.passes = from.passes;
  to.bulk = from.bulk;
  to.reply_cache = from.reply_cache;
  to.placement = from.placement;
  to.unanswered_since = from.unanswered_since;
  to.waiting_since = from.waiting_since;
  to.revision = from.revision;
  to.told = from.told;
}

// Likewise through a pair of relays, the way between them left out: the worker's end asks ahead,
// and the greeting is known from a connection before.
class PairedConnection {
 public:
  explicit PairedConnection(Kind kind) : worker_(kind.version, kind.devices) {
    begin_again(kind);
    ends_.emplace(near_link_, far_link_);
  }
  void ask(const std::string& bytes) { to_client_ += ask(*ends_, worker_, bytes); }
  [[nodiscard]] const std::string& to_client() const { return to_client_; }
  [[nodiscard]] const dllm::Tally& tally() const { return near_link_.tally; }
  [[nodiscard]] bool was_cut_short() const {
    return near_link_.tally.refused + far_link_.tally.refused > 0 || worker_.closed();
  }

 private:
  PairedConnection() : worker_({}) {}

  struct Ends {
    Ends(Link& near_link, Link& far_link) : near(near_link), far(far_link) {
      far.enable_prefetch();
    }
    Session near, far;
  };

  void begin(Kind kind) {
    Ends before(near_link_, far_link_);
    fuzz::ModelWorker worker(kind.version, kind.devices);
    ask(before, worker, transcript::hello(kind.version, true));
  }

  // For two links that nobody used before it leads to the same every time.
  void begin_again(Kind kind) {
    static std::map<Kind, std::unique_ptr<PairedConnection>> begun;
    std::unique_ptr<PairedConnection>& first = begun[kind];
    if (!first) {
      first.reset(new PairedConnection);
      first->begin(kind);
    }
    copy(first->near_link_, near_link_);
    copy(first->far_link_, far_link_);
    now_ = first->now_;
  }

  std::string ask(Ends& ends, fuzz::ModelWorker& worker, std::string bytes) {
    const dllm::Outgoing out = ends.near.requests(bytes_of(bytes), ++now_);
    std::string up(text_of(out.worker)), got = out.answers;
    while (!up.empty() && !worker.closed() && !ends.near.is_contradicted()) {
      const std::size_t count = ends.far.ready(bytes_of(up));
      std::string part = up.substr(0, count);
      up.erase(0, count);
      const dllm::Outgoing asked = ends.far.requests(bytes_of(part), ++now_);
      const std::string requests(text_of(asked.worker));
      ends.far.ready(bytes_of(up));
      std::string told = asked.answers;
      const dllm::Bytes all = ends.near.replies(bytes_of(told), ++now_);
      got += text_of(all);
      got += answer(ends, worker, requests);
      if (asked.refused) break;
    }
    demand(!ends.near.is_contradicted() && !ends.far.is_contradicted());
    return got;
  }

  // What the worker says reaches the client, with what it says to questions of our own.
  std::string answer(Ends& ends, fuzz::ModelWorker& worker, std::string requests) {
    std::string got;
    while (!requests.empty()) {
      std::string replies = worker.feed(requests);
      const dllm::Bytes held = ends.far.replies(bytes_of(replies), ++now_);
      std::string down(text_of(held));
      const dllm::Outgoing own = ends.far.own_requests(++now_);
      demand(!own.refused);
      requests = text_of(own.worker);
      for (const dllm::PrefetchedReply& prefetched : ends.far.take_prefetched())
        demand(ends.near.keep_prefetched(prefetched));
      const dllm::Bytes all = ends.near.replies(bytes_of(down), ++now_);
      got += text_of(all);
    }
    return got;
  }

  Link near_link_{"fuzz", true, true}, far_link_{"fuzz", false, true};
  fuzz::ModelWorker worker_;
  std::optional<Ends> ends_;
  dllm::Nanos now_ = 0;
  std::string to_client_;
};

// The sizes of the replies a client waits for, as it asked.
std::vector<std::uint64_t> expected(dllm::Version version, const std::string& asked) {
  const dllm::Protocol protocol(version);
  std::vector<std::uint64_t> sizes;
  for (std::size_t at = 0; at + dllm::kRequestHeaderBytes <= asked.size();) {
    const dllm::Rule* rule = protocol.rule(static_cast<std::uint8_t>(asked[at]));
    const auto size = fuzz::take<std::uint64_t>(asked, at + 1);
    at += dllm::kRequestHeaderBytes;
    if (!rule || size > asked.size() - at || size < rule->fields) break;
    const auto* fields = reinterpret_cast<const std::uint8_t*>(asked.data() + at);
    const bool greets = rule->reply_kind == dllm::Reply::kHello;
    const std::uint64_t hello_bytes = version.major < 4 ? 3 : 28;
    if (rule->reply_kind != dllm::Reply::kNone) {
      sizes.push_back(greets ? hello_bytes : dllm::reply_bytes(*rule, {fields, rule->fields}));
    }
    at += size;
  }
  return sizes;
}

// Whole replies of these sizes, in this order, and no more than there are; how many.
std::size_t count_replies(const std::string& got, const std::vector<std::uint64_t>& sizes) {
  std::size_t at = 0, count = 0;
  while (at < got.size()) {
    demand(count < sizes.size() && got.size() - at >= dllm::kReplyHeaderBytes);
    demand(fuzz::take<std::uint64_t>(got, at) == sizes[count]);
    at += dllm::kReplyHeaderBytes + sizes[count++];
    demand(at <= got.size());
  }
  return count;
}

template <typename Any>
void check(dllm::Version version, const Any& connection, const std::string& asked) {
  demand(!connection.tally().passthrough);
  const std::vector<std::uint64_t> sizes = expected(version, asked);
  const std::size_t replies = count_replies(connection.to_client(), sizes);
  demand(connection.was_cut_short() || replies == sizes.size());
  // Capabilities of RDMA reach nobody.
  const std::string& got = connection.to_client();
  for (std::size_t at = 12; version.major >= 4 && at < std::min<std::size_t>(got.size(), 36);
       ++at) {
    demand(got[at] == '\0');
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const dllm::Version version = transcript::kVersions[data[0] % transcript::kVersions.size()];
  const auto pieces = fuzz::parse({data, size});
  std::string asked = transcript::hello(version, true);
  const bool answers = data[0] & 0x80;
  // Many, now and then: each is asked about.
  const Kind kind{version, data[0] & 0x40 ? 1000U : 2U};
  Connection patient(kind, answers), hasty(kind, false);
  PairedConnection paired(kind);
  paired.ask(asked);
  transcript::Random random(static_cast<std::uint32_t>(size));
  for (Connection* each : {&patient, &hasty}) {
    each->ask(asked);
    each->reply(3);
  }
  for (const fuzz::Piece& piece : pieces) {
    if (!piece.up || piece.is_greeting) continue;
    asked += piece.bytes;
    patient.ask(piece.bytes);
    patient.reply(1 + random() % 64);
    paired.ask(piece.bytes);
    std::string bytes = piece.bytes;
    for (const dllm::Bytes part : fuzz::cut(random, bytes)) hasty.ask(part);
    if (random() % 2) hasty.reply(1 << 20);
  }
  for (Connection* each : {&patient, &hasty}) {
    each->end();
    each->reply(1 << 20);
    check(version, *each, asked);
  }
  check(version, paired, asked);
  const bool both_whole = !paired.was_cut_short() && !patient.was_cut_short();
  demand(!both_whole || paired.to_client() == patient.to_client());
  // What the relay answers itself depends on when the worker's replies came.
  const bool cut_short = patient.was_cut_short() || hasty.was_cut_short();
  demand(answers || cut_short || patient.to_worker() == hasty.to_worker());
  return 0;
}
