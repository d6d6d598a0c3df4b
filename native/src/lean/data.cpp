#include "data.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace dllm::lean {

namespace {

constexpr std::uint32_t kF32 = 0, kF16 = 1, kI16 = 25, kI32 = 26, kI64 = 27, kBf16 = 30;

// The lowest bits of an op's first number; the others are how much.
enum Op : std::uint8_t {
  kLiteral = 0,     // so many bytes as they are
  kCount = 1,       // so many units: the first, then (when more than one) the step
  kCountAgain = 2,  // so many units: first and step of the count before the last one
  kCopy = 3,        // so many bytes, from a distance back
  kCopyAgain = 4,   // so many bytes, from the last distance back
};
constexpr unsigned kOpBits = 3;
constexpr std::uint64_t kOpMask = 7;

constexpr std::size_t kProbed = 16;    // units looked at to tell a mask
constexpr std::size_t kValuesMax = 2;  // that it has
// After so many bytes that resemble nothing, the rest of a block is not looked at.
constexpr std::size_t kLiteralMax = 16 << 10;
// Bytes an op must save to be worth ending a literal for.
constexpr std::ptrdiff_t kWorthBreaking = 3;
// Parallel sequences take turns in the cells of a memory: units until a row repeats itself.
constexpr std::array<std::size_t, 3> kPeriods{2, 3, 4};

struct Count {
  std::uint64_t first = 0;
  std::uint64_t step = 0;
  bool operator==(const Count&) const = default;
};

// Both ends go through the same counts and distances.
struct Memory {
  Count last;
  Count before_last;
  std::uint64_t distance = 0;

  void counted(Count count) {
    before_last = last;
    last = count;
  }
};

std::uint64_t load_unit(const std::uint8_t* at, std::size_t unit) {
  std::uint64_t value = 0;
  std::memcpy(&value, at, unit);
  return value;
}

std::uint64_t unit_mask(std::size_t unit) {
  return ~std::uint64_t{0} >> (64 - 8 * unit);
}

// A difference of units with its sign.
std::uint64_t sign_extend(std::uint64_t value, std::size_t unit) {
  const auto shift = static_cast<unsigned>(64 - 8 * unit);
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(value << shift) >> shift);
}

// Bytes that are alike from here and there on.
std::size_t match(const std::uint8_t* here, const std::uint8_t* there, std::size_t limit) {
  constexpr std::size_t kStride = 256, kWord = sizeof(std::uint64_t);
  std::size_t at = 0;
  while (at + kWord <= limit) {
    if (load<std::uint64_t>(here + at) != load<std::uint64_t>(there + at)) break;
    at += kWord;
    while (at + kStride <= limit && std::memcmp(here + at, there + at, kStride) == 0) at += kStride;
  }
  while (at < limit && here[at] == there[at]) ++at;
  return at;
}

class DataEncoder {
 public:
  DataEncoder(const Block& block, Writer& out) : block_(block), out_(out) {}

  void run() {
    while (at_ < block_.data.size()) {
      const Choice choice = best();
      const std::ptrdiff_t needed = literal_ > 0 ? kWorthBreaking : 0;
      if (choice.bytes == 0 || choice.gain < needed) {
        lengthen_literal();
      } else {
        end_literal();
        write(choice);
        at_ += choice.bytes;
      }
    }
    end_literal();
  }

 private:
  struct Choice {
    Op op = kLiteral;
    std::size_t bytes = 0;
    std::ptrdiff_t gain = -1;
    Count count;
    std::uint64_t distance = 0;
  };

  [[nodiscard]] std::size_t left() const { return block_.data.size() - at_; }
  [[nodiscard]] const std::uint8_t* here() const { return block_.data.data() + at_; }

  void lengthen_literal() {
    const bool hopeless = literal_ >= kLiteralMax;
    const std::size_t bytes = hopeless ? left() : std::min(block_.unit, left());
    literal_ += bytes;
    at_ += bytes;
  }

  void end_literal() {
    if (literal_ == 0) return;
    out_.number(std::uint64_t{literal_} << kOpBits | kLiteral);
    out_.bytes(block_.data.subspan(at_ - literal_, literal_));
    literal_ = 0;
  }

