// A connection that ends right behind any frame, in either direction: where it is but cut, nobody
// notices; where the end behind it is gone, nobody hangs or is told anything wrong, and the next
// link works.
#include <optional>

#include "weights_loads.h"

using namespace home_loads;
using namespace transcript;

namespace {

constexpr Version k8{8, 0, 0};
constexpr std::uint64_t kFirstBytes = 1 << 20, kSecondBytes = 1 << 16;

// What a worker says of a tensor depends on all it was given before.
class Memory {
 public:
  void take(const std::string& request) {
    for (const char byte : request) state_ = (state_ ^ static_cast<std::uint8_t>(byte)) * 31 + 7;
  }
  [[nodiscard]] std::string told(std::size_t count) const {
    std::string bytes(count, '\0');
    for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(state_ >> (i % 32));
    return bytes;
  }

 private:
  std::uint64_t state_ = 1;
};

// An rpc-server, one connection after the other. Whoever asks ahead changes nothing in it.
class Server {
 public:
  explicit Server(int listener) : thread_([this, listener] { run(listener); }) {}
  ~Server() {
    ending_ = true;
    thread_.join();
  }

 private:
  void run(int listener) {
    while (!ending_) {
      if (dllm::wait_readable(listener, 20)) serve(dllm::accept_client(listener));
    }
  }

  static void serve(const UniqueFd& client) {
    Memory memory;
    std::uint64_t buffers = 0;
    for (std::string header; (header = read_text(client.get(), 9)).size() == 9;) {
      std::uint64_t size = 0;
      std::memcpy(&size, &header[1], sizeof size);
      const std::string payload = read_text(client.get(), size);
      if (payload.size() != size) return;
      const auto id = static_cast<std::uint8_t>(header[0]);
      const std::string told = answer(id, payload, header + payload, memory, buffers);
      if (!told.empty() && !write_text(client.get(), told)) return;
    }
  }

  static std::string answer(std::uint8_t id, const std::string& payload, const std::string& request,
                            Memory& memory, std::uint64_t& buffers) {
    std::string told;
    switch (id) {
      case dllm::kHello:
        return hello_reply(k8);
      case dllm::kAllocBuffer:
        put(told, ++buffers);
        return reply(told + payload.substr(4));
      case dllm::kBufferGetBase:
        put(told, kBase + ((buffers - 1) << 32));
        return reply(told);
      case dllm::kGetTensor:
        return reply(memory.told(64));
      case dllm::kGetAllocSize:
      case dllm::kDeviceCount:
      case dllm::kGetAlignment:
      case dllm::kGetMaxSize:
      case dllm::kGetDeviceMemory:
        return reply(std::string(dllm::Protocol(k8).rule(id)->reply, '\1'));
      default:
        if (id != dllm::kFreeBuffer) memory.take(request);
        return "";
    }
  }

  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

// Carries a link frame by frame, and ends it behind one of them, once.
class Cutter {
 public:
  Cutter(const dllm::Endpoint& here, dllm::Endpoint there, bool up, int frames)
      : up_(up), left_(frames), listener_(dllm::listen_unix(here.path)), there_(std::move(there)) {
    thread_ = std::thread([this] { run(); });
  }
  ~Cutter() {
    ending_ = true;
    thread_.join();
  }
  [[nodiscard]] bool has_cut() const { return left_ < 0; }

 private:
  struct Way {
    int from, to;
    bool up;
    bool greeted = false;
    std::string waiting;
  };
  static constexpr std::size_t kSizeAt = 12;

  void run() {
    while (!ending_) {
      if (!dllm::wait_readable(listener_.get(), 5)) continue;
      const UniqueFd near = dllm::accept_client(listener_.get());
      try {
        const UniqueFd far = dllm::connect_to(there_);
        carry(near.get(), far.get());
      } catch (const std::exception&) {
        // Nobody listens there.
      }
    }
  }

  void carry(int near, int far) {
    Way ways[] = {{near, far, true, false, {}}, {far, near, false, false, {}}};
    while (!ending_) {
      pollfd waits[] = {{near, POLLIN, 0}, {far, POLLIN, 0}};
      dllm::wait_until(waits, 5 * dllm::kNanosPerMilli);
      for (std::size_t i = 0; i < 2; ++i) {
        if (waits[i].revents && !pass(ways[i])) return;
      }
    }
  }

