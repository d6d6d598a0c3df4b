// Gives out what is known about the link, to any number of readers, and takes lab commands. One
// thread, apart from those that carry tokens: a slow reader loses lines, nobody waits for it.
#pragma once

#include <list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "link/kernel.h"
#include "link/link.h"
#include "posix.h"

namespace dllm {

// Copied from a link, so that it is locked for the copying only.
struct News {
  Tally tally;
  PassTotals totals;
  std::vector<Pass> passes;  // complete since the news before
};

std::string hello_line(const std::string& name, const char* version);
std::string snapshot_line(const Link& link, const News& news, Nanos now);
std::string passes_line(const std::string& name, std::span<const Pass> passes);

class Stats {
 public:
  static constexpr Nanos kTick = 250 * kNanosPerMilli;
  static constexpr std::size_t kReadersMax = 64;
  // What a reader has not read yet, at most: some seconds' worth.
  static constexpr std::size_t kUnreadMaxBytes = 256 << 10;
  static constexpr std::size_t kCommandMaxBytes = 512;
  static constexpr std::size_t kPassesPerLine = 128;

  // Listens on `path`; an empty path means no socket.
  Stats(Link& link, const std::string& path, const char* version);

  // Returns when `stop` becomes readable; the socket's file is gone then.
  void run(int stop);

 private:
  struct Reader {
    UniqueFd fd;
    std::string unread;
    std::string command;
    std::uint64_t dropped = 0;
    bool gone = false;
  };

  void keep_listening();
  bool attend(int stop);
  void tick();
  std::optional<News> gather(Nanos now);
  void estimate_link();
  void estimate_pair();
  void look_at(int worker, Nanos now);
  void write_log();
  void welcome();
  std::string placement();
  void give(Reader& reader, const std::string& line);
  void flush(Reader& reader);
  void listen_to(Reader& reader);
  void obey(Reader& reader, const std::string& line);
  void publish(const std::string& line);

  Link& link_;
  const std::string path_;
  const std::string hello_;
  UniqueFd listener_;
  std::list<Reader> readers_;
  std::string snapshot_;
  std::uint64_t revision_ = 0;
  LinkEstimate measured_;  // the kernel's word, without lab
  BestRate best_;          // of its words about the present connection
  std::uint64_t connection_ = 0;
  Heard heard_;
  Nanos next_tick_ = 0;
};

}  // namespace dllm
