// All files of a model, opened: one GGUF, or every part of a split one.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gguf.h"
#include "source.h"

namespace dllm::weights {

// The parts of a split model by the path of any ("name-00001-of-0000N.gguf", or with ".GGUF"), in
// order; else the path itself.
std::vector<std::string> part_paths(const std::string& path);

class ModelFiles {
 public:
  // Of files already open, in the order of the parts, and what to call them.
  // Throws ModelError: one is no GGUF, or they do not belong together.
  explicit ModelFiles(std::vector<std::unique_ptr<Source>> sources,
                      const std::vector<std::string>& names);

  // All tensors: file by file, in the order they lie there.
  [[nodiscard]] const std::vector<TensorPlace>& tensors() const { return tensors_; }
  [[nodiscard]] Source& source(const TensorPlace& place) const { return *sources_[place.file]; }
  [[nodiscard]] std::uint64_t tensor_bytes() const;
  // Whether any of the files is sparse: some of its tensors are holes.
  [[nodiscard]] bool is_sparse() const { return is_sparse_; }

 private:
  void add(const Header& header, std::uint32_t file);

  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<TensorPlace> tensors_;
  bool is_sparse_ = false;
};

// A model on disk, with what tells its files from later ones.
struct OpenModel {
  ModelFiles files;
  std::vector<const FileSource*> on_disk;  // the same files, owned by `files`

  // When they were opened, with whole paths: however one is named, it is the same file.
  [[nodiscard]] std::vector<FileId> ids() const;
  // Throws ModelError when any of them has changed since.
  void check_unchanged() const;
};

// `path`: of any part. What is read is kept out of the file cache where the model does not fit in
// memory twice. Throws ModelError.
OpenModel open_model(const std::string& path);

}  // namespace dllm::weights
