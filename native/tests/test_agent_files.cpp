#include <sys/stat.h>
#include <unistd.h>

#include "agent/files.h"
#include "check.h"
#include "weights/hashes.h"

using check::TempDir;
using dllm::agent::find_files;
using dllm::agent::sampled;
using dllm::agent::Sha256;

namespace {

std::string hash_in_pieces(const std::string& data, std::size_t size) {
  Sha256 hash;
  for (std::size_t at = 0; at < data.size(); at += size) hash.add(data.substr(at, size));
  return hash.hex();
}

}  // namespace

TEST(hashes_of_the_standard) {
  CHECK(hash_in_pieces("", 1) ==
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hash_in_pieces("abc", 1) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string long_one = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  for (const std::size_t size : {1, 7, 55, 56, 64}) {
    CHECK(hash_in_pieces(long_one, size) ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  }
  CHECK(hash_in_pieces(std::string(1'000'000, 'a'), 999) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(pieces_of_an_identity) {
  CHECK(sampled(0).size() == 1 && sampled(4 << 20).size() == 1);
  const auto pieces = sampled((4 << 20) + 1);
  CHECK(pieces.size() == 10);
  CHECK(pieces.front() == std::pair(std::uint64_t{0}, std::uint64_t{1 << 20}));
  CHECK(pieces.back().first == std::uint64_t{25} * 131'072);
}

TEST(files_are_found_each_once_whatever_links_do) {
  const TempDir folder;
  ::mkdir((folder / "a").c_str(), 0700);
  ::mkdir((folder / "a/b").c_str(), 0700);
  check::spill(folder / "a/b/one.gguf", "12345");
  check::spill(folder / "two.gguf", "1");
  check::spill(folder / "other.txt", "");
  static_cast<void>(::link((folder / "a/b/one.gguf").c_str(), (folder / "a/b/same.GGUF").c_str()));
  static_cast<void>(::symlink(folder.path().c_str(), (folder / "a/b/loop").c_str()));
  static_cast<void>(::symlink((folder / "nowhere").c_str(), (folder / "gone.gguf").c_str()));
  const auto walk = find_files({folder.path(), folder / "a", folder / "missing"}, ".gguf", 6, 100);
  CHECK(walk.complete && walk.files.size() == 4);
  CHECK(walk.files[0].path == folder / "a/b/one.gguf" && walk.files[0].size_bytes == 5);
  CHECK(walk.files[0].mtime_ns > 0);
  CHECK(walk.files[1].path == folder / "a/b/same.GGUF");
  CHECK(!walk.files[0].inode.empty() && walk.files[0].inode == walk.files[1].inode);
  CHECK(walk.files[2].path == folder / "gone.gguf" && walk.files[2].inode.empty());
}

TEST(walks_are_bounded) {
  const TempDir folder;
  ::mkdir((folder / "a").c_str(), 0700);
  check::spill(folder / "a/one.gguf", "");
  check::spill(folder / "two.gguf", "");
  CHECK(find_files({folder.path()}, ".gguf", 0, 100).files.size() == 1);
  const auto walk = find_files({folder.path()}, ".gguf", 6, 1);
  CHECK(!walk.complete && walk.files.size() == 1);
}

TEST(identities) {
  const TempDir folder;
  check::spill(folder / "empty", "");
  CHECK(dllm::agent::identity_of(folder / "empty") == "1-0-e3b0c44298fc1c149afbf4c8996fb924");
  CHECK(!check::thrown<std::exception>([&] { dllm::agent::identity_of(folder.path()); }).empty());
  CHECK(!check::thrown<std::exception>([&] { dllm::agent::identity_of(folder / "no"); }).empty());
}

RUN_TESTS()
