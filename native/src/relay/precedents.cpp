#include "precedents.h"

#include <algorithm>
#include <utility>

#include "tensor.h"

namespace dllm {

namespace {

// Pointers of that client and that worker. Ids only tell whether there is such a tensor.
std::string without_places(std::string fields) {
  const auto clear = [&](std::size_t at, std::size_t count) {
    std::fill_n(fields.begin() + static_cast<std::ptrdiff_t>(at), count, '\0');
  };
  for (std::size_t at = fields.size() % kTensorBytes; at < fields.size(); at += kTensorBytes) {
    const bool is_there = Tensor(reinterpret_cast<const std::uint8_t*>(&fields[at])).id() != 0;
    clear(at, Tensor::kTypeAt);
    fields[at] = is_there ? '\1' : '\0';
    clear(at + Tensor::kBufferAt, sizeof(std::uint64_t));
    clear(at + Tensor::kSourcesAt, Tensor::kNameAt + Tensor::kNameBytes - Tensor::kSourcesAt);
  }
  return fields;
}

template <typename Kept>
void keep_latest(std::vector<Kept>& all, Kept one, std::size_t most) {
  if (all.size() == most) all.erase(all.begin());
  all.push_back(std::move(one));
}

}  // namespace

void Precedents::learn(Version version) {
  if (std::exchange(version_, version) == version) return;
  devices_.clear();
  forget();
}

void Precedents::learn(const std::string& devices) {
  if (std::exchange(devices_, devices) != devices) forget();
}

void Precedents::forget() {
  sizes_.clear();
  rows_.clear();
  ++revision_;
}

void Precedents::size_asked(std::string fields) {
  fields = without_places(std::move(fields));
  if (std::ranges::find(sizes_, fields) != sizes_.end()) return;
  keep_latest(sizes_, std::move(fields), kSizesMax);
  ++revision_;
}

void Precedents::allocated(Row row) {
  if (row.empty() || row.size() > kRowMax) return;
  if (!rows_.empty() && rows_.back() == row) return;
  std::erase_if(rows_, [&](const Row& each) { return each.front() == row.front(); });
  keep_latest(rows_, std::move(row), kRowsMax);
  ++revision_;
}

Precedents::Row Precedents::behind(const std::string& first) const {
  const auto found =
      std::ranges::find_if(rows_, [&](const Row& each) { return each.front() == first; });
  return found == rows_.end() ? Row{} : Row(found->begin() + 1, found->end());
}

}  // namespace dllm
