#include <algorithm>

#include "check.h"
#include "weights/hashes.h"

using dllm::weights::Bytes;
using dllm::weights::Fnv1a64;
using dllm::weights::Xxh64;

namespace {

Bytes bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

// 0, 1, 2 … 250, 0, 1 …
std::string counting(std::size_t size) {
  std::string text;
  for (std::size_t i = 0; i < size; ++i) text += static_cast<char>(i % 251);
  return text;
}

std::uint64_t fnv1a(const std::string& text) {
  Fnv1a64 hash;
  hash.add(bytes_of(text));
  return hash.value();
}

}  // namespace

// From the xxhash package; tests/unit/machines/test_host_tensors.py compares more with it.
TEST(xxh64_of_lengths_around_its_borders) {
  const std::pair<std::size_t, std::uint64_t> known[] = {
      {0, 0xef46db3751d8e999},      {1, 0xe934a84adb052768},   {3, 0xe5c7bb4533bc65dd},
      {4, 0xffced8604453cc1e},      {7, 0x14cc643f630c72d2},   {8, 0x884a173614b81b8d},
      {12, 0x424af23f1f08dca5},     {31, 0xc346d2b59b4d8ee1},  {32, 0xcbf59c5116ff32b4},
      {33, 0x0c535d1acafb8ead},     {39, 0x00a396ef1679a859},  {63, 0xe26aa9e2a95f8e4f},
      {64, 0xf7c67301db6713f0},     {100, 0x6ac1e58032166597}, {1024, 0x138e26c65048ce29},
      {100003, 0xcbab15ce50b1eb20},
  };
  for (const auto& [size, value] : known)
    CHECK(dllm::weights::xxh64(bytes_of(counting(size))) == value);
}

TEST(fnv1a_of_the_authors) {
  CHECK(fnv1a("") == 0xcbf29ce484222325);
  CHECK(fnv1a("a") == 0xaf63dc4c8601ec8c);
  CHECK(fnv1a("foobar") == 0x85944171f73967e8);
}

TEST(pieces_give_the_hash_of_the_whole) {
  const std::string all = counting(1000);
  for (const std::size_t size : {1, 3, 31, 32, 33, 64, 999}) {
    Xxh64 xxh64;
    Fnv1a64 fnv;
    for (std::size_t at = 0; at < all.size(); at += size) {
      const std::string piece = all.substr(at, size);
      xxh64.add(bytes_of(piece));
      fnv.add(bytes_of(piece));
    }
    CHECK(xxh64.value() == dllm::weights::xxh64(bytes_of(all)));
    CHECK(fnv.value() == fnv1a(all));
  }
}

TEST(a_hash_goes_on_where_another_stopped) {
  const std::string all = counting(1000);
  for (const std::size_t at : {0, 32, 64, 992}) {
    Xxh64 first;
    first.add(bytes_of(all.substr(0, at)));
    Xxh64 second(first.lanes(), at);
    second.add(bytes_of(all.substr(at)));
    CHECK(second.value() == dllm::weights::xxh64(bytes_of(all)));
  }
}

RUN_TESTS()
