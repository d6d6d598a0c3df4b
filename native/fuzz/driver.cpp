// Runs a fuzz target without libFuzzer: seeds and mutations of them, others in every run.
//   driver RUNS [FIRST_SEED]     feeds RUNS inputs; without a first seed, from a random one
//   driver --corpus DIR COUNT    writes COUNT seeds for libFuzzer
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string_view>

#include "input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

// Numbers at the edges of what is right.
std::uint64_t edge(transcript::Random& random) {
  constexpr std::uint64_t kEdges[] = {0,
                                      1,
                                      8,
                                      transcript::kBase,
                                      transcript::kBase + transcript::kBufferBytes,
                                      transcript::kBufferBytes,
                                      std::uint64_t{1} << 31,
                                      std::uint64_t{1} << 32,
                                      std::uint64_t{1} << 40,
                                      std::uint64_t{1} << 63,
                                      ~std::uint64_t{0}};
  return kEdges[random() % std::size(kEdges)] + random() % 3 - 1;
}

void put_edge(transcript::Random& random, std::string& input, std::size_t at) {
  const std::uint64_t value = edge(random);
  const std::size_t bytes = std::min<std::size_t>(random() % 2 ? 8 : 4, input.size() - at);
  std::memcpy(input.data() + at, &value, bytes);
}

void mutate_once(transcript::Random& random, std::string& input) {
  const std::size_t at = random() % input.size();
  switch (random() % 8) {
    case 0:
      input[at] = static_cast<char>(random());
      break;
    case 1:
      input[at] = static_cast<char>(input[at] ^ (1 << random() % 8));
      break;
    case 2:
      input.resize(at + 1);
      break;
    case 3:
      input.insert(at, transcript::random_bytes(random, random() % 20));
      break;
    case 4:
      input.erase(at, random() % 20);
      break;
    case 5:
    case 6:
      put_edge(random, input, at);
      break;
    default:
      for (std::size_t i = at; i < std::min(at + 8, input.size()); ++i) input[i] = '\xff';
  }
  if (input.empty()) input.push_back('\1');
}

// One question after another, more than anyone means, and replies to some.
std::string make_flood(transcript::Random& random) {
  std::string input(1, static_cast<char>(random()));
  const std::string ask =
      transcript::request(dllm::kBufferGetBase, transcript::random_bytes(random, 8));
  std::string asked;
  for (std::uint64_t i = 1000 + random() % 60; i > 0; --i) asked += ask;
  fuzz::append(input, true, asked);
  for (std::uint64_t i = random() % 4; i > 0; --i) {
    fuzz::append(input, false, transcript::reply(std::string(8, '\0')));
    fuzz::append(input, true, ask + ask);
  }
  return input;
}

std::string make_input(std::uint64_t seed) {
  constexpr std::uint64_t kFloodEvery = 1000;
  // Its low bits alone would make neighbouring seeds alike.
  transcript::Random random(static_cast<std::uint32_t>((seed * 0x9e3779b97f4a7c15) >> 33));
  if (random() % kFloodEvery == 0) return make_flood(random);
  std::string input = fuzz::seed_input(random() % 2000);
  for (std::uint64_t i = random() % 6; i > 0; --i) mutate_once(random, input);
  return input;
}

std::uint64_t present_seed = 0;

// Only with what may be called in a signal handler.
void tell_seed() {
  char text[] = "found with seed 00000000000000000000\n";
  std::uint64_t left = present_seed;
  for (std::size_t at = sizeof text - 3; left > 0; --at, left /= 10) {
    text[at] = static_cast<char>('0' + left % 10);
  }
  static_cast<void>(!::write(STDOUT_FILENO, text, sizeof text - 1));
}

void write_corpus(const std::string& directory, std::uint64_t count) {
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    const auto file = std::filesystem::path(directory) / std::to_string(seed);
    std::ofstream(file, std::ios::binary) << fuzz::seed_input(seed);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "--corpus") {
    write_corpus(argv[2], std::strtoull(argv[3], nullptr, 10));
    return EXIT_SUCCESS;
  }
  const std::uint64_t runs = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1000;
  const std::uint64_t first =
      argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device{}();
  std::printf("%llu inputs from seed %llu\n", static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(first));
  std::fflush(stdout);
  // The relay's own log lines.
  if (!std::freopen("/dev/null", "w", stderr)) return EXIT_FAILURE;
  std::signal(SIGABRT, [](int) { tell_seed(); });
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    present_seed = seed;
    const std::string input = make_input(seed);
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  }
  std::puts("no finding");
  return EXIT_SUCCESS;
}
