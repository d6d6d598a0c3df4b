// Model files: finding them, and telling which bytes one holds.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "posix.h"

namespace dllm::agent {

struct FoundFile {
  std::string path;
  std::uint64_t size_bytes = 0;
  std::int64_t mtime_ns = 0;
  std::string inode;  // the same for one file under two names; empty for a link that leads nowhere
};

// When a file changed last.
std::int64_t mtime_ns(const struct stat& status);

struct Walk {
  std::vector<FoundFile> files;  // by path
  bool complete = true;          // no bound ended it
};

// Files whose name ends like that (letter case aside), below some folders and `depth` levels of
// folders in them. Follows symbolic links, each directory once; links that lead nowhere count.
Walk find_files(const std::vector<std::string>& folders, const std::string& suffix, int depth,
                std::size_t limit);

// Offset and length, in bytes, of the pieces an identity reads, in order.
std::vector<std::pair<std::uint64_t, std::uint64_t>> sampled(std::uint64_t size_bytes);

struct OpenFile {
  UniqueFd fd;
  std::uint64_t size_bytes = 0;
};

// For reading. Throws when it cannot be read, or is no regular file.
OpenFile open_file(const std::string& path);

// Which bytes a file holds, as backends/models/identity.py defines it. Throws when
// it cannot be read.
std::string identity_of(const std::string& path);

}  // namespace dllm::agent
