#include "sparse.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "arguments.h"
#include "hashes.h"
#include "json.h"
#include "posix.h"
#include "source.h"

namespace dllm::sparse {

namespace {

using weights::Packer;
using weights::TensorPlace;

constexpr std::uint32_t kUint8 = 0, kString = 8, kArray = 9, kUint64 = 10;
constexpr std::uint64_t kKeys = 6;
constexpr std::uint64_t kBlockBytes = 512;  // st_blocks counts these

void put_key(Packer& out, std::string_view name, std::string_view value) {
  out.text(name).number(kString).text(value);
}

void put_key(Packer& out, std::string_view name, const std::vector<std::uint64_t>& values) {
  out.text(name).number(kArray).number(kUint64).numbers(values);
}

void put_key(Packer& out, std::string_view name, const std::vector<weights::Blake3Hash>& hashes) {
  out.text(name).number(kArray).number(kUint8).number(hashes.size() * sizeof(weights::Blake3Hash));
  for (const weights::Blake3Hash& hash : hashes) out.number(hash);
}

// A file that is gone again unless it is given its name.
class NewFile {
 public:
  explicit NewFile(const std::string& path) : path_(path), part_(path + ".part") {
    if (::access(path.c_str(), F_OK) == 0) throw weights::ModelError(path + " is there already");
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    fd_.reset(retry([&] { return ::open(part_.c_str(), flags, 0644); }));
    if (fd_) return;
    const std::string why = errno == EEXIST ? "it is there: another one writes it, or was killed"
                                            : std::strerror(errno);
    throw weights::ModelError(part_ + " cannot be written (" + why + ")");
  }
  ~NewFile() {
    if (!part_.empty()) ::unlink(part_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // All of it a hole; throws where the file system cannot hold one.
  void resize(std::uint64_t bytes) {
    check(retry([&] { return ::ftruncate(fd_.get(), static_cast<off_t>(bytes)); }),
          "cannot make " + part_ + " so long");
    struct stat status{};
    check(::fstat(fd_.get(), &status), "cannot look at " + part_);
    if (static_cast<std::uint64_t>(status.st_blocks) * kBlockBytes <= bytes / 2) return;
    throw weights::ModelError(
        "the file system of " + path_ +
        " cannot hold holes: a sparse file would be as large as the model there");
  }
  void write(std::uint64_t offset, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = check(retry([&] {
                                    return ::pwrite(fd_.get(), bytes.data(), bytes.size(),
                                                    static_cast<off_t>(offset));
                                  }),
                                  "cannot write " + part_);
      bytes.remove_prefix(static_cast<std::size_t>(count));
      offset += static_cast<std::uint64_t>(count);
    }
  }
  // Another file of that name stays what it is.
  void keep() {
    check(::fsync(fd_.get()), "cannot write " + part_);
    if (::link(part_.c_str(), path_.c_str()) != 0) {
      if (errno == EEXIST) throw weights::ModelError(path_ + " is there already");
      throw_errno("cannot make " + path_);
    }
    ::unlink(std::exchange(part_, "").c_str());
  }

 private:
  std::string path_;
  std::string part_;
  UniqueFd fd_;
};

class Writer {
 public:
  Writer(const Order& order, const std::function<void(std::uint64_t)>& told)
      : order_(order),
        told_(told),
        from_(order.from),
        out_(order.to),
        block_(weights::kChunkBytes) {
    header_ = weights::read_header(from_, order.from);
    if (header_.is_sparse) throw weights::ModelError(order.from + " is sparse already");
    if (!weights::fits_twice(from_.size_bytes())) from_.drop_cache();
  }

  Written write() {
    find_kept();
    const std::uint64_t data_at = header("").size();
    out_.resize(data_at + from_.size_bytes() - header_.data_at);
    for (const TensorPlace& place : header_.tensors) copy(place, data_at);
    pass_to(from_.size_bytes());
    if (from_.id_now() != from_.id()) {
      throw weights::ModelError(order_.from + " was changed while it was read");
    }
    const std::string sha256 = whole_.hex();
    out_.write(0, header(sha256));
    out_.keep();
    return {order_.to, sha256, data_at + from_.size_bytes() - header_.data_at, kept_bytes_};
  }

 private:
  [[nodiscard]] bool is_kept(const TensorPlace& place) const {
    return !order_.holes.contains(place.key.name);
  }

  // Before anything is read the header's size must be known.
  void find_kept() {
    for (const TensorPlace& place : header_.tensors) {
      const std::uint64_t begin = place.offset - header_.data_at;
      const std::uint64_t end = begin + place.key.size_bytes;
      if (!is_kept(place)) {
        if (!place.type_known) {
          throw weights::ModelError(place.key.name + " has a type that is not known here");
        }
        chunks_.resize(chunks_.size() + weights::chunks_in(place.key.size_bytes));
        continue;
      }
      kept_bytes_ += place.key.size_bytes;
      const bool goes_on = !kept_.empty() && begin - kept_.back() < header_.alignment;
      goes_on ? void(kept_.back() = end) : void(kept_.insert(kept_.end(), {begin, end}));
    }
    hashed_ = chunks_.begin();
  }

