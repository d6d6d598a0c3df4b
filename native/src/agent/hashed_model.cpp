#include "hashed_model.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "posix.h"
#include "requests.h"
#include "weights/hash_cache.h"

namespace dllm::agent {

namespace {

using std::chrono::duration;
using std::chrono::steady_clock;

constexpr double kWorkLeast = 0.01;
constexpr double kWorkMost = 3600;
// What answers a token goes first.
constexpr int kNiceness = 10;
constexpr double kNsPerS = 1e9;

// Whether nobody is there any more to be answered.
bool forsaken() {
  pollfd lifeline = {kLifelineFd, POLLIN, 0};
  return ::poll(&lifeline, 1, 0) > 0;
}

weights::TableSoFar kept_of(const weights::OpenModel& model) {
  const weights::HashCache cache(weights::hash_cache_directory(), model.ids());
  return cache.load(model.files).value_or(weights::TableSoFar());
}

// A cache that cannot be written costs the next reading, not this one.
void keep(const weights::OpenModel& model, const weights::TableSoFar& so_far) {
  try {
    weights::HashCache(weights::hash_cache_directory(), model.ids()).save(model.files, so_far);
  } catch (const std::exception& error) {
    complain(error.what());
  }
}

}  // namespace

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

WorkTime::WorkTime(const json::Value& request) {
  const double wanted = json::number_of(request, "work_s", 1);
  const duration<double> time(std::clamp(wanted, kWorkLeast, kWorkMost));
  until_ = steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(time);
}

bool WorkTime::over() const {
  return steady_clock::now() >= until_ || forsaken();
}

HashedModel::HashedModel(const std::string& path, const WorkTime& time)
    : model_(weights::open_model(path)), builder_(model_.files, kept_of(model_)) {
  if (model_.files.is_sparse()) {
    throw weights::ModelError(path +
                              " is sparse: what its holes stand for is not there; name the model "
                              "it was made from");
  }
  if (builder_.done()) return;
  static_cast<void>(!::nice(kNiceness));
  const bool fresh =
      weights::too_fresh(model_.ids(), static_cast<std::int64_t>(unix_time() * kNsPerS));
  while (builder_.step() && !time.over()) {
  }
  model_.check_unchanged();
  if (!fresh) keep(model_, builder_.so_far());
}

}  // namespace dllm::agent
