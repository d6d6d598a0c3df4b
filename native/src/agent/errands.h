// Work that takes a while, each in a child process of its own, so that no request waits for another
// and a fork happens only when one is asked for.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "posix.h"

namespace dllm::agent {

// Descriptors a child has beyond the standard ones, which lead nowhere.
inline constexpr int kAnswerFd = 3;
inline constexpr int kLifelineFd = 4;  // reads as ended once the parent is gone

class Errands {
 public:
  Errands();

  // Runs `work`, which returns a whole answer line, in a child. Refuses when too many run.
  void start(const std::string& id, const std::function<std::string()>& work);

  // What to wait for.
  void add_to(std::vector<pollfd>& waited) const;

  // Reads where something came; the answers that are complete.
  std::vector<std::string> take(const std::vector<pollfd>& waited);

 private:
  struct Errand {
    std::string id;
    pid_t pid = -1;
    UniqueFd reader;
    std::string text;
  };

  static std::string finish(Errand& errand);

  Pipe lifeline_;
  std::vector<Errand> errands_;
};

}  // namespace dllm::agent