  // As long whatever the hash.
  [[nodiscard]] std::string header(const std::string& sha256) {
    json::Object source;
    source.text("path", order_.from).number("size_bytes", from_.size_bytes());
    source.text("sha256", sha256.empty() ? std::string(64, '0') : sha256);
    Packer out;
    out.raw("GGUF").number(header_.version);
    out.number<std::uint64_t>(header_.tensors.size()).number(header_.keys + kKeys);
    put_key(out, weights::kSparseSource, source.str());
    put_key(out, weights::kSparseIdentity, order_.identity);
    put_key(out, weights::kSparseTensors, weights::list_sha256(from_, header_));
    put_key(out, weights::kSparseHoles, holes_sha256());
    put_key(out, weights::kSparseKept, kept_);
    put_key(out, weights::kSparseChunks, chunks_);
    std::vector<std::uint8_t> rest(header_.end_at - header_.keys_at);
    if (from_.read(header_.keys_at, rest) < rest.size()) shrank();
    out.raw({reinterpret_cast<const char*>(rest.data()), rest.size()});
    std::string bytes = out.take();
    bytes.resize((bytes.size() + header_.alignment - 1) / header_.alignment * header_.alignment);
    return bytes;
  }

  [[nodiscard]] std::string holes_sha256() const {
    std::vector<std::string> names(order_.holes.begin(), order_.holes.end());
    std::ranges::sort(names);
    agent::Sha256 hash;
    for (const std::string& name : names) hash.add(name + "\n");
    return hash.hex();
  }

  // The next bytes: all are hashed, once and in order.
  std::string_view next(std::uint64_t bytes) {
    const std::span wanted = std::span(block_).first(std::min<std::uint64_t>(bytes, block_.size()));
    if (from_.read(place_, wanted) < wanted.size()) shrank();
    const std::string_view read(reinterpret_cast<const char*>(wanted.data()), wanted.size());
    whole_.add(read);
    from_.forget(place_, wanted.size());
    place_ += wanted.size();
    told_(place_);
    return read;
  }
  void pass_to(std::uint64_t place) {
    while (place_ < place) next(place - place_);
  }

  void copy(const TensorPlace& place, std::uint64_t data_at) {
    pass_to(place.offset);
    const std::uint64_t size_bytes = place.key.size_bytes, end = place.offset + size_bytes;
    for (std::uint64_t chunk = 0; place_ < end; ++chunk) {
      const std::uint64_t at = data_at + place_ - header_.data_at;
      const std::string_view read = next(end - place_);
      if (is_kept(place)) {
        out_.write(at, read);
      } else {
        *hashed_++ = weights::chunk_hash(
            {reinterpret_cast<const std::uint8_t*>(read.data()), read.size()}, size_bytes, chunk);
      }
    }
  }

  [[noreturn]] void shrank() const {
    throw weights::ModelError(order_.from + " was changed while it was read");
  }

  const Order& order_;
  const std::function<void(std::uint64_t)>& told_;
  weights::FileSource from_;
  NewFile out_;
  weights::Header header_;
  std::vector<std::uint64_t> kept_;
  std::vector<weights::Blake3Hash> chunks_;
  std::vector<weights::Blake3Hash>::iterator hashed_;
  std::vector<std::uint8_t> block_;
  agent::Sha256 whole_;
  std::uint64_t place_ = 0;  // read up to there
  std::uint64_t kept_bytes_ = 0;
};

}  // namespace

Written write_sparse(const Order& order, const std::function<void(std::uint64_t)>& told) {
  return Writer(order, told).write();
}

const char* const kSparseHelp =
    R"(usage: dllm-relay sparse --model PATH --out PATH --identity TEXT < NAMES

Writes a sparse file of a model, or of one part of a split one: everything but the tensors whose
names it is given on standard input, a line each. What these hold is told by hashes in the new
file's metadata, so that workers with files of their own can serve them. Prints {"done_bytes"} now
and then, and in the end {"path", "sha256", "size_bytes", "kept_bytes"}.

  --model PATH     the file it is made from; read once, and left as it is
  --out PATH       where nothing is yet, on a file system that holds holes
  --identity TEXT  the identity of the model, for the record
)";

namespace {

// Of standard input: the longest real lists are under 4 MiB.
constexpr std::size_t kNamesBytesMax = 16U << 20;
constexpr std::chrono::milliseconds kTellEvery{200};

Order parse_order(std::span<char* const> args) {
  Order order;
  parse_arguments(args, {kept("--model", order.from), kept("--out", order.to),
                         kept("--identity", order.identity)});
  if (order.from.empty() || order.to.empty() || order.identity.empty()) {
    throw UsageError("sparse needs --model PATH, --out PATH and --identity TEXT");
  }
  return order;
}

volatile std::sig_atomic_t g_ended = 0;

void note_end(int) {
  g_ended = 1;
}

// Whoever reads may be gone: then nobody wants the file either.
void print(const json::Object& object) {
  const std::string line = object.line();
  const bool printed = std::fputs(line.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  if (!printed) throw_errno("nobody listens");
}

}  // namespace

int sparse(std::span<char* const> args) {
  // What a pipe or a limit of file sizes refuses is said, not died of.
  for (const int signal : {SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_IGN);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, note_end);
  Order order = parse_order(args);
  std::istringstream names(read_all(STDIN_FILENO, kNamesBytesMax));
  for (std::string name; std::getline(names, name);) order.holes.insert(name);
  auto next = std::chrono::steady_clock::now();
  const Written written = write_sparse(order, [&](std::uint64_t done_bytes) {
    if (g_ended != 0) throw std::runtime_error("was told to end, and left nothing behind");
    const auto now = std::chrono::steady_clock::now();
    if (now < next) return;
    next = now + kTellEvery;
    print(json::Object().number("done_bytes", done_bytes));
  });
  json::Object object;
  object.raw("path", json::quote_bytes(written.path)).text("sha256", written.sha256);
  object.number("size_bytes", written.size_bytes).number("kept_bytes", written.kept_bytes);
  print(object);
  return kExitOk;
}

}  // namespace dllm::sparse
