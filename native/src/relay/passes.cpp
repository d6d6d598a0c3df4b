#include "passes.h"

#include <algorithm>

namespace dllm {

Cost& Cost::operator+=(const Cost& other) {
  tokens += other.tokens;
  trips += other.trips;
  bytes_up += other.bytes_up;
  bytes_down += other.bytes_down;
  head += other.head;
  up += other.up;
  compute += other.compute;
  down += other.down;
  wait += other.wait;
  return *this;
}

void divide_time(Pass& pass, Nanos previous_reply, const LinkEstimate& link) {
  const Nanos one_way = std::max<Nanos>(link.rtt / 2, 0);
  const Nanos feeding = pass.graph_sent - pass.first_input;
  const Nanos flight = pass.first_reply - pass.graph_sent;
  const double sending_s = link.bytes_per_s > 0 ? double(pass.bytes_fed) / link.bytes_per_s : 0;
  // Cut before the conversion: more than all the time there is means nothing.
  const double longest = double(feeding + flight);
  const auto sending = static_cast<Nanos>(std::min(sending_s * double(kNanosPerSecond), longest));
  const Nanos sent_while_feeding = std::min(sending, feeding);
  const Nanos up_flight = std::min(one_way + sending - sent_while_feeding, flight);
  const Nanos down_flight = std::min(one_way, flight - up_flight);
  pass.head = pass.first_input - previous_reply;
  pass.up = sent_while_feeding + up_flight;
  pass.compute = flight - up_flight - down_flight;
  pass.down = down_flight + (pass.last_reply - pass.first_reply);
  pass.wait = feeding - sent_while_feeding;
}

void PassMeter::open(Nanos begun) {
  if (fetched()) complete();
  if (open_) return;
  open_ = Pass{};
  open_->first_input = begun;
  graph_tokens_ = 0;
  unanswered_ = 0;
}

void PassMeter::input(Tensor tensor) {
  const bool is_matrix = tensor.type() == Tensor::kF32 && tensor.ne(0) > 1 && tensor.ne(2) == 1;
  if (!open_ || !is_matrix) return;
  // The hidden state has one column per token; other matrices, such as a padded mask, have more.
  graph_tokens_ = graph_tokens_ ? std::min(graph_tokens_, tensor.ne(1)) : tensor.ne(1);
}

void PassMeter::graph(Nanos now) {
  if (!open_) return;
  open_->tokens += graph_tokens_;
  graph_tokens_ = 0;
  if (open_->graph_sent) return;
  open_->graph_sent = now;
  open_->bytes_fed = open_->bytes_up;
}

void PassMeter::ask(Nanos now, Tensor fetched) {
  if (!open_ || !open_->graph_sent) return;
  ++unanswered_;
  if (open_->asked) return;
  open_->asked = now;
  if (open_->tokens == 0) open_->tokens = std::max(fetched.ne(1), 1U);
}

void PassMeter::reply_begun(Nanos now) {
  if (open_ && open_->asked && !open_->first_reply) open_->first_reply = now;
}

void PassMeter::reply_ended(Nanos now, const LinkEstimate& link) {
  if (!open_ || unanswered_ == 0) return;
  --unanswered_;
  open_->last_reply = now;
  link_ = link;
}

void PassMeter::add_up(std::uint64_t bytes) {
  if (open_) open_->bytes_up += bytes;
}

void PassMeter::add_down(std::uint64_t bytes) {
  if (open_) open_->bytes_down += bytes;
}

void PassMeter::add_trip() {
  if (open_) ++open_->trips;
}

void PassMeter::discard() {
  if (fetched()) complete();
  open_.reset();
  previous_tokens_ = 0;
}

bool PassMeter::fetched() const {
  return open_ && open_->last_reply && unanswered_ == 0;
}

void PassMeter::settle(Nanos now) {
  if (fetched() && now - open_->last_reply > kSettled) complete();
}

void PassMeter::complete() {
  Pass pass = *open_;
  open_.reset();
  divide_time(pass, previous_reply_.value_or(pass.first_input), link_);
  pass.generated = pass.tokens <= kSlotsMax && pass.tokens <= previous_tokens_;
  previous_reply_ = pass.last_reply;
  previous_tokens_ = pass.tokens;
  if (pass.generated) {
    totals_.generated += pass;
    ++totals_.generated.passes;
  }
  ++totals_.passes;
  done_.push_back(pass);
  if (done_.size() <= kUncollectedMax) return;
  done_.pop_front();
  ++totals_.dropped;
}

std::vector<Pass> PassMeter::collect() {
  std::vector<Pass> passes(done_.begin(), done_.end());
  done_.clear();
  return passes;
}

}  // namespace dllm
