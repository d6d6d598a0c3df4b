// The data of masks, positions and indices through both ends of the lean encodings.
#include "lean_masks.h"
#include "lean_pair.h"

using dllm::Version;
using lean_masks::Mask;
using lean_pair::Crossing;
using lean_pair::Pair;
using transcript::Random;

namespace {

constexpr Version kVersion{8, 0, 0};
constexpr std::uint32_t k32k = 32 << 10;

// Numbers of this type, one row of them.
std::string numbers(std::uint32_t type, const std::string& data, std::size_t unit,
                    const std::string& name = "numbers") {
  transcript::TensorSpec spec;
  spec.type = type;
  spec.ne[0] = static_cast<std::uint32_t>(data.size() / unit);
  spec.name = name;
  return transcript::set_tensor(kVersion, spec, data);
}

template <typename Number>
std::string count_up(Number first, Number step, std::size_t many) {
  std::string data;
  for (std::size_t i = 0; i < many; ++i) transcript::put<Number>(data, first + step * i);
  return data;
}

// What the data behind a known head cost.
std::size_t cost_again(Pair& pair, const std::string& request) {
  pair.pass(request);
  return pair.pass(request).bytes();
}

}  // namespace

TEST(a_mask_of_32_mib_crosses_as_a_few_kilobytes_in_bounded_pieces) {
  Pair pair(kVersion);
  const std::string request =
      lean_masks::request(kVersion, {.cells = k32k, .tokens = 512, .before = k32k - 512});
  CHECK(request.size() > 32 << 20);
  const Crossing crossing = pair.pass(request);
  CHECK(crossing.begun.in_blocks);
  CHECK(crossing.bytes() < 8 << 10);
  for (const auto& message : crossing.messages) CHECK(message.size() < 1 << 10);
}

TEST(a_mask_of_floats_crosses_as_well) {
  Pair pair(kVersion);
  const Mask mask{.type = lean_masks::kF32, .cells = 8192, .tokens = 512, .before = 7000};
  CHECK(pair.pass(lean_masks::request(kVersion, mask)).bytes() < 6 << 10);
}

TEST(a_mask_of_one_token_costs_the_same_at_any_depth) {
  for (const std::uint32_t cells : {1u << 10, 8u << 10, 128u << 10}) {
    Pair pair(kVersion);
    for (std::uint32_t token = 0; token < 20; ++token) {
      const Mask mask{.cells = cells, .before = cells - 100 + token};
      const Crossing crossing = pair.pass(lean_masks::request(kVersion, mask));
      CHECK(token == 0 || crossing.bytes() <= 24);
    }
  }
}

TEST(sequences_that_take_turns_in_the_cells_cost_little_more) {
  Pair pair(kVersion);
  std::size_t worst = 0;
  for (std::uint32_t token = 0; token < 40; ++token) {
    const Mask mask{.cells = 8192, .tokens = 4, .before = 8000 + token, .others = 3};
    const Crossing crossing = pair.pass(lean_masks::request(kVersion, mask));
    if (token > 0) worst = std::max(worst, crossing.bytes());
  }
  CHECK(worst < 100);
}

TEST(positions_and_indices_are_counted) {
  Pair pair(kVersion);
  const auto cost = [&pair](std::uint32_t type, const std::string& data, std::size_t unit) {
    return cost_again(pair, numbers(type, data, unit));
  };
  CHECK(cost(lean_masks::kI32, count_up<std::uint32_t>(8000, 1, 512), 4) < 12);
  CHECK(cost(lean_masks::kI64, count_up<std::uint64_t>(8000, 1, 512), 8) < 12);
  CHECK(cost(lean_masks::kI64, count_up<std::uint64_t>(0, 4096, 100000), 8) < 60);
  CHECK(cost(lean_masks::kI32, count_up<std::uint32_t>(8000, 0, 1), 4) < 8);
  CHECK(cost(lean_masks::kI64, count_up<std::uint64_t>(std::uint64_t{1} << 63, ~0ULL, 9), 8) < 26);
}

TEST(hidden_states_and_weights_are_not_looked_at) {
  Random random(1);
  for (const std::uint32_t type : {lean_masks::kF32, lean_masks::kF16, 8u, 39u}) {
    Pair pair(kVersion);
    for (const std::size_t bytes : {256u, 16384u, 1u << 20}) {
      const std::string data = transcript::random_bytes(random, bytes);
      const Crossing crossing = pair.pass(numbers(type, data, 4));
      CHECK(crossing.as_is == data);
      CHECK(crossing.messages.size() == 1 && !crossing.begun.in_blocks);
    }
  }
}

TEST(what_only_begins_like_a_mask_costs_hardly_more_than_itself) {
  Random random(2);
  Pair pair(kVersion);
  std::string data(64, '\0');
  data += transcript::random_bytes(random, 3 << 20);
  const Crossing crossing = pair.pass(numbers(lean_masks::kF16, data, 2));
  CHECK(crossing.begun.in_blocks);
  CHECK(crossing.bytes() < data.size() + data.size() / 100);
}

TEST(data_of_any_length_and_pattern_come_out) {
  Random random(3);
  for (int i = 0; i < 2000; ++i) {
    Pair pair(kVersion);
    for (int again = 0; again < 3; ++again) {
      std::string data;
      while (random() % 8 != 0) {
        const std::string pattern = transcript::random_bytes(random, 1 + random() % 9);
        for (std::uint64_t left = random() % 300; left > 0; --left) data += pattern;
      }
      const std::uint32_t types[] = {0, 1, 25, 26, 27, 30, 2};
      pair.pass(numbers(types[random() % 7], data, 1 + random() % 8));
    }
  }
}

TEST(as_much_data_as_is_kept_is_forgotten_alike_at_both_ends) {
  Pair pair(kVersion);
  Random random(4);
  for (int i = 0; i < 300; ++i) {
    const std::string name = "mask " + std::to_string(random() % 40);
    const auto cells = static_cast<std::size_t>(1 + random() % 40000);
    std::string data = count_up<std::uint64_t>(random() % 9, random() % 3, cells);
    transcript::TensorSpec spec;
    spec.type = lean_masks::kI64;
    spec.name = name;
    std::string request = transcript::set_tensor(kVersion, spec, data);
    transcript::write<std::uint64_t>(request, dllm::kRequestHeaderBytes, random() % 40);
    pair.pass(request);
  }
}

RUN_TESTS()
