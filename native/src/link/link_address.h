// Where two relays meet, and what protects what they say.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "endpoint.h"
#include "hello.h"
#include "key.h"
#include "transport_security.h"

namespace dllm::link {

struct LinkAddress {
  Endpoint endpoint;
  bool dials = false;  // otherwise this end listens there
  std::optional<Key> key;
  std::optional<Id> id{};  // as whom; otherwise as nobody who was ever there
  // An end that dials tries these, in order, where it cannot meet the other at `endpoint`; one that
  // listens does so here too, where it can.
  std::vector<Endpoint> others{};

  [[nodiscard]] bool is_given() const { return !endpoint.host.empty() || !endpoint.path.empty(); }
  void add(Endpoint one) {
    is_given() ? others.push_back(std::move(one)) : void(endpoint = std::move(one));
  }
};

// Throws std::runtime_error where what crosses at any of them would not be protected, or cannot be.
void judge(const LinkAddress& place);
std::unique_ptr<TransportSecurity> make_security(const LinkAddress& place);

}  // namespace dllm::link
