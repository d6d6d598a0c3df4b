#include "link.h"

#include "posix.h"

namespace dllm {

void Link::note_silence(Nanos now) {
  const bool silent = unanswered_since && now - *unanswered_since >= kSilenceMax;
  if (silent != tally.silence.empty()) return;
  tally.silence.clear();
  ++revision;
  if (!silent) return;
  const std::string seconds = std::to_string(kSilenceMax / kNanosPerSecond);
  tally.silence = name + " does not answer HELLO for " + seconds + " s: another client may hold it";
  complain(tally.silence);
}

}  // namespace dllm
