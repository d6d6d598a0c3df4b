// Loads of weights through both ends of a link as they run, by a client and a server made up here.
#pragma once

#include "link_ends.h"
#include "pair_ends.h"
#include "weights_pair.h"

namespace home_loads {

using namespace pair_ends;
using dllm::weights::ResidentWeights;
using dllm::weights::kChunkBytes;
using models::Made;
using transcript::random_bytes;
using Random = std::mt19937;

struct Files : models::Machine {
  explicit Files(const std::vector<Made>& tensors, bool with_sums = true) {
    add(tensors, with_sums);
  }
};

inline Made weight(int layer, const std::string& data) {
  return models::tensor("blk." + std::to_string(layer) + ".weight", data);
}

// Long and short, and together less than the buffer holds.
inline const std::vector<Made>& model() {
  static const std::vector<Made> tensors = [] {
    std::vector<Made> made;
    const std::size_t sizes[] = {3 * kChunkBytes + 5, 1000, kChunkBytes, 70'001, 4};
    for (std::size_t i = 0; i < std::size(sizes); ++i) {
      made.push_back(
          weight(static_cast<int>(i), models::noise(static_cast<std::uint32_t>(i + 1), sizes[i])));
    }
    return made;
  }();
  return tensors;
}

inline std::string row_in_buffer(const Made& made) {
  transcript::TensorSpec spec;
  spec.type = made.type;
  spec.name = made.name;
  std::string tensor = transcript::tensor(spec);
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint64_t count = i < made.shape.size() ? made.shape[i] : 1;
    transcript::write(tensor, 20 + 4 * i, static_cast<std::uint32_t>(count));
    transcript::write<std::uint32_t>(tensor, 36 + 4 * i,
                                     i == 0 ? 1 : static_cast<std::uint32_t>(made.data.size()));
  }
  return tensor;
}

inline std::string set_weight(const Made& made, bool with_flag = true) {
  std::string payload = row_in_buffer(made) + std::string(1, with_flag ? '\1' : '\0');
  transcript::put<std::uint64_t>(payload, 0);
  return transcript::request(dllm::kSetTensor, payload + made.data);
}

inline std::string ask_hash(const Made& made) {
  std::string payload = row_in_buffer(made);
  transcript::put<std::uint64_t>(payload, 0);
  transcript::put(payload, models::fnv1a_of(made.data));
  return transcript::request(dllm::kSetTensorHash, payload);
}

inline const std::string kAsk = transcript::request(dllm::kGetDeviceMemory, std::string(4, '\0'));
inline const std::string kTold = transcript::reply(std::string(16, 'm'));

// A client and a server that have greeted each other.
struct Talk {
  explicit Talk(Pair& pair_of) : pair(pair_of), client(pair.head.connect()), server(pair.accept()) {
    greet(client.get(), server.get());
  }
  // The client sends these; whether just these arrive, and an answer comes back.
  bool loads(const std::string& requests, Random& random) {
    return loads(requests, random, requests);
  }
  // The same where others are to arrive.
  bool loads(const std::string& requests, Random& random, const std::string& meant) {
    std::thread asking([&] {
      for (std::size_t at = 0; at < requests.size();) {
        const std::size_t count = 1 + random() % (1U << (random() % 21));
        write_text(client.get(), requests.substr(at, count));
        at += count;
      }
      write_text(client.get(), kAsk);
    });
    const bool arrives = read_text(server.get(), meant.size()) == meant;
    const bool asked = read_text(server.get(), kAsk.size()) == kAsk;
    asking.join();
    write_text(server.get(), kTold);
    return arrives && asked && read_text(client.get(), kTold.size()) == kTold;
  }
  Pair& pair;
  UniqueFd client;
  UniqueFd server;
};

inline std::size_t bytes_of_all(const std::vector<Made>& tensors) {
  std::size_t bytes = 0;
  for (const Made& made : tensors) bytes += made.data.size();
  return bytes;
}

// The figures of both ends, once so many tensors of so many bytes are in them.
inline dllm::PairTally counted(Pair& pair, std::uint64_t tensors, std::uint64_t bytes) {
  const auto is_whole = [&](const dllm::PairTally& tally) {
    return tally.tensors == tensors && tally.weight_bytes_home + tally.weight_bytes_sent == bytes;
  };
  CHECK(until([&] { return is_whole(pair.head.tally().pair); }));
  const auto tally = pair.head.tally().pair;
  CHECK(until([&] {
    const std::lock_guard lock(pair.worker.link.mutex);
    const dllm::PairTally& far = pair.worker.link.tally.pair;
    return far.weight_bytes_home == tally.weight_bytes_home &&
           far.tensors_differ == tally.tensors_differ;
  }));
  return tally;
}

inline std::string requests_for(const std::vector<Made>& tensors) {
  std::string all;
  for (const Made& made : tensors) all += set_weight(made);
  return all;
}

}  // namespace home_loads
