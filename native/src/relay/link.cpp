#include "link.h"

#include <algorithm>

namespace dllm {

Nanos pretended(const LabSettings& lab) {
  return static_cast<Nanos>(2 * (lab.latency_ms + 3 * lab.jitter_ms) * kNanosPerMilli);
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
  told.push_back(tally.silence);
}

void Link::note_unanswered(Nanos now) {
  const Nanos sending = sending_since;
  const Nanos since = std::min(waiting_since.value_or(now), sending > 0 ? sending : now);
  const Nanos age = now - since - pretended(lab.get());
  const Nanos before = tally.unanswered;
  tally.unanswered = age >= kUnansweredMin ? age : 0;
  if (tally.unanswered != before) ++revision;
}

void Link::tell(const std::string& text) {
  if (told.size() < kToldMax) told.push_back(name + ": " + text);
}

}  // namespace dllm
