#include "listing.h"

#include <algorithm>

namespace dllm::weights {

void Listing::add(Bytes message) {
  if (++messages_ > kListMessagesMax) throw BadMessage("the other end lists too many tensors");
  std::vector<Listed> listed;
  decode_list(message, listed);
  for (Listed& one : listed) known_[std::move(one.key)].push_back(one.fnv1a);
}

void Listing::clear() {
  known_.clear();
  messages_ = 0;
}

bool Listing::has(const TensorKey& key, std::uint64_t fnv1a) const {
  const auto found = known_.find(key);
  return found != known_.end() && fnv1a != 0 &&
         std::ranges::find(found->second, fnv1a) != found->second.end();
}

}  // namespace dllm::weights
