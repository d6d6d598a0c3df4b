#include "blake3.h"

#include <algorithm>
#include <bit>
#include <cstring>

// What is inlined into a function for AVX2 or AVX-512 has its registers.
#define DLLM_INLINE inline __attribute__((always_inline))

namespace dllm::weights {

namespace {

using Bytes = std::span<const std::uint8_t>;
using Words = std::array<std::uint32_t, 8>;

static_assert(std::endian::native == std::endian::little, "words are read as they lie");

constexpr Words kStart = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
constexpr std::size_t kBlockBytes = 64, kLeafBytes = 1024, kNodeBytes = 32;
constexpr std::size_t kLeafBlocks = kLeafBytes / kBlockBytes;
constexpr std::uint32_t kLeafStart = 1, kLeafEnd = 2, kParent = 4, kRoot = 8;
constexpr std::size_t kRounds = 7, kWords = 16;

// Which word of a block each step of a round takes.
constexpr auto kSchedule = [] {
  constexpr std::array<std::uint8_t, kWords> kMoved = {2, 6,  3,  10, 7, 0,  4,  13,
                                                       1, 11, 12, 5,  9, 14, 15, 8};
  std::array<std::array<std::uint8_t, kWords>, kRounds> rows{};
  for (std::uint8_t i = 0; i < kWords; ++i) rows[0][i] = i;
  for (std::size_t row = 1; row < kRounds; ++row) {
    for (std::size_t i = 0; i < kWords; ++i) rows[row][i] = rows[row - 1][kMoved[i]];
  }
  return rows;
}();

template <int kBits, typename Word>
DLLM_INLINE void turn(Word& word) {
  word = (word >> kBits) | (word << (32 - kBits));
}

template <typename Word>
DLLM_INLINE void mix(Word& a, Word& b, Word& c, Word& d, const Word& one, const Word& two) {
  a = a + b + one;
  d ^= a;
  turn<16>(d);
  c = c + d;
  b ^= c;
  turn<12>(b);
  a = a + b + two;
  d ^= a;
  turn<8>(d);
  c = c + d;
  b ^= c;
  turn<7>(b);
}

// A word is a number, or the same word of several blocks.
template <typename Word>
DLLM_INLINE void compress(Word* hash, const Word* block, const Word& count_low,
                          const Word& count_high, std::uint32_t bytes, std::uint32_t flags) {
  Word v0 = hash[0], v1 = hash[1], v2 = hash[2], v3 = hash[3];
  Word v4 = hash[4], v5 = hash[5], v6 = hash[6], v7 = hash[7];
  Word v8 = Word{} + kStart[0], v9 = Word{} + kStart[1];
  Word v10 = Word{} + kStart[2], v11 = Word{} + kStart[3];
  Word v12 = count_low, v13 = count_high, v14 = Word{} + bytes, v15 = Word{} + flags;
  for (const auto& row : kSchedule) {
    mix(v0, v4, v8, v12, block[row[0]], block[row[1]]);
    mix(v1, v5, v9, v13, block[row[2]], block[row[3]]);
    mix(v2, v6, v10, v14, block[row[4]], block[row[5]]);
    mix(v3, v7, v11, v15, block[row[6]], block[row[7]]);
    mix(v0, v5, v10, v15, block[row[8]], block[row[9]]);
    mix(v1, v6, v11, v12, block[row[10]], block[row[11]]);
    mix(v2, v7, v8, v13, block[row[12]], block[row[13]]);
    mix(v3, v4, v9, v14, block[row[14]], block[row[15]]);
  }
  hash[0] = v0 ^ v8, hash[1] = v1 ^ v9, hash[2] = v2 ^ v10, hash[3] = v3 ^ v11;
  hash[4] = v4 ^ v12, hash[5] = v5 ^ v13, hash[6] = v6 ^ v14, hash[7] = v7 ^ v15;
}

// Inputs of one size that lie one behind the other.
struct Row {
  const std::uint8_t* data;
  std::size_t count;
  std::size_t blocks;  // of each
  std::uint64_t first;  // the number of the first leaf; 0 for parents
  std::uint32_t flags, start, end;
};

// Hashes as many inputs at once as a vector has numbers, from `at` on.
template <typename Vector>
DLLM_INLINE void hash_some(const Row& row, std::size_t at, std::uint8_t* nodes) {
  constexpr std::size_t kLanes = sizeof(Vector) / sizeof(std::uint32_t);
  const std::size_t lanes = std::min(kLanes, row.count - at);
  const std::size_t input_bytes = row.blocks * kBlockBytes;
  Vector hash[8], low{}, high{};
  for (std::size_t i = 0; i < 8; ++i) hash[i] = Vector{} + kStart[i];
  for (std::size_t lane = 0; lane < lanes && row.start == kLeafStart; ++lane) {
    low[lane] = static_cast<std::uint32_t>(row.first + at + lane);
    high[lane] = static_cast<std::uint32_t>((row.first + at + lane) >> 32);
  }
  for (std::size_t block = 0; block < row.blocks; ++block) {
    alignas(Vector) std::uint32_t words[kWords][kLanes] = {};
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      std::uint32_t own[kWords];
      std::memcpy(own, row.data + (at + lane) * input_bytes + block * kBlockBytes, kBlockBytes);
      for (std::size_t word = 0; word < kWords; ++word) words[word][lane] = own[word];
    }
    Vector message[kWords];
    std::memcpy(message, words, sizeof message);
    const std::uint32_t flags = row.flags | (block == 0 ? row.start : 0) |
                                (block + 1 == row.blocks ? row.end : 0);
    compress(hash, message, low, high, kBlockBytes, flags);
  }
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    Words out;
    for (std::size_t i = 0; i < 8; ++i) out[i] = hash[i][lane];
    std::memcpy(nodes + (at + lane) * kNodeBytes, out.data(), kNodeBytes);
  }
}