  Choice best() {
    Choice best = count();
    consider(best, memory_.distance);
    consider(best, block_.before.size());
    consider(best, block_.row);
    // What is neither is a pattern that begins.
    if (best.gain < kWorthBreaking) {
      for (const std::size_t period : kPeriods) consider(best, period * block_.unit);
    }
    return best;
  }

  void consider(Choice& best, std::uint64_t distance) {
    if (distance == 0 || distance > block_.before.size() + at_) return;
    const std::size_t bytes = match_back(distance);
    if (bytes == 0) return;
    const bool again = distance == memory_.distance;
    Choice choice{again ? kCopyAgain : kCopy, bytes, 0, {}, distance};
    choice.gain = gain(bytes, bytes, again ? 0 : number_bytes(distance));
    if (choice.gain > best.gain) best = choice;
  }

  [[nodiscard]] std::size_t match_back(std::uint64_t distance) const {
    if (distance <= at_) return match(here(), here() - distance, left());
    const std::size_t back = distance - at_;
    const std::uint8_t* there = block_.before.data() + block_.before.size() - back;
    const std::size_t alike = match(here(), there, std::min(back, left()));
    if (alike < back || alike == left()) return alike;
    return alike + match(here() + alike, block_.data.data(), left() - alike);
  }

  static std::ptrdiff_t gain(std::size_t covered, std::uint64_t amount, std::size_t more) {
    const std::size_t cost = number_bytes(amount << kOpBits) + more;
    return static_cast<std::ptrdiff_t>(covered) - static_cast<std::ptrdiff_t>(cost);
  }

  [[nodiscard]] Choice count() const {
    const std::size_t unit = block_.unit, units = left() / unit;
    if (units == 0) return {};
    Count count{load_unit(here(), unit), 0};
    const std::size_t alike = 1 + match(here() + unit, here(), (units - 1) * unit) / unit;
    Choice best = choose(count, alike);
    if (alike > 1 || units == 1) return best;
    count.step = sign_extend(load_unit(here() + unit, unit) - count.first, unit);
    const Choice stepping = choose(count, steps(count, units));
    return stepping.gain > best.gain ? stepping : best;
  }

  [[nodiscard]] std::size_t steps(Count count, std::size_t units) const {
    std::size_t many = 2;
    std::uint64_t expected = count.first + 2 * count.step;
    const std::uint64_t mask = unit_mask(block_.unit);
    for (; many < units; ++many, expected += count.step) {
      if (load_unit(here() + many * block_.unit, block_.unit) != (expected & mask)) break;
    }
    return many;
  }

  [[nodiscard]] Choice choose(Count count, std::size_t many) const {
    const std::size_t bytes = many * block_.unit;
    if (count == memory_.before_last) return {kCountAgain, bytes, gain(bytes, many, 0), count, 0};
    const std::size_t step = many > 1 ? number_bytes(fold(count.step)) : 0;
    const std::size_t more = number_bytes(fold(sign_extend(count.first, block_.unit))) + step;
    return {kCount, bytes, gain(bytes, many, more), count, 0};
  }

  void write(const Choice& choice) {
    const bool counts = choice.op == kCount || choice.op == kCountAgain;
    const std::uint64_t amount = counts ? choice.bytes / block_.unit : choice.bytes;
    out_.number(amount << kOpBits | choice.op);
    if (choice.op == kCount) {
      out_.difference(sign_extend(choice.count.first, block_.unit));
      if (amount > 1) out_.difference(choice.count.step);
    }
    if (choice.op == kCopy) out_.number(choice.distance);
    if (counts) memory_.counted(choice.count);
    if (!counts) memory_.distance = choice.distance;
  }

  Block block_;
  Writer& out_;
  Memory memory_;
  std::size_t at_ = 0;
  std::size_t literal_ = 0;  // bytes before `at_` not written yet
};

class DataDecoder {
 public:
  DataDecoder(Reader& in, View before, std::size_t unit, Bytes data)
      : in_(in), before_(before), unit_(unit), data_(data) {}

  bool run() {
    while (at_ < data_.size()) {
      const std::uint64_t op = in_.number();
      if (in_.failed() || !read(static_cast<Op>(op & kOpMask), op >> kOpBits)) return false;
    }
    return true;
  }

