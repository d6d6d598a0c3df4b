#include "chunk_reader.h"

#include <unistd.h>

#include <exception>

#include "hashes.h"
#include "link/sockets.h"

namespace dllm::weights {

void look(Look& look) {
  for (std::size_t i = 0; look.hash && i < look.residents.size(); ++i) {
    if (!read_chunk(look.residents[i], look.chunk, look.bytes)) continue;
    const std::uint64_t size_bytes = look.residents[i].place->key.size_bytes;
    if (chunk_hash(look.bytes, size_bytes, look.chunk) != *look.hash) continue;
    look.found = i;
    return;
  }
}

ChunkReader::ChunkReader() {
  set_blocking(wake_.reader.get(), false);
  set_blocking(wake_.writer.get(), false);
  thread_ = std::thread([this] { run(); });
}

ChunkReader::~ChunkReader() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ChunkReader::ask(Look look) {
  ++under_way_;
  const std::lock_guard lock(mutex_);
  asked_.push_back(std::move(look));
  changed_.notify_all();
}

std::optional<Look> ChunkReader::take() {
  char taken[kLooksMax];
  while (::read(wake_.reader.get(), taken, sizeof taken) > 0) continue;
  const std::lock_guard lock(mutex_);
  if (looked_.empty()) return std::nullopt;
  --under_way_;
  Look first = std::move(looked_.front());
  looked_.pop_front();
  return first;
}

void ChunkReader::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !asked_.empty(); });
    if (ending_) return;
    Look next = std::move(asked_.front());
    asked_.pop_front();
    lock.unlock();
    try {
      look(next);
    } catch (const std::exception& error) {
      // Not found: its bytes cross the link.
      log(Level::kError, error.what());
    }
    lock.lock();
    looked_.push_back(std::move(next));
    static_cast<void>(!::write(wake_.writer.get(), "l", 1));
  }
}

}  // namespace dllm::weights
