#include "provision.h"

#include <utility>

namespace dllm {

std::optional<Spare> Provision::ask(const std::string& asked, const Precedents& precedents,
                                    bool may_have) {
  if (asked_.empty() && is_on_ && !is_over_) {
    const Precedents::Row row = precedents.behind(asked);
    expected_.assign(row.begin(), row.end());
  } else if (!expected_.empty() && expected_.front() == asked) {
    expected_.pop_front();
  } else {
    expected_.clear();
    may_have = false;
  }
  // One more than is kept tells that it is too long.
  if (!is_over_ && asked_.size() <= Precedents::kRowMax) asked_.push_back(asked);
  if (!may_have || spares_.empty()) return std::nullopt;
  const Spare spare = std::move(spares_.front());
  spares_.pop_front();
  return spare;
}

std::deque<Spare> Provision::give_up() {
  return std::exchange(spares_, {});
}

Precedents::Row Provision::end() {
  is_over_ = true;
  expected_.clear();
  return std::exchange(asked_, {});
}

const std::string* Provision::next() const {
  return spares_.size() < expected_.size() ? &expected_[spares_.size()] : nullptr;
}

void Provision::allocated(std::string asked, View payload) {
  filling_ = {std::move(asked), {payload.begin(), payload.end()}};
}

bool Provision::fill(View payload) {
  if (!filling_) return false;
  filling_->told.append(payload.begin(), payload.end());
  return true;
}

std::optional<Known> Provision::take_filled() {
  if (!filling_ || filling_->told.size() < Spare::kToldBytes) return std::nullopt;
  spares_.push_back(std::move(*filling_));
  filling_.reset();
  return Known{static_cast<char>(kAllocBuffer) + spares_.back().asked, spares_.back().told};
}

}  // namespace dllm
