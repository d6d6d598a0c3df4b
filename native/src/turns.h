// A stock worker serves one connection at a time and lets the next hang without a word. Here they
// wait their turn, first come first served, by name.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>

#include "link.h"

namespace dllm {

class Turns {
 public:
  explicit Turns(Link& link) : link_(link) {}

  // True when it is this client's turn; false when it went away or everything ends.
  bool wait(int client, const std::string& name);
  // The client whose turn it was is done.
  void pass_on();
  // Nobody gets a turn any more.
  void end();

 private:
  void announce(const std::string& name);
  void withdraw(const std::string& name);

  Link& link_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<int> queue_;  // descriptors; the first one's turn it is
  bool ended_ = false;
};

}  // namespace dllm