template <typename Vector>
DLLM_INLINE void hash_all(const Row& row, std::uint8_t* nodes) {
  constexpr std::size_t kLanes = sizeof(Vector) / sizeof(std::uint32_t);
  for (std::size_t at = 0; at < row.count; at += kLanes) hash_some<Vector>(row, at, nodes);
}

using Four = std::uint32_t __attribute__((vector_size(16)));

void hash_by_four(const Row& row, std::uint8_t* nodes) { hash_all<Four>(row, nodes); }

#ifdef __x86_64__
using Eight = std::uint32_t __attribute__((vector_size(32)));

__attribute__((target("avx2"))) void hash_by_eight(const Row& row, std::uint8_t* nodes) {
  hash_all<Eight>(row, nodes);
}

using Sixteen = std::uint32_t __attribute__((vector_size(64)));

__attribute__((target("avx512f"))) void hash_by_sixteen(const Row& row, std::uint8_t* nodes) {
  hash_all<Sixteen>(row, nodes);
}
#endif

// `nodes` may be where the inputs are: an input is read before its node is written.
void hash_row(const Row& row, std::uint8_t* nodes) {
#ifdef __x86_64__
  static const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0;
  if (has_avx512 && row.count > 8) return hash_by_sixteen(row, nodes);
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2 && row.count > 4) return hash_by_eight(row, nodes);
#endif
  hash_by_four(row, nodes);
}

Blake3Node bytes_of(const Words& words) {
  Blake3Node node;
  std::memcpy(node.data(), words.data(), node.size());
  return node;
}

Blake3Node parent(const Blake3Node& left, const Blake3Node& right, std::uint32_t root) {
  std::uint32_t block[kWords];
  std::memcpy(block, left.data(), kNodeBytes);
  std::memcpy(block + 8, right.data(), kNodeBytes);
  Words hash = kStart;
  compress<std::uint32_t>(hash.data(), block, 0, 0, kBlockBytes, kParent | root);
  return bytes_of(hash);
}

Blake3Node leaf(Bytes bytes, std::uint64_t number, std::uint32_t root) {
  Words hash = kStart;
  const std::size_t blocks = std::max<std::size_t>(1, (bytes.size() + 63) / kBlockBytes);
  for (std::size_t i = 0; i < blocks; ++i) {
    const Bytes part = bytes.subspan(i * kBlockBytes).first(
        std::min(kBlockBytes, bytes.size() - i * kBlockBytes));
    std::uint32_t block[kWords] = {};
    if (!part.empty()) std::memcpy(block, part.data(), part.size());
    const std::uint32_t flags =
        (i == 0 ? kLeafStart : 0) | (i + 1 == blocks ? kLeafEnd | root : 0);
    compress<std::uint32_t>(hash.data(), block, static_cast<std::uint32_t>(number),
                            static_cast<std::uint32_t>(number >> 32),
                            static_cast<std::uint32_t>(part.size()), flags);
  }
  return bytes_of(hash);
}

Blake3Node node_at(const std::uint8_t* nodes, std::size_t index) {
  Blake3Node node;
  std::memcpy(node.data(), nodes + index * kNodeBytes, kNodeBytes);
  return node;
}

// Of a power of two of leaves, at least two.
Blake3Node full_tree(Bytes bytes, std::uint64_t number, std::uint32_t root) {
  std::size_t count = bytes.size() / kLeafBytes;
  std::vector<std::uint8_t> nodes(count * kNodeBytes);
  hash_row({bytes.data(), count, kLeafBlocks, number, 0, kLeafStart, kLeafEnd}, nodes.data());
  while (count > 2) {
    count /= 2;
    hash_row({nodes.data(), count, 1, 0, kParent, 0, 0}, nodes.data());
  }
  return parent(node_at(nodes.data(), 0), node_at(nodes.data(), 1), root);
}

// `number`: that of its first leaf.
Blake3Node tree(Bytes bytes, std::uint64_t number, std::uint32_t root) {
  if (bytes.size() <= kLeafBytes) return leaf(bytes, number, root);
  if (bytes.size() % kLeafBytes == 0 && std::has_single_bit(bytes.size() / kLeafBytes)) {
    return full_tree(bytes, number, root);
  }
  const std::size_t left = std::bit_floor((bytes.size() - 1) / kLeafBytes) * kLeafBytes;
  return parent(tree(bytes.first(left), number, 0),
                tree(bytes.subspan(left), number + left / kLeafBytes, 0), root);
}

Blake3Node joined(std::span<const Blake3Node> pieces, std::uint32_t root) {
  if (pieces.size() == 1) return pieces[0];
  const std::size_t left = std::bit_floor(pieces.size() - 1);
  return parent(joined(pieces.first(left), 0), joined(pieces.subspan(left), 0), root);
}

}  // namespace

Blake3Hash blake3(Bytes bytes) { return tree(bytes, 0, kRoot); }

Blake3Node blake3_node(Bytes piece, std::uint64_t at) { return tree(piece, at / kLeafBytes, 0); }

Blake3Hash blake3_of(std::span<const Blake3Node> pieces) { return joined(pieces, kRoot); }

std::string hex(const Blake3Hash& hash) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : hash) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace dllm::weights
