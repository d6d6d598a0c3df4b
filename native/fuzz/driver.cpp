// Runs a fuzz target without libFuzzer: seeds and mutations of them, the same in every run.
//   driver RUNS [FIRST_SEED]     feeds RUNS inputs
//   driver --corpus DIR COUNT    writes COUNT seeds for libFuzzer
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

void mutate_once(transcript::Random& random, std::string& input) {
  const std::size_t at = random() % input.size();
  switch (random() % 6) {
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
    default:
      for (std::size_t i = at; i < std::min(at + 8, input.size()); ++i) input[i] = '\xff';
  }
  if (input.empty()) input.push_back('\1');
}

std::string make_input(std::uint64_t seed) {
  transcript::Random random(seed);
  std::string input = fuzz::seed_input(random() % 2000);
  for (std::uint64_t i = random() % 6; i > 0; --i) mutate_once(random, input);
  return input;
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
  const std::uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  // The relay's own log lines.
  if (!std::freopen("/dev/null", "w", stderr)) return EXIT_FAILURE;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    const std::string input = make_input(seed);
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  }
  std::printf("%llu inputs from seed %llu: no finding\n", static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(first));
  return EXIT_SUCCESS;
}
