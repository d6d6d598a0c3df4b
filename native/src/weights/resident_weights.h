// The models a machine has at home: finds a tensor in its files and reads it, a chunk at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hashes.h"
#include "model_files.h"

namespace dllm::weights {

// A tensor in one of the files, and what is known of its bytes.
struct Resident {
  const ModelFiles* files;
  const TensorPlace* place;
  const TensorSums* sums = nullptr;  // none until the model was read once
};

// What is told of a machine's tensors at the beginning of a link: enough to know which are worth
// asking for, never what they hold. `fnv1a` is 0 where it is not known.
struct Listed {
  TensorKey key;
  std::uint64_t fnv1a = 0;

  bool operator==(const Listed&) const = default;
};

class ResidentWeights {
 public:
  ResidentWeights() = default;
  ResidentWeights(const ResidentWeights&) = delete;
  ResidentWeights& operator=(const ResidentWeights&) = delete;

  // Takes a model in, with what is known of the tensors in front.
  void add(ModelFiles files, std::vector<TensorSums> sums = {});

  // Takes in a model on disk, by the path of any part, with what is kept of its tensors. Throws
  // ModelError.
  void open(const std::string& path);
  // The same of a sparse one alone.
  void open_sparse(const std::string& path);

  // All tensors of that name and type and shape and size, but for holes: other models may have some
  // too, and what they hold may differ. The pointers live as long as this.
  [[nodiscard]] const std::vector<Resident>& find(const TensorKey& key) const;
  // The one whose bytes had that hash when they were read last; none where that is not known.
  [[nodiscard]] std::optional<Resident> find(const TensorKey& key, std::uint64_t fnv1a) const;

  // A tensor of that name of which a sparse file here has a hole alone; null where none has.
  [[nodiscard]] const TensorPlace* hole(std::string_view name) const;
  [[nodiscard]] bool has_holes() const { return !holes_.empty(); }

  // Throws ModelError where a sparse file is no longer that which was opened by its path.
  void check_sparse() const;

  [[nodiscard]] std::vector<Listed> list() const;
  [[nodiscard]] bool empty() const { return models_.empty(); }

 private:
  struct Model {
    ModelFiles files;
    std::vector<TensorSums> sums;
  };

  std::vector<std::unique_ptr<Model>> models_;
  std::map<TensorKey, std::vector<Resident>> by_key_;
  std::map<std::string, const TensorPlace*, std::less<>> holes_;
  std::vector<const FileSource*> sparse_;  // owned by their models
};

// Takes in models by their paths. Complains of those that cannot be read, each in a sentence.
void open_models(ResidentWeights& home, const std::vector<std::string>& paths);

// Reads a chunk into `buffer`. False where the file ends too early or cannot be read, though it
// could be when it was opened.
bool read_chunk(const Resident& resident, std::uint64_t chunk, std::vector<std::uint8_t>& buffer);

// Bytes of a chunk of a tensor of so many bytes.
inline std::size_t chunk_bytes(std::uint64_t size_bytes, std::uint64_t chunk) {
  const std::uint64_t left = size_bytes - chunk * kChunkBytes;
  return static_cast<std::size_t>(left < kChunkBytes ? left : kChunkBytes);
}

}  // namespace dllm::weights
