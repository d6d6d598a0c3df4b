// Loopback ports: free ones, and whether one is taken.
#pragma once

#include <deque>

namespace dllm::agent {

// Ports handed out lately: whoever asked may not listen there yet.
class FreePorts {
 public:
  // A port nobody listens on and nobody was given lately. Throws std::system_error.
  int take();

 private:
  std::deque<int> recent_;
};

// Whether somebody listens on a port that is reachable at 127.0.0.1.
bool is_port_used(int port);

}  // namespace dllm::agent
