#include "model_files.h"

#include <algorithm>
#include <filesystem>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <functional>
#include <unordered_set>

namespace dllm::weights {

namespace {

constexpr std::size_t kDigits = 5;
constexpr std::string_view kOf = "-of-";
constexpr std::string_view kSuffix = ".gguf";
// "-00001-of-00002.gguf"
constexpr std::size_t kTailBytes = 1 + kDigits + kOf.size() + kDigits + kSuffix.size();
constexpr std::uint32_t kPartsMax = 1024;

// A number of five digits; 0 where there is none.
std::uint32_t number_in(std::string_view text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : 0;
}

// Letters of either case, as the catalogue finds them too.
bool is_suffix(std::string_view text) {
  return std::ranges::equal(text, kSuffix, [](char one, char other) {
    return std::tolower(static_cast<unsigned char>(one)) == other;
  });
}

std::string file_name(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

std::vector<std::string> part_paths(const std::string& path) {
  if (file_name(path).size() <= kTailBytes) return {path};
  const std::string stem = path.substr(0, path.size() - kTailBytes);
  const std::string_view tail = std::string_view(path).substr(stem.size());
  const std::uint32_t number = number_in(tail.substr(1, kDigits));
  const std::uint32_t count = number_in(tail.substr(1 + kDigits + kOf.size(), kDigits));
  const std::string_view suffix = tail.substr(kTailBytes - kSuffix.size());
  const bool is_part =
      tail[0] == '-' && tail.substr(1 + kDigits, kOf.size()) == kOf && is_suffix(suffix);
  if (!is_part || number == 0 || number > count || count > kPartsMax) return {path};
  std::vector<std::string> paths;
  for (std::uint32_t part = 1; part <= count; ++part) {
    std::array<char, kTailBytes + 1> text{};
    std::snprintf(text.data(), text.size(), "-%05u-of-%05u", part, count);
    paths.push_back(stem + text.data());
    paths.back() += suffix;
  }
  return paths;
}

ModelFiles::ModelFiles(std::vector<std::unique_ptr<Source>> sources,
                       const std::vector<std::string>& names)
    : sources_(std::move(sources)) {
  std::vector<bool> sparse;
  for (std::uint32_t file = 0; file < sources_.size(); ++file) {
    const Header header = read_header(*sources_[file], names[file]);
    sparse.push_back(header.is_sparse);
    const bool alone = sources_.size() == 1 && header.parts <= 1;
    if (!alone && (header.parts != sources_.size() || header.part != file)) {
      throw ModelError(names[file] + " is part " + std::to_string(header.part + 1) + " of " +
                       std::to_string(header.parts) +
                       " by what it says, and its name says another");
    }
    add(header, file);
  }
  if (std::ranges::adjacent_find(sparse, std::ranges::not_equal_to()) != sparse.end()) {
    throw ModelError("of the parts of " + names[0] + " some are sparse, and others do not say so");
  }
  std::unordered_set<std::string_view> seen;
  for (const TensorPlace& place : tensors_) {
    if (!seen.insert(place.key.name).second) {
      throw ModelError(names[place.file] + " holds " + place.key.name +
                       ", which another part holds too");
    }
  }
}

void ModelFiles::add(const Header& header, std::uint32_t file) {
  is_sparse_ = is_sparse_ || header.is_sparse;
  for (TensorPlace place : header.tensors) {
    place.file = file;
    tensors_.push_back(std::move(place));
  }
}

std::uint64_t ModelFiles::tensor_bytes() const {
  std::uint64_t bytes = 0;
  for (const TensorPlace& place : tensors_) bytes += place.key.size_bytes;
  return bytes;
}

std::vector<FileId> OpenModel::ids() const {
  std::vector<FileId> ids;
  for (const FileSource* const file : on_disk) {
    std::error_code error;
    const std::filesystem::path whole = std::filesystem::canonical(file->id().path, error);
    ids.push_back(file->id());
    if (!error) ids.back().path = whole.string();
  }
  return ids;
}

void OpenModel::check_unchanged() const {
  for (const FileSource* const file : on_disk) {
    if (file->id_now() != file->id()) {
      throw ModelError(file->id().path + " was changed while it was read");
    }
  }
}

OpenModel open_model(const std::string& path) {
  std::vector<std::unique_ptr<Source>> sources;
  std::vector<const FileSource*> on_disk;
  const std::vector<std::string> paths = part_paths(path);
  std::uint64_t size_bytes = 0;
  std::vector<FileSource*> opened;
  for (const std::string& part : paths) {
    auto source = std::make_unique<FileSource>(part);
    size_bytes += source->size_bytes();
    opened.push_back(source.get());
    sources.push_back(std::move(source));
  }
  if (!fits_twice(size_bytes)) std::ranges::for_each(opened, &FileSource::drop_cache);
  on_disk.assign(opened.begin(), opened.end());
  return {ModelFiles(std::move(sources), paths), std::move(on_disk)};
}

}  // namespace dllm::weights
