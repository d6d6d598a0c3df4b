#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "answer.h"
#include "hashed_model.h"
#include "posix.h"
#include "protocol/json.h"
#include "weights/resident_weights.h"
#include "work.h"

namespace dllm::agent {

namespace {

namespace fs = std::filesystem;

// llama.cpp asks by hash for tensors of more than so many bytes.
constexpr std::uint64_t kHashedAboveBytes = 10U << 20;
constexpr std::size_t kNameDigits = 16;
constexpr std::string_view kPart = ".part";
constexpr std::size_t kListedMax = 65'536;

// A tensor a worker could be asked for, and the file it would be in.
struct Wanted {
  weights::Resident tensor;
  std::string name;
};

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

// As rpc-server --cache finds it.
std::string stock_directory() {
  if (const std::string named = variable("LLAMA_CACHE"); !named.empty()) return named + "/rpc";
#ifdef __APPLE__
  const std::string caches = variable("HOME") + "/Library/Caches";
#else
  const std::string named = variable("XDG_CACHE_HOME");
  const std::string caches = named.empty() ? variable("HOME") + "/.cache" : named;
#endif
  return caches + "/llama.cpp/rpc";
}

std::string directory_in(const json::Value& request) {
  std::string directory = json::text_of(request, "directory", "");
  if (directory.empty()) directory = stock_directory();
  if (!directory.starts_with('/') || directory.find('\0') != std::string::npos) {
    throw Refusal(kBadRequest, "'directory' must be an absolute path");
  }
  return directory;
}

bool is_cached_name(std::string_view name) {
  if (name.ends_with(kPart)) name.remove_suffix(kPart.size());
  return name.size() == kNameDigits &&
         name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::uint64_t size_of(const std::string& path) {
  struct stat status {};
  const bool there = ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
  return there ? static_cast<std::uint64_t>(status.st_size) : 0;
}

std::vector<Wanted> wanted_of(const weights::ModelFiles& files,
                              const std::vector<weights::TensorSums>& sums) {
  std::vector<Wanted> wanted;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const weights::TensorPlace& place = files.tensors()[i];
    if (place.key.size_bytes <= kHashedAboveBytes) continue;
    wanted.push_back({{&files, &place, &sums[i]}, hex(sums[i].fnv1a)});
  }
  return wanted;
}

// One file of the cache in the making: nobody sees it before it is whole and right.
class Seed {
 public:
  Seed(const std::string& directory, const Wanted& wanted)
      : tensor_(wanted.tensor), path_(directory + "/" + wanted.name), part_(path_ + kPart.data()) {
    file_ = open_at(AT_FDCWD, part_, O_RDWR | O_CREAT, 0600);
    if (retry([&] { return ::flock(file_.get(), LOCK_EX | LOCK_NB); }) != 0) {
      throw Refusal(kBusy, path_ + " is being written already");
    }
    // What an earlier try left begins anew at a whole chunk.
    chunk_ = std::min(size_of(part_), size_bytes()) / weights::kChunkBytes;
    check(::ftruncate(file_.get(), at(chunk_)), "cannot write " + part_);
    check(::lseek(file_.get(), 0, SEEK_END), "cannot write " + part_);
  }

  [[nodiscard]] bool filled() const { return chunk_ == weights::chunks_in(size_bytes()); }

  void add_chunk() {
    const bool fine = weights::read_chunk(tensor_, chunk_, buffer_) &&
                      weights::xxh64(buffer_) == tensor_.sums->chunks[chunk_];
    if (!fine) give_up(tensor_.place->key.name + " has changed since it was hashed; try again");
    const char* const data = reinterpret_cast<const char*>(buffer_.data());
    try {
      write_all(file_.get(), {data, buffer_.size()}, "cannot write " + part_);
    } catch (const std::system_error& error) {
      give_up(error.code() == std::errc::no_space_on_device ? path_ + ": the disk is full"
                                                            : error.what());
    }
    ++chunk_;
  }

  void finish() {
    weights::Xxh64 hash;
    for (std::uint64_t chunk = 0; chunk < chunk_; ++chunk) {
      buffer_.resize(weights::chunk_bytes(size_bytes(), chunk));
      const ssize_t got =
          retry([&] { return ::pread(file_.get(), buffer_.data(), buffer_.size(), at(chunk)); });
      if (got > 0) hash.add({buffer_.data(), static_cast<std::size_t>(got)});
    }
    if (hash.value() != tensor_.sums->xxh64) give_up(part_ + " is not what was written to it");
    check(::fsync(file_.get()), "cannot write " + part_);
    check(::rename(part_.c_str(), path_.c_str()), "cannot write " + path_);
  }

 private:
  [[nodiscard]] std::uint64_t size_bytes() const { return tensor_.place->key.size_bytes; }
  static off_t at(std::uint64_t chunk) { return static_cast<off_t>(chunk * weights::kChunkBytes); }

  [[noreturn]] void give_up(const std::string& why) const {
    ::unlink(part_.c_str());
    throw Refusal(kFailed, why);
  }