 private:
  bool read(Op op, std::uint64_t amount) {
    const bool counts = op == kCount || op == kCountAgain;
    const std::uint64_t most = (data_.size() - at_) / (counts ? unit_ : 1);
    if (amount == 0 || amount > most) return false;
    switch (op) {
      case kLiteral:
        return literal(amount);
      case kCount:
        return count(read_count(amount), amount);
      case kCountAgain:
        return count(memory_.before_last, amount);
      case kCopy:
        memory_.distance = in_.number();
        return copy(amount);
      case kCopyAgain:
        return copy(amount);
    }
    return false;
  }

  bool literal(std::size_t bytes) {
    const View taken = in_.bytes(bytes);
    if (in_.failed()) return false;
    std::ranges::copy(taken, data_.begin() + static_cast<std::ptrdiff_t>(at_));
    at_ += bytes;
    return true;
  }

  Count read_count(std::uint64_t amount) {
    Count count{in_.difference() & unit_mask(unit_), 0};
    if (amount > 1) count.step = in_.difference();
    return count;
  }

  bool count(Count count, std::size_t many) {
    if (in_.failed()) return false;
    memory_.counted(count);
    if (count.step == 0) {
      std::memcpy(data_.data() + at_, &count.first, unit_);
      repeat(unit_, many * unit_);
    } else {
      std::uint64_t value = count.first;
      for (std::size_t i = 0; i < many; ++i, value += count.step) {
        std::memcpy(data_.data() + at_ + i * unit_, &value, unit_);
      }
    }
    at_ += many * unit_;
    return true;
  }

  // So many bytes from here on are what the first `period` of them are, again and again.
  void repeat(std::size_t period, std::size_t bytes) {
    std::uint8_t* const here = data_.data() + at_;
    for (std::size_t done = period; done < bytes; done *= 2) {
      std::memcpy(here + done, here, std::min(done, bytes - done));
    }
  }

  bool copy(std::size_t bytes) {
    const std::uint64_t distance = memory_.distance;
    if (in_.failed() || distance == 0 || distance > before_.size() + at_) return false;
    const std::size_t end = at_ + bytes;
    if (distance > at_) {
      const View back = before_.last(distance - at_);
      const std::size_t taken = std::min(back.size(), bytes);
      std::memcpy(data_.data() + at_, back.data(), taken);
      at_ += taken;
    }
    if (at_ == end) return true;
    const std::size_t period = std::min<std::size_t>(distance, end - at_);
    std::memcpy(data_.data() + at_, data_.data() + (at_ - distance), period);
    repeat(period, end - at_);
    at_ = end;
    return true;
  }

  Reader& in_;
  View before_;
  std::size_t unit_;
  Bytes data_;
  Memory memory_;
  std::size_t at_ = 0;
};

}  // namespace

std::size_t unit_bytes(std::uint32_t type) {
  switch (type) {
    case kF16:
    case kBf16:
    case kI16:
      return 2;
    case kF32:
    case kI32:
      return 4;
    case kI64:
      return 8;
    default:
      return 0;
  }
}

bool is_worth_encoding(std::uint32_t type, View beginning) {
  const std::size_t unit = unit_bytes(type);
  if (unit == 0) return false;
  if (type == kI16 || type == kI32 || type == kI64) return true;
  std::array<std::uint64_t, kValuesMax> values{};
  std::size_t seen = 0;
  const std::size_t probed = std::min(kProbed, beginning.size() / unit);
  for (std::size_t i = 0; i < probed; ++i) {
    const std::uint64_t value = load_unit(beginning.data() + i * unit, unit);
    const auto known = values.begin() + static_cast<std::ptrdiff_t>(seen);
    if (std::find(values.begin(), known, value) != known) continue;
    if (seen == kValuesMax) return false;
    values[seen++] = value;
  }
  return true;
}

void write_data(const Block& block, Writer& out) {
  DataEncoder(block, out).run();
}

bool read_data(Reader& in, View before, std::size_t unit, std::size_t size, Buffer& out) {
  const std::size_t start = out.size();
  out.resize(start + size);
  return DataDecoder(in, before, unit, Bytes(out).subspan(start)).run();
}

}  // namespace dllm::lean