  // False: the link ends here.
  bool pass(Way& way) {
    std::uint8_t block[1 << 16];
    const ssize_t count = dllm::receive(way.from, block);
    if (count <= 0) return false;
    way.waiting.append(reinterpret_cast<const char*>(block), static_cast<std::size_t>(count));
    for (std::size_t size = 0; (size = first(way)) > 0;) {
      const bool is_ping = way.greeted && (way.waiting[0] == 1 || way.waiting[0] == 2);
      if (!write_text(way.to, way.waiting.substr(0, size))) return false;
      way.waiting.erase(0, size);
      way.greeted = true;
      // When pings come is not the same every time.
      if (way.up == up_ && !is_ping && left_ >= 0 && left_-- == 0) return false;
    }
    return true;
  }

  // How long what comes next is; 0: it is not all here.
  static std::size_t first(const Way& way) {
    std::uint32_t number = 0;
    const std::size_t at = way.greeted ? 0 : kSizeAt;
    if (way.waiting.size() < at + sizeof number) return 0;
    std::memcpy(&number, &way.waiting[at], sizeof number);
    const std::size_t size = way.greeted ? dllm::link::kFrameHeaderBytes + (number >> 8) : number;
    return size <= way.waiting.size() ? size : 0;
  }

  const bool up_;
  std::atomic<int> left_;  // frames until the cut
  const UniqueFd listener_;
  const dllm::Endpoint there_;
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

std::string some_bytes(std::size_t count, char first) {
  std::string bytes(count, first);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(bytes[i] + i % 7);
  return bytes;
}

// One is at home there, one is another there, one is not there.
const Made kHomeWeight = weight(1, some_bytes(3000, 'a'));
const Made kOtherWeight = weight(2, some_bytes(5000, 'b'));
const Made kSentWeight = weight(3, some_bytes(700, 'c'));

std::vector<Made> models_there() {
  return {kHomeWeight, weight(2, some_bytes(5000, 'x'))};
}

std::string buffer_question(std::uint64_t size) {
  std::string fields;
  put<std::uint32_t>(fields, 0);
  put(fields, size);
  return request(dllm::kAllocBuffer, fields);
}

std::string handle_question(std::uint8_t id, std::uint64_t handle) {
  std::string fields;
  put(fields, handle);
  return request(id, fields);
}

// A load, a pass in full and two again, and what a client gets for each.
std::vector<Exchange> conversation() {
  std::vector<Exchange> all{{dllm::kHello, hello(k8), hello_reply(k8)}};
  const auto ask = [&](const std::string& asked, const std::string& told) {
    all.push_back({static_cast<std::uint8_t>(asked[0]), asked, reply(told)});
  };
  std::string sizes(dllm::kFieldsMax, '\0');
  ask(request(dllm::kGetAllocSize, sizes), std::string(8, '\1'));
  std::uint64_t handle = 0;
  for (const std::uint64_t size : {kFirstBytes, kSecondBytes}) {
    std::string given, base;
    put(given, ++handle);
    put(given, size);
    put(base, kBase + ((handle - 1) << 32));
    ask(buffer_question(size), given);
    ask(handle_question(dllm::kBufferGetBase, handle), base);
  }
  Memory memory;
  const auto tell = [&](const std::string& said) {
    all.push_back({static_cast<std::uint8_t>(said[0]), said, ""});
    memory.take(said);
  };
  const auto fetch = [&] { ask(get_tensor(row_of(64), 0, 64), memory.told(64)); };
  for (const Made& made : {kHomeWeight, kOtherWeight, kSentWeight}) tell(set_weight(made));
  for (int pass = 0; pass < 3; ++pass) {
    tell(set_tensor(k8, row_of(400), some_bytes(400, static_cast<char>('d' + pass))));
    tell(pass == 0 ? graph(k8, {tensor(row_of(64)), tensor(row_of(64))}) : recompute(k8));
    fetch();
  }
  all.push_back({dllm::kFreeBuffer, handle_question(dllm::kFreeBuffer, 1), ""});
  return all;
}

// Both ends, and what is around them.
struct Scene {
  Scene(bool up, int frames)
      : listener(dllm::listen_unix(dir / "server")),
        server(listener.get()),
        there(models_there(), false),
        cutter(path_in(dir, "between"), path_in(dir, "worker"), up, frames) {
    start_worker();
    start_head();
  }
  void start_worker() {
    worker.reset();
    worker.emplace(LinkAddress{path_in(dir, "worker"), false, {}}, path_in(dir, "server"),
                   there.home);
  }
  void start_head() {
    head.reset();
    // As the same, that is not turned away for itself.
    const LinkAddress place{path_in(dir, "between"), true, {}, dllm::link::Id{7}};
    head.emplace(place, "studio", dllm::kGoneAfter, no_models(), true);
  }

