// Tables of tensors kept in the user's cache directory, so that a file is read once in its life.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hashes.h"

namespace dllm::weights {

// $XDG_CACHE_HOME/dllm-tui/tensors, or the same below ~/.cache; "" where neither is known.
std::string hash_cache_directory();

// The bytes of a cache, and what they tell of just these files and tensors: none when they are
// damaged, of another version, of other files or of files that have changed.
std::string encode_hash_cache(const std::vector<FileId>& ids, const ModelFiles& files,
                              const TableSoFar& so_far);
std::optional<TableSoFar> decode_hash_cache(std::string_view data, const std::vector<FileId>& ids,
                                            const ModelFiles& files);

// Beside the caches of other models in a directory, which is made where it is missing.
class HashCache {
 public:
  HashCache(std::string directory, const std::vector<FileId>& ids);

  [[nodiscard]] const std::string& path() const { return path_; }
  // What was kept; nothing where there is none to be believed.
  [[nodiscard]] std::optional<TableSoFar> load(const ModelFiles& files) const;
  // Replaces what was kept (mode 0600, in one step). Throws std::runtime_error.
  void save(const ModelFiles& files, const TableSoFar& so_far) const;

 private:
  std::string directory_;
  std::vector<FileId> ids_;
  std::string name_;
  std::string path_;
};

// Whether a later change could leave the time of change as it is: it was changed too shortly before
// `now_ns`, nanoseconds since 1970, for clocks of file systems to tell.
bool too_fresh(const std::vector<FileId>& ids, std::int64_t now_ns);

}  // namespace dllm::weights
