// The walk of a GGUF header and the reader of kept tables: whatever they are given, they refuse it
// or tell of tensors that lie in the file, apart from each other. The reader of kept questions:
// what it tells is within its bounds, and told again the same. And the worker's end of tensors that
// stay home: whatever it is told, it hands out no more than was offered, within its bounds.
#include <cstdlib>

#include "input.h"
#include "weights/chunk_receiver.h"
#include "weights/hash_cache.h"
#include "weights_models.h"

namespace {

using dllm::weights::ModelError;

void demand(bool holds) {
  if (!holds) std::abort();
}

// A file with something of everything, at its places small edits.
const std::string& whole() {
  static const std::string data = models::gguf(
      {models::tensor("one", "12345"),
       {"two", models::kF32, {2, 2}, std::string(16, 'x')},
       {"odd", 4711, {3}, "123"},
       models::tensor("none", "")},
      {models::text("text") + models::raw<std::uint32_t>(8) + models::text("hello"),
       models::text("list") + models::raw<std::uint32_t>(9) + models::raw<std::uint32_t>(8) +
           models::raw<std::uint64_t>(1) + models::text("a"),
       models::uint16_key("split.count", 1)});
  return data;
}

// What each four bytes of the input change: where, how, to what.
std::string edited(std::string data, std::span<const std::uint8_t> input) {
  for (; input.size() >= 4 && !data.empty(); input = input.subspan(4)) {
    const std::size_t at = (input[0] | std::size_t{input[1]} << 8) % data.size();
    const std::size_t room = std::min<std::size_t>(8, data.size() - at);
    switch (input[2] % 5) {
      case 0:
        data[at] = static_cast<char>(input[3]);
        break;
      case 1:
        data.replace(at, room, room, '\xff');
        break;
      case 2:
        data.replace(at, room, models::raw(std::uint64_t{1} << input[3] % 64).substr(0, room));
        break;
      case 3:
        data.resize(at);
        break;
      default:
        data.replace(at, room, room, '\0');
    }
  }
  return data;
}

void walk(const std::string& data) {
  try {
    models::Memory memory(data);
    std::uint64_t end = 0;
    for (const auto& place : dllm::weights::read_header(memory, "m").tensors) {
      const std::uint64_t size_bytes = place.key.size_bytes;
      demand(place.offset <= data.size() && size_bytes <= data.size() - place.offset);
      demand(size_bytes == 0 || place.offset >= end);
      end = std::max(end, place.offset + size_bytes);
    }
  } catch (const ModelError&) {
  }
}

void read_hash_cache(std::span<const std::uint8_t> input) {
  static const auto files = models::opened({whole()});
  static const std::vector<dllm::weights::FileId> ids = {{"/m.gguf", 1, 2, 3}};
  static const std::string kept = [] {
    dllm::weights::TableBuilder builder(files);
    builder.step();
    return dllm::weights::encode_hash_cache(ids, files, builder.so_far());
  }();
  // What a good end vouches for must be understood too.
  std::string data = edited(kept.substr(0, kept.size() - sizeof(dllm::weights::Blake3Hash)), input);
  data += models::raw(
      dllm::weights::blake3({reinterpret_cast<const std::uint8_t*>(data.data()), data.size()}));
  const auto so_far = dllm::weights::decode_hash_cache(data, ids, files);
  if (!so_far) return;
  dllm::weights::TableBuilder builder(files, *so_far);
  while (builder.step()) {
  }
  demand(builder.done_bytes() == files.tensor_bytes());
}

const dllm::weights::ResidentWeights& home() {
  static dllm::weights::ResidentWeights home;
  if (home.list().empty()) home.add(models::opened({whole()}));
  return home;
}

// One message of a kind that makes sense, its content by the input.
std::vector<std::uint8_t> message_by(std::span<const std::uint8_t> input) {
  static const auto listed = home().list();
  dllm::weights::Message message;
  message.kind = static_cast<dllm::weights::Message::Kind>(1 + input[0] % 5);
  message.key = listed[input[1] % listed.size()].key;
  if (input[2] % 8 == 0) message.key.size_bytes = std::uint64_t{1} << input[3] % 64;
  message.fnv1a = input[3];
  if (input[2] % 2 == 0) message.blake3 = dllm::weights::blake3(input.subspan(2, 1));
  message.piece = input.subspan(4, std::min<std::size_t>(input.size() - 4, input[3]));
  auto data = encode(message);
  if (input[2] % 16 == 1) data.resize(input[3] % (data.size() + 1));
  return data;
}

void tell_worker(std::span<const std::uint8_t> input) {
  dllm::weights::WeightCounts counts;
  dllm::weights::ChunkReceiver worker(home(), counts);
  std::uint64_t handed_out = 0;
  try {
    for (; input.size() >= 5; input = input.subspan(5)) {
      worker.take(dllm::weights::decode(message_by(input)));
      while (worker.can_look() && input[4] % 2 == 0) {
        dllm::weights::Look next = worker.next_look();
        dllm::weights::look(next);
        worker.looked(std::move(next));
      }
      handed_out += worker.ready().size();
      worker.written(worker.ready().size());
    }
  } catch (const dllm::weights::BadMessage&) {
  }
  demand(handed_out <= counts.home_bytes + counts.needed_bytes);
  demand(counts.tensors_missing + counts.tensors_differ <= counts.tensors);
}

void read_list(std::span<const std::uint8_t> input) {
  std::vector<dllm::weights::Listed> listed;
  try {
    dllm::weights::decode_list(input, listed);
  } catch (const dllm::weights::BadMessage&) {
    return;
  }
  std::vector<dllm::weights::Listed> again;
  for (const auto& message : dllm::weights::encode_list(listed)) decode_list(message, again);
  demand(again == listed);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  walk({reinterpret_cast<const char*>(data), size});
  walk(edited(whole(), {data, std::min<std::size_t>(size, 64)}));
  read_hash_cache({data, std::min<std::size_t>(size, 64)});
  tell_worker({data, std::min<std::size_t>(size, 512)});
  read_list({data, size});
  return 0;
}