  // What went wrong; empty where all came, or the first of it and then nothing more.
  std::string talk(const std::vector<Exchange>& exchanges, bool& is_whole) {
    const UniqueFd client = head->connect();
    is_whole = false;
    for (const Exchange& each : exchanges) {
      if (!write_text(client.get(), each.request)) return "";
      const std::string got = read_text(client.get(), each.reply.size());
      if (got == "broken off") return "";
      if (!each.reply.starts_with(got)) return std::string("wrong: ") + dllm::command_name(each.id);
      if (got.size() < each.reply.size()) return "";
    }
    is_whole = true;
    return "";
  }

  // llama-server looks around, and loads.
  std::string start(bool& is_whole) {
    static const std::vector<Exchange> loading = conversation();
    std::string wrong = talk({loading[0]}, is_whole);
    finish();
    if (!wrong.empty() || !is_whole) return wrong;
    wrong = talk(loading, is_whole);
    finish();
    return wrong;
  }
  void finish() {
    if (head->outcome.get() == Outcome::kEnded) return;
    const std::lock_guard lock(head->link.mutex);
    head->link.reply_cache.forget();
  }

  check::TempDir dir;
  UniqueFd listener;
  Server server;
  Files there;
  Cutter cutter;
  std::optional<Worker> worker;
  std::optional<Head> head;
};

enum class Gone { kNobody, kWorker, kHead };

// Whether there were so many frames. What went wrong is added to `wrong`.
bool cut(bool up, int frames, Gone gone, std::string& wrong) {
  Scene scene(up, frames);
  bool is_whole = false;
  wrong += scene.start(is_whole);
  const bool has_cut = scene.cutter.has_cut();
  if (!is_whole && !has_cut) wrong += "broken off, and nobody cut it";
  if (!is_whole && gone == Gone::kNobody) wrong += "broken off, and both ends are there";
  if (gone == Gone::kWorker) scene.start_worker();
  if (gone == Gone::kHead) scene.start_head();
  // One that comes before the head has noticed, or while it is sent away, is cut off too.
  const auto is_served = [&] {
    wrong += scene.start(is_whole);
    return is_whole || !wrong.empty();
  };
  if (!until(is_served)) wrong += "the next one was not served";
  return has_cut;
}

// Behind every frame of one direction, several side by side: most of the time they wait to dial
// again. What went wrong.
std::string cut_everywhere(bool up, Gone gone) {
  static constexpr int kLanes = 8, kFramesMin = 8, kFramesMax = 200;
  std::atomic<int> next = 0, last = kFramesMax;
  const auto lane = [&] {
    std::string wrong;
    for (int frames = 0; wrong.empty() && (frames = next++) < last;) {
      if (!cut(up, frames, gone, wrong)) last = frames;
      if (!wrong.empty()) wrong += " behind frame " + std::to_string(frames) + "\n";
    }
    return wrong;
  };
  std::vector<std::future<std::string>> lanes;
  for (int i = 0; i < kLanes; ++i) lanes.push_back(std::async(std::launch::async, lane));
  std::string wrong;
  for (auto& each : lanes) wrong += each.get();
  const bool has_frames = last >= kFramesMin && last < kFramesMax;
  return has_frames ? wrong : wrong + std::to_string(last) + " frames";
}

void cut_both_ways(Gone gone) {
  auto up = std::async(std::launch::async, cut_everywhere, true, gone);
  const std::string down = cut_everywhere(false, gone), of_head = up.get();
  std::fputs((of_head + down).c_str(), stderr);
  CHECK(of_head.empty() && down.empty());
}

}  // namespace

TEST(a_link_may_be_cut_behind_any_frame) {
  cut_both_ways(Gone::kNobody);
}

TEST(a_worker_may_be_gone_behind_any_frame) {
  cut_both_ways(Gone::kWorker);
}

TEST(a_head_may_be_gone_behind_any_frame) {
  cut_both_ways(Gone::kHead);
}

int main() {
  ::signal(SIGPIPE, SIG_IGN);
  return check::run_tests();
}
