#include "link.h"

#include <algorithm>

namespace dllm {

Nanos pretended(const LabSettings& lab) {
  return static_cast<Nanos>(2 * (lab.latency_ms + 3 * lab.jitter_ms) * kNanosPerMilli);
}

void Tally::note_shares(const Shares& sent, const Shares& told) {
  std::uint64_t own_up = pair.wire_bytes_up, own_down = pair.wire_bytes_down;
  for (std::size_t id = 0; id < kCommands; ++id) {
    commands[id].wire_bytes_up = sent[id];
    commands[id].wire_bytes_down = commands[id].bytes_down + told[id];
    own_up -= commands[id].wire_bytes_up;
    own_down -= commands[id].wire_bytes_down;
  }
  pair.overhead_bytes_up = own_up;
  pair.overhead_bytes_down = own_down;
}

void Link::note_silence(Nanos now) {
  const Nanos patience = kSilenceMax + pretended(lab.get());
  const bool silent = unanswered_since && now - *unanswered_since >= patience;
  if (silent != tally.silence.empty()) return;
  tally.silence.clear();
  ++revision;
  if (!silent) return;
  const std::string seconds = std::to_string(kSilenceMax / kNanosPerSecond);
  tally.silence = name + " does not answer HELLO for " + seconds + " s: another client may hold it";
  told.push_back(log_line(Level::kWarning, tally.silence));
}

void Link::note_unanswered(Nanos now) {
  const Nanos sending = sending_since;
  const Nanos since = std::min(waiting_since.value_or(now), sending > 0 ? sending : now);
  const Nanos age = now - since - pretended(lab.get());
  const Nanos before = tally.unanswered;
  tally.unanswered = age >= kUnansweredMin ? age : 0;
  if (tally.unanswered != before) ++revision;
}

void Link::tell(const std::string& text, Level level) {
  if (told.size() < kToldMax) told.push_back(log_line(level, name + ": " + text));
}

}  // namespace dllm
