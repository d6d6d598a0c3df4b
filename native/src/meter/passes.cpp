#include "passes.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace dllm {

namespace {

// "RPC0[127.0.0.1:50052]#embd#2" without the number of the copy, which changes from pass to pass.
std::string_view without_copy(std::string_view name) {
  const std::size_t digits = name.find_last_not_of("0123456789");
  const bool numbered = digits != std::string_view::npos && digits + 1 < name.size();
  return numbered && name[digits] == '#' ? name.substr(0, digits) : name;
}

bool is_logits(Tensor tensor) {
  return tensor.name() == "result_output" && tensor.type() == Tensor::kF32 && tensor.ne(0) > 0;
}

}  // namespace

Cost& Cost::operator+=(const Cost& other) {
  batch += other.batch;
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

Cost divide_time(const Leg& leg, Nanos previous_reply, const LinkEstimate& link) {
  const Nanos one_way = std::max<Nanos>(link.rtt / 2, 0);
  const Nanos feeding = leg.graph_sent - leg.first_input;
  const Nanos flight = leg.first_reply - leg.graph_sent;
  const double sending_s = link.bytes_per_s > 0 ? double(leg.bytes_fed) / link.bytes_per_s : 0;
  // Cut before the conversion: more than all the time there is means nothing.
  const double longest = double(feeding + flight);
  const auto sending = static_cast<Nanos>(std::min(sending_s * double(kNanosPerSecond), longest));
  const Nanos sent_while_feeding = std::min(sending, feeding);
  Nanos up_flight = std::min(one_way + sending - sent_while_feeding, flight);
  Nanos down_flight = std::min(one_way, flight - up_flight);
  if (leg.computed) {
    const Nanos way = flight - std::clamp<Nanos>(*leg.computed, 0, flight);
    const Nanos more = way - up_flight - down_flight;
    up_flight = std::clamp<Nanos>(up_flight + more / 2, 0, way);
    down_flight = way - up_flight;
  }
  Cost times;
  times.head = leg.first_input - previous_reply;
  times.up = sent_while_feeding + up_flight;
  times.compute = flight - up_flight - down_flight;
  times.down = down_flight + (leg.last_reply - leg.first_reply);
  times.wait = feeding - sent_while_feeding;
  return times;
}

void PassMeter::meet() {
  discard();
  graphs_expected_ = fetches_expected_ = 0;
  brings_out_rows_ = false;
}

void PassMeter::feed(Nanos begun) {
  if (!open_) return open(begun);
  if (!fetched()) return;
  close_leg();
  leg_.first_input = begun;
}

void PassMeter::prepare(Nanos begun) {
  if (open_ && open_->graphs && unanswered_ == 0) complete();
  feed(begun);
}

void PassMeter::open(Nanos begun) {
  open_ = Pass{};
  open_->first_input = begun;
  leg_ = {};
  leg_.first_input = begun;
  unanswered_ = 0;
  inputs_.clear();
  rows_fetched_ = rows_wanted_ = 0;
}

void PassMeter::set(Nanos begun, Tensor tensor, std::uint64_t offset, std::uint64_t bytes) {
  const std::string_view name = without_copy(tensor.name());
  // Workers that compute one tensor together exchange nameless parts of it.
  if (name.empty() && !open_) return;
  const std::uint64_t key = std::hash<std::string_view>{}(name);
  const auto known = inputs_.find(key);
  // A tensor may also be set part by part, as chosen experts are.
  const bool again = !name.empty() && known != inputs_.end() && offset < known->second;
  again ? prepare(begun) : feed(begun);
  if (inputs_.size() < kNamesMax) inputs_[key] = offset + bytes;
  if (name.ends_with("out_ids")) rows_wanted_ = tensor.ne(0);
  const bool is_matrix = tensor.type() == Tensor::kF32 && tensor.ne(0) > 1 && tensor.ne(2) == 1;
  if (!is_matrix || open_->graphs) return;
  // The hidden state has one column per token; other matrices, such as a padded mask, have more.
  const std::uint64_t columns = tensor.ne(1);
  open_->batch = open_->batch ? std::min(open_->batch, columns) : columns;
}

void PassMeter::graph(Nanos now) {
  if (!open_) return;
  ++open_->graphs;
  if (leg_.graph_sent) return;
  leg_.graph_sent = now;
  leg_.bytes_fed = leg_.bytes_up;
}

void PassMeter::ask(Tensor fetched, std::uint64_t bytes) {
  if (!open_ || !leg_.graph_sent) return;
  ++unanswered_;
  ++open_->fetches;
  if (is_logits(fetched)) rows_fetched_ += bytes / (sizeof(float) * fetched.ne(0));
  if (open_->batch == 0) open_->batch = std::max(fetched.ne(1), 1U);
}

void PassMeter::computed(Nanos taken) {
  if (open_ && leg_.graph_sent && !leg_.first_reply) leg_.computed = taken;
}

void PassMeter::reply_begun(Nanos now) {
  if (open_ && unanswered_ && !leg_.first_reply) leg_.first_reply = now;
}

void PassMeter::reply_ended(Nanos now, const LinkEstimate& link) {
  if (!open_ || unanswered_ == 0) return;
  --unanswered_;
  leg_.last_reply = now;
  link_ = link;
}

void PassMeter::add_up(std::uint64_t bytes) {
  if (!open_) return;
  open_->bytes_up += bytes;
  leg_.bytes_up += bytes;
}

void PassMeter::add_down(std::uint64_t bytes) {
  if (open_) open_->bytes_down += bytes;
}

void PassMeter::add_trip() {
  if (open_) ++open_->trips;
}

void PassMeter::discard() {
  if (open_ && open_->graphs && unanswered_ == 0) complete();
  forget();
}

void PassMeter::forget() {
  if (open_) {
    expect_as_much();
    if (rows_fetched_ || rows_wanted_) expect_rows();
  }
  open_.reset();
  previous_batch_ = 0;
}

bool PassMeter::fetched() const {
  return open_ && leg_.last_reply && unanswered_ == 0;
}

void PassMeter::settle(Nanos now) {
  if (!fetched()) return;
  const bool is_whole =
      graphs_expected_ && open_->graphs >= graphs_expected_ && open_->fetches >= fetches_expected_;
  if (now - leg_.last_reply > (is_whole ? kSettled : kAbandoned)) complete();
}

// Adds the leg's times to the open pass. One from which nothing was fetched, as when the head
// wants no logits of a prompt's batch, took the time to send it.
void PassMeter::close_leg() {
  if (!leg_.graph_sent) return;
  if (!leg_.last_reply) leg_.first_reply = leg_.last_reply = leg_.graph_sent;
  *open_ += divide_time(leg_, previous_reply_.value_or(leg_.first_input), link_);
  open_->last_reply = leg_.last_reply;
  previous_reply_ = leg_.last_reply;
  leg_ = {};
}

void PassMeter::complete() {
  close_leg();
  expect_as_much();
  count_rows();
  classify();
  ++totals_.passes;
  done_.push_back(*std::exchange(open_, std::nullopt));
  if (done_.size() <= kUncollectedMax) return;
  done_.pop_front();
  ++totals_.dropped;
}

void PassMeter::expect_as_much() {
  graphs_expected_ = std::max(graphs_expected_, open_->graphs);
  fetches_expected_ = std::max(fetches_expected_, open_->fetches);
}

void PassMeter::count_rows() {
  const std::uint64_t rows = rows_fetched_ ? rows_fetched_ : rows_wanted_;
  if (rows) expect_rows();
  if (!brings_out_rows_) return;
  open_->rows = rows;
  *totals_.rows += rows;
}

void PassMeter::expect_rows() {
  brings_out_rows_ = true;
  totals_.rows = totals_.rows.value_or(0);
}

void PassMeter::classify() {
  Pass& pass = *open_;
  const bool few = pass.batch <= kSlotsMax && pass.batch <= previous_batch_;
  pass.generated = pass.rows ? *pass.rows == pass.batch : few;
  pass.tokens = pass.rows.value_or(pass.generated ? pass.batch : 0);
  previous_batch_ = pass.batch;
  if (!pass.generated) return;
  totals_.generated += pass;
  ++totals_.generated.passes;
}

std::vector<Pass> PassMeter::collect() {
  std::vector<Pass> passes(done_.begin(), done_.end());
  done_.clear();
  return passes;
}

}  // namespace dllm
