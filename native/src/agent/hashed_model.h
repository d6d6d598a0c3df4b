// A model with the hashes of its tensors, as far as they are known; work in slices of time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "json.h"
#include "weights/hashes.h"
#include "weights/model_files.h"

namespace dllm::agent {

// 16 hex digits.
std::string hex(std::uint64_t value);

// How long one request may work: its `work_s`, and only while somebody is there to be answered.
class WorkTime {
 public:
  explicit WorkTime(const json::Value& request);

  [[nodiscard]] bool over() const;

 private:
  std::chrono::steady_clock::time_point until_;
};

class HashedModel {
 public:
  // Goes on hashing until the time is over, at low priority, and keeps what is known. Throws
  // weights::ModelError.
  HashedModel(const std::string& path, const WorkTime& time);

  [[nodiscard]] bool done() const { return builder_.done(); }
  [[nodiscard]] std::uint64_t done_bytes() const { return builder_.done_bytes(); }
  [[nodiscard]] std::uint64_t size_bytes() const { return model_.files.tensor_bytes(); }
  [[nodiscard]] const weights::ModelFiles& files() const { return model_.files; }
  [[nodiscard]] const std::vector<weights::TensorSums>& sums() const {
    return builder_.so_far().whole;
  }

 private:
  weights::OpenModel model_;
  weights::TableBuilder builder_;
};

}  // namespace dllm::agent
