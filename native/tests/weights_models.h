// GGUF files made by hand, in memory that may change, end early or read in small pieces.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "weights/hashes.h"
#include "weights/model_files.h"

namespace models {

inline constexpr std::size_t kAlignment = 32;
inline constexpr std::uint32_t kF32 = 0, kI8 = 24;

struct Made {
  std::string name;
  std::uint32_t type = kI8;
  std::vector<std::uint64_t> shape;
  std::string data;
};

template <typename Number>
std::string raw(Number number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

inline std::string text(const std::string& text) {
  return raw<std::uint64_t>(text.size()) + text;
}

inline std::string padded(std::string data) {
  data.resize((data.size() + kAlignment - 1) / kAlignment * kAlignment);
  return data;
}

// Of one dimension, a byte an element.
inline Made tensor(const std::string& name, const std::string& data) {
  return {name, kI8, {data.size()}, data};
}

inline std::string noise(std::uint32_t seed, std::size_t size) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  std::ranges::generate(bytes, [&] { return static_cast<char>(random()); });
  return bytes;
}

inline std::string list_of(const std::vector<Made>& tensors) {
  std::string out;
  std::uint64_t offset = 0;
  for (const Made& made : tensors) {
    out += text(made.name) + raw(static_cast<std::uint32_t>(made.shape.size()));
    for (const std::uint64_t count : made.shape) out += raw(count);
    out += raw(made.type) + raw(offset);
    offset += padded(made.data).size();
  }
  return out;
}

// `keys`: metadata, already as bytes.
inline std::string gguf(const std::vector<Made>& tensors,
                        const std::vector<std::string>& keys = {}) {
  std::string out = "GGUF" + raw<std::uint32_t>(3) + raw<std::uint64_t>(tensors.size()) +
                    raw<std::uint64_t>(keys.size());
  for (const std::string& key : keys) out += key;
  out = padded(out + list_of(tensors));
  for (const Made& made : tensors) out += padded(made.data);
  return out;
}

inline std::string numbers_key(const std::string& name, const std::vector<std::uint64_t>& values) {
  std::string out = text(name) + raw<std::uint32_t>(9) + raw<std::uint32_t>(10);
  out += raw<std::uint64_t>(values.size());
  for (const std::uint64_t value : values) out += raw(value);
  return out;
}

// Of the chunks of holes.
inline std::string hashes_key(const std::string& hashes) {
  return text(dllm::weights::kSparseChunks) + raw<std::uint32_t>(9) + raw<std::uint32_t>(0) +
         text(hashes);
}

// Binds a record of holes to these tensors.
inline std::string list_key(const std::vector<Made>& tensors) {
  dllm::agent::Sha256 hash;
  hash.add(list_of(tensors));
  return text(dllm::weights::kSparseTensors) + raw<std::uint32_t>(8) + text(hash.hex());
}

// A sparse file: the tensors of these names are there, the others are holes.
inline std::string sparse_gguf(std::vector<Made> tensors, const std::set<std::string>& names) {
  std::vector<std::uint64_t> kept;
  std::string hashes;
  std::uint64_t offset = 0;
  for (Made& made : tensors) {
    if (names.contains(made.name)) {
      kept.insert(kept.end(), {offset, offset + made.data.size()});
    } else {
      for (std::size_t at = 0; at < made.data.size(); at += dllm::weights::kChunkBytes) {
        const std::string chunk = made.data.substr(at, dllm::weights::kChunkBytes);
        hashes += raw(dllm::weights::chunk_hash(
            {reinterpret_cast<const std::uint8_t*>(chunk.data()), chunk.size()}, made.data.size(),
            at / dllm::weights::kChunkBytes));
      }
      std::ranges::fill(made.data, '\0');
    }
    offset += padded(made.data).size();
  }
  return gguf(tensors, {list_key(tensors), numbers_key(dllm::weights::kSparseKept, kept),
                        hashes_key(hashes)});
}

inline std::string uint16_key(const std::string& name, std::uint16_t value) {
  return text(name) + raw<std::uint32_t>(2) + raw(value);
}

inline std::string split_key(std::uint16_t part, std::uint16_t parts) {
  return uint16_key("split.no", part) + uint16_key("split.count", parts);
}

// Bytes that a test changes at will; `size_bytes` stays what it was at first.
class Memory : public dllm::weights::Source {
 public:
  explicit Memory(std::string data) : data_(std::move(data)), size_(data_.size()) {}

  [[nodiscard]] std::uint64_t size_bytes() const override { return size_; }
  std::size_t read(std::uint64_t offset, std::span<std::uint8_t> into) override {
    ++reads_;
    if (const auto told = before_read(); told && *told) (*told)(*this, offset);
    if (offset >= data_.size()) return 0;
    const std::size_t count = std::min<std::uint64_t>(into.size(), data_.size() - offset);
    std::copy_n(std::next(data_.begin(), static_cast<std::ptrdiff_t>(offset)), count, into.begin());
    return count;
  }

  std::string& data() { return data_; }
  [[nodiscard]] std::size_t reads() const { return reads_; }
  void before_read(std::function<void(Memory&, std::uint64_t)> told) {
    const std::lock_guard lock(mutex_);
    before_read_ = std::make_shared<Told>(std::move(told));
  }

 private:
  using Told = std::function<void(Memory&, std::uint64_t)>;
  // Another thread reads ahead. Not a copy: what is told may count its calls.
  std::shared_ptr<Told> before_read() {
    const std::lock_guard lock(mutex_);
    return before_read_;
  }

  std::string data_;
  std::uint64_t size_;
  std::atomic<std::size_t> reads_ = 0;
  std::mutex mutex_;
  std::shared_ptr<Told> before_read_;
};

// A model of one file, or of several parts, and its memory.
inline dllm::weights::ModelFiles opened(const std::vector<std::string>& parts,
                                        std::vector<Memory*>* memories = nullptr) {
  std::vector<std::unique_ptr<dllm::weights::Source>> sources;
  std::vector<std::string> names;
  for (const std::string& part : parts) {
    auto memory = std::make_unique<Memory>(part);
    if (memories != nullptr) memories->push_back(memory.get());
    sources.push_back(std::move(memory));
    names.push_back("part" + std::to_string(names.size() + 1) + ".gguf");
  }
  return dllm::weights::ModelFiles(std::move(sources), names);
}

}  // namespace models
