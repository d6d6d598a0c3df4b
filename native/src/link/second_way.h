// Whether the other end of a silent link answers at another place: then it is the link's way that
// is silent, not the machine.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <vector>

#include "link_address.h"
#include "wire.h"

namespace dllm::link {

class SecondWay {
 public:
  // Silence of which so much is borne without asking.
  static constexpr Nanos kBorne = 5 * kNanosPerSecond;
  static constexpr Nanos kAskEvery = kNanosPerSecond;
  static constexpr Nanos kAnswerMax = 5 * kNanosPerSecond;

  // Asks at the last of these places. `patience`: after which silence alone is enough.
  SecondWay(const LinkAddress& place, const Lab& lab, Nanos patience);

  // Asks by and by while the silence of a link lasts. Whether to give that up: the other end has
  // answered, and does so still after the same silence again. What comes back late behind an outage
  // of both ways, or of the machine, has that long for it.
  bool condemns(Nanos silence, Nanos now);
  // Forgets what was asked and answered.
  void calm();
  void add_waits(std::vector<pollfd>& waits) const;

 private:
  bool is_answered(Nanos now);
  bool is_connected();
  void hang_up();

  const LinkAddress& place_;
  const Lab& lab_;
  const Nanos borne_;
  Nanos asked_at_ = 0;
  UniqueFd dialing_;
  std::unique_ptr<Wire> wire_;
  Queue heard_;
  std::optional<Nanos> answered_at_;  // the silence then
};

}  // namespace dllm::link
