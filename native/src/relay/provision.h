// Buffers for one connection, allocated at the worker's end before llama-server asks for them: those
// it asked for when it started before, in that order.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>

#include "answers.h"
#include "precedents.h"

namespace dllm {

// A buffer nobody has asked for yet: what ALLOC_BUFFER asked and was replied, and then
// BUFFER_GET_BASE and GET_DEVICE_MEMORY.
struct Spare {
  static constexpr std::size_t kHandleBytes = 8, kGivenBytes = 16, kBaseBytes = 8,
                               kMemoryBytes = 16;
  static constexpr std::size_t kToldBytes = kGivenBytes + kBaseBytes + kMemoryBytes;

  std::string asked;
  std::string told;  // one behind the other

  [[nodiscard]] std::string handle() const { return told.substr(0, kHandleBytes); }
  [[nodiscard]] std::string given() const { return told.substr(0, kGivenBytes); }
  [[nodiscard]] std::string base() const { return told.substr(kGivenBytes, kBaseBytes); }
  [[nodiscard]] std::string memory() const { return told.substr(kGivenBytes + kBaseBytes); }
};

class Provision {
 public:
  // From now on buffers may be allocated ahead.
  void begin() { is_on_ = true; }

  // The client asks for this one; the spare that is handed out for it. Where there is none the
  // worker is asked, and nothing that is left may stay: see `give_up`.
  std::optional<Spare> ask(const std::string& asked, const Precedents& precedents, bool may_have);
  [[nodiscard]] bool has_spares() const { return !spares_.empty(); }
  // What is left, to be freed.
  std::deque<Spare> give_up();
  // No more is expected. Returns what the connection has allocated, once.
  Precedents::Row end();
  // The worker had no room: beyond those that are there none is allocated.
  void expect_no_more() { expected_.resize(std::min(expected_.size(), spares_.size())); }

  // What to allocate next; none: all that is expected is there.
  [[nodiscard]] const std::string* next() const;
  // The worker replied to that, and then to the questions that follow; false: it was not about this.
  void allocated(std::string asked, View payload);
  bool fill(View payload);
  // The latest, once all about it is known.
  std::optional<Known> take_filled();

 private:
  bool is_on_ = false;
  bool is_over_ = false;
  Precedents::Row asked_;
  std::deque<std::string> expected_;
  std::deque<Spare> spares_;  // for the first of them
  std::optional<Spare> filling_;
};

}  // namespace dllm
