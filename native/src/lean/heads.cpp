#include "heads.h"

#include <algorithm>

namespace dllm::lean {

namespace {

// Equal bytes between two changes that cost less as part of one.
constexpr std::size_t kGap = 2;

struct Change {
  std::size_t at;
  std::size_t end;
};

// From `from` on, up to where nothing changes for a while; empty at the end of the bytes.
Change next_change(View base, View bytes, std::size_t from) {
  const std::size_t size = bytes.size();
  while (from < size && base[from] == bytes[from]) ++from;
  Change change{from, from};
  for (std::size_t at = from; at < size && at <= change.end + kGap; ++at) {
    if (base[at] != bytes[at]) change.end = at + 1;
  }
  return change;
}

}  // namespace

void Heads::put(std::size_t slot, View bytes) {
  heads_[slot].bytes.assign(bytes.begin(), bytes.end());
}

void Heads::keep(std::size_t slot, View data) {
  Buffer& kept = heads_[slot].data;
  data_bytes_ -= kept.size();
  kept.clear();
  if (data.size() > kBaseBytes || data_bytes_ + data.size() > kDataKeptBytes) return;
  kept.assign(data.begin(), data.end());
  data_bytes_ += data.size();
}

void write_changes(View base, View bytes, Writer& out) {
  std::size_t at = 0;
  for (;;) {
    const Change change = next_change(base, bytes, at);
    out.number(change.end - change.at);
    if (change.end == change.at) return;
    out.number(change.at - at);
    out.bytes(bytes.subspan(change.at, change.end - change.at));
    at = change.end;
  }
}

bool read_changes(Reader& in, Bytes bytes) {
  std::size_t at = 0;
  for (;;) {
    const std::uint64_t changed = in.number();
    if (in.failed() || changed == 0) return !in.failed();
    const std::uint64_t same = in.number();
    if (same > bytes.size() - at) return false;
    at += same;
    if (changed > bytes.size() - at) return false;
    const View taken = in.bytes(changed);
    if (in.failed()) return false;
    std::ranges::copy(taken, bytes.begin() + static_cast<std::ptrdiff_t>(at));
    at += changed;
  }
}

// A tensor's id, a buffer, or a device: what tells one request of its kind from another.
std::uint64_t HeadIndex::key_of(View head) {
  const std::uint8_t* payload = head.data() + kRequestHeaderBytes;
  const std::size_t bytes = head.size() - kRequestHeaderBytes;
  if (head[0] == kGraphRecompute || bytes < sizeof(std::uint64_t)) {
    return bytes < sizeof(std::uint32_t) ? 0 : load<std::uint32_t>(payload);
  }
  return load<std::uint64_t>(payload);
}

HeadIndex::Place HeadIndex::find(View head) const {
  const std::uint64_t key = key_of(head);
  std::size_t oldest = 0, latest = kNoBase;
  for (std::size_t slot = 0; slot < kHeads; ++slot) {
    const Entry& entry = entries_[slot];
    if (entry.used < entries_[oldest].used) oldest = slot;
    if (entry.used == 0 || entry.id != head[0]) continue;
    if (entry.key == key) return {slot, slot};
    if (latest == kNoBase || entry.used > entries_[latest].used) latest = slot;
  }
  return {oldest, latest};
}

void HeadIndex::used(std::size_t slot, View head) {
  entries_[slot] = {key_of(head), ++clock_, head[0]};
}

}  // namespace dllm::lean