  weights::Resident tensor_;
  std::string path_;
  std::string part_;
  UniqueFd file_;
  std::uint64_t chunk_ = 0;
  std::vector<std::uint8_t> buffer_;
};

std::uint64_t there_bytes(const std::string& directory, const Wanted& wanted) {
  const std::uint64_t size_bytes = wanted.tensor.place->key.size_bytes;
  // One that was cut short is no good: the worker would take it as it is.
  return size_of(directory + "/" + wanted.name) == size_bytes ? size_bytes : 0;
}

// What has yet to be written of it.
std::uint64_t missing_of(const std::string& directory, const Wanted& wanted) {
  if (there_bytes(directory, wanted) > 0) return 0;
  const std::uint64_t size_bytes = wanted.tensor.place->key.size_bytes;
  return size_bytes - std::min(size_bytes, size_of(directory + "/" + wanted.name + kPart.data()));
}

void seed_for(const std::string& directory, const std::vector<Wanted>& all, WorkTime& time) {
  for (const Wanted& wanted : all) {
    if (there_bytes(directory, wanted) > 0) continue;
    Seed seed(directory, wanted);
    while (!seed.filled()) {
      seed.add_chunk();
      if (time.over()) return;
    }
    seed.finish();
    if (time.over()) return;
  }
}

// Rounded up.
std::string mib(std::uint64_t bytes) {
  constexpr std::uint64_t kMib = 1U << 20;
  return std::to_string((bytes + kMib - 1) / kMib) + " MiB";
}

void check_room(const std::string& directory, std::uint64_t needed_bytes) {
  const std::uint64_t free = disk_free_bytes(directory);
  if (needed_bytes <= free) return;
  throw Refusal(kFailed, "the disk of " + directory + " is too full: " + mib(needed_bytes) +
                             " are needed and " + mib(free) + " free");
}

std::string file_row(const std::string& name, const struct stat& status) {
  json::Object object;
  object.text("name", name).number("size_bytes", static_cast<std::uint64_t>(status.st_size));
  return object.number("mtime_s", static_cast<std::int64_t>(status.st_mtime)).str();
}

}  // namespace

std::string cached(const json::Value& request) {
  const std::string directory = directory_in(request);
  std::vector<std::string> rows;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(directory.c_str()), ::closedir);
  if (!listing && errno != ENOENT) throw_errno("cannot read " + directory);
  while (const dirent* entry = listing ? ::readdir(listing.get()) : nullptr) {
    struct stat status {};
    const std::string name = entry->d_name;
    const bool ours = is_cached_name(name) && rows.size() < kListedMax;
    if (ours && ::lstat((directory + "/" + name).c_str(), &status) == 0) {
      if (S_ISREG(status.st_mode)) rows.push_back(file_row(name, status));
    }
  }
  std::ranges::sort(rows);
  json::Object object;
  object.raw("directory", json::quote_bytes(directory));
  return object.number("free_bytes", disk_free_bytes(directory)).raw("files", json::list(rows)).str();
}

std::string uncache(const json::Value& request) {
  const std::string directory = directory_in(request);
  std::uint64_t freed_bytes = 0;
  for (const std::string& name : json::texts_of(request, "names")) {
    if (!is_cached_name(name)) throw Refusal(kBadRequest, name + " is no file of a cache");
    const std::string path = directory + "/" + name;
    const std::uint64_t size_bytes = size_of(path);
    if (::unlink(path.c_str()) == 0) {
      freed_bytes += size_bytes;
    } else if (errno != ENOENT) {
      throw_errno("cannot delete " + path);
    }
  }
  return json::Object().number("freed_bytes", freed_bytes).str();
}

std::string seed(const json::Value& request) {
  const std::string directory = directory_in(request);
  const bool dry = json::flag_of(request, "dry", false);
  WorkTime time(request);
  const HashedModel model(path_in(request), time);
  json::Object object;
  object.number("hashed_bytes", model.done_bytes()).number("model_bytes", model.size_bytes());
  object.raw("directory", json::quote_bytes(directory));
  std::vector<Wanted> all;
  if (model.done()) all = wanted_of(model.files(), model.sums());
  std::uint64_t size_bytes = 0, missing_bytes = 0, seeded_bytes = 0;
  for (const Wanted& wanted : all) {
    size_bytes += wanted.tensor.place->key.size_bytes;
    missing_bytes += missing_of(directory, wanted);
  }
  if (!dry && !all.empty()) {
    check_room(directory, missing_bytes);
    fs::create_directories(directory);
    seed_for(directory, all, time);
  }
  std::vector<std::string> names;
  for (const Wanted& wanted : all) {
    seeded_bytes += there_bytes(directory, wanted);
    names.push_back(wanted.name);
  }
  object.number("size_bytes", size_bytes).number("seeded_bytes", seeded_bytes);
  object.raw("names", json::array(names)).number("free_bytes", disk_free_bytes(directory));
  return object.flag("complete", model.done() && (dry || seeded_bytes == size_bytes)).str();
}

}  // namespace dllm::agent
