#include <algorithm>

#include "check.h"
#include "weights/hashes.h"

using dllm::weights::Bytes;
using dllm::weights::Fnv1a64;

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

TEST(fnv1a_of_the_authors) {
  CHECK(fnv1a("") == 0xcbf29ce484222325);
  CHECK(fnv1a("a") == 0xaf63dc4c8601ec8c);
  CHECK(fnv1a("foobar") == 0x85944171f73967e8);
}

TEST(pieces_give_the_hash_of_the_whole) {
  const std::string all = counting(1000);
  for (const std::size_t size : {1, 3, 31, 32, 33, 64, 999}) {
    Fnv1a64 fnv;
    for (std::size_t at = 0; at < all.size(); at += size) {
      fnv.add(bytes_of(all.substr(at, size)));
    }
    CHECK(fnv.value() == fnv1a(all));
  }
}

// The lengths and bytes of the published test vectors, and some beside a chunk of ours; from the
// blake3 package, with which tests/unit/machines/test_agent_tensors.py compares more.
TEST(blake3_of_the_published_lengths) {
  const std::pair<std::size_t, std::string> known[] = {
      {0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"},
      {1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"},
      {63, "e9bc37a594daad83be9470df7f7b3798297c3d834ce80ba85d6e207627b7db7b"},
      {64, "4eed7141ea4a5cd4b788606bd23f46e212af9cacebacdc7d1f4c6dc7f2511b98"},
      {65, "de1e5fa0be70df6d2be8fffd0e99ceaa8eb6e8c93a63f2d8d1c30ecb6b263dee"},
      {1023, "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11"},
      {1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"},
      {1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"},
      {2048, "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a"},
      {2049, "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030"},
      {3072, "b98cb0ff3623be03326b373de6b9095218513e64f1ee2edd2525c7ad1e5cffd2"},
      {3073, "7124b49501012f81cc7f11ca069ec9226cecb8a2c850cfe644e327d22d3e1cd3"},
      {4097, "9b4052b38f1c5fc8b1f9ff7ac7b27cd242487b3d890d15c96a1c25b8aa0fb995"},
      {5121, "628bd2cb2004694adaab7bbd778a25df25c47b9d4155a55f8fbd79f2fe154cff"},
      {7168, "61da957ec2499a95d6b8023e2b0e604ec7f6b50e80a9678b89d2628e99ada77a"},
      {8192, "aae792484c8efe4f19e2ca7d371d8c467ffb10748d8a5a1ae579948f718a2a63"},
      {8193, "bab6c09cb8ce8cf459261398d2e7aef35700bf488116ceb94a36d0f5f1b7bc3b"},
      {16384, "f875d6646de28985646f34ee13be9a576fd515f76b5b0a26bb324735041ddde4"},
      {31744, "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47"},
      {102400, "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085"},
      {1048576, "74cb441fd087764ca9c3694da742ebe30cbeb3060a17009ca81825c7a8d10343"},
      {1048577, "2f053cd7472cf0cd2f9adaf45c1180255b91b9a865404a63671a0ee5f792ed33"},
      {3145828, "1d1d9d755743c8bf0a222cfc335427bded24b06105b8ee2aca207f849e74d1b8"},
  };
  for (const auto& [size, value] : known) {
    CHECK(dllm::weights::hex(dllm::weights::blake3(bytes_of(counting(size)))) == value);
  }
}

TEST(blake3_of_pieces_is_that_of_the_whole) {
  const std::string all = counting(5 * 4096 + 100);
  for (const std::size_t size : {1024, 2048, 4096, 8192, 16384}) {
    std::vector<dllm::weights::Blake3Node> nodes;
    for (std::size_t at = 0; at < all.size(); at += size) {
      const std::string piece = all.substr(at, size);
      nodes.push_back(dllm::weights::blake3_node(bytes_of(piece), at));
    }
    CHECK(dllm::weights::blake3_of(nodes) == dllm::weights::blake3(bytes_of(all)));
    std::swap(nodes[0], nodes[1]);
    CHECK(dllm::weights::blake3_of(nodes) != dllm::weights::blake3(bytes_of(all)));
  }
}

RUN_TESTS()
