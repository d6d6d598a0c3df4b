// Conversations made up from the protocol table: well-formed requests and replies of any version.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "protocol/commands.h"
#include "text_of.h"

namespace transcript {

using dllm::Rule;
using dllm::Version;
using Random = std::minstd_rand;

inline const std::vector<Version> kVersions = {{1, 0, 0}, {2, 0, 0}, {3, 0, 0}, {3, 5, 0},
                                               {3, 6, 1}, {4, 0, 0}, {4, 0, 3}, {5, 0, 0},
                                               {5, 1, 0}, {6, 0, 0}, {7, 0, 0}, {8, 0, 0}};

template <typename Value>
void put(std::string& out, Value value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename Value>
void write(std::string& out, std::size_t at, Value value) {
  std::memcpy(out.data() + at, &value, sizeof value);
}

// The buffer that the worker of these conversations gives.
constexpr std::uint64_t kBuffer = 1, kBase = 0x7f0000000000, kBufferBytes = std::uint64_t{64} << 20;

struct TensorSpec {
  std::uint32_t type = 0;
  std::vector<std::uint32_t> ne = {4, 1, 1, 1};
  std::uint32_t op = 0;
  std::uint64_t data = kBase;
  std::uint64_t buffer = kBuffer;
  std::string name;
  std::uint64_t op_parameter = 0;
};

// F32, of so many bytes.
inline TensorSpec row_of(std::size_t bytes) {
  TensorSpec spec;
  spec.ne[0] = static_cast<std::uint32_t>(bytes / 4);
  return spec;
}

inline std::string tensor(const TensorSpec& spec) {
  std::string out(dllm::kTensorBytes, '\0');
  write<std::uint32_t>(out, 8, spec.type);
  write(out, 12, spec.buffer);
  std::uint32_t stride = 4;
  for (std::size_t i = 0; i < 4; ++i) {
    write(out, 20 + 4 * i, spec.ne[i]);
    write(out, 36 + 4 * i, stride);
    stride *= spec.ne[i];
  }
  write(out, 52, spec.op);
  write(out, 56, spec.op_parameter);
  write(out, 220, spec.data);
  spec.name.copy(out.data() + 228, 63);
  return out;
}

inline std::string request(std::uint8_t id, const std::string& payload) {
  std::string out(1, static_cast<char>(id));
  put<std::uint64_t>(out, payload.size());
  return out + payload;
}

inline std::string reply(const std::string& payload) {
  std::string out;
  put<std::uint64_t>(out, payload.size());
  return out + payload;
}

inline std::string hello(Version version, bool with_caps = false) {
  return request(dllm::kHello, version.major < 4 ? "" : std::string(24, with_caps ? 'c' : '\0'));
}

inline std::string hello_reply(Version version, bool with_caps = false) {
  std::string out{static_cast<char>(version.major), static_cast<char>(version.minor),
                  static_cast<char>(version.patch)};
  if (version.major >= 4) out.append(1, '\0').append(24, with_caps ? 'C' : '\0');
  return reply(out);
}

inline std::string set_tensor(Version version, const TensorSpec& spec, const std::string& data,
                              std::uint64_t offset = 0) {
  std::string payload = tensor(spec);
  if (version.major >= 7) payload += '\0';
  put(payload, offset);
  return request(dllm::kSetTensor, payload + data);
}

inline std::string get_tensor(const TensorSpec& spec, std::uint64_t offset, std::uint64_t size) {
  std::string payload = tensor(spec);
  put(payload, offset);
  put(payload, size);
  return request(dllm::kGetTensor, payload);
}

constexpr std::size_t kSourcesAt = 124, kViewSourceAt = 204;

// Tensors with the ids they have, and the nodes of these ids.
inline std::string bare_graph(Version version, const std::vector<std::string>& tensors,
                              const std::vector<std::uint64_t>& nodes) {
  std::string payload;
  if (version >= Version{3, 0, 0}) put<std::uint32_t>(payload, 0);
  if (version.major >= 8) put<std::uint64_t>(payload, 77);
  put(payload, static_cast<std::uint32_t>(nodes.size()));
  for (const std::uint64_t id : nodes) put(payload, id);
  put(payload, static_cast<std::uint32_t>(tensors.size()));
  for (const std::string& each : tensors) payload += each;
  return request(dllm::kGraphCompute, payload);
}

// The tensors get ids from 1 on, each is a node, and made of the first in every way.
inline std::string graph(Version version, std::vector<std::string> tensors) {
  std::vector<std::uint64_t> nodes(tensors.size());
  std::iota(nodes.begin(), nodes.end(), 1);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    write<std::uint64_t>(tensors[i], 0, i + 1);
    for (std::size_t at = 0; at < 10; ++at)
      write<std::uint64_t>(tensors[i], kSourcesAt + 8 * at, 1);
  }
  return bare_graph(version, tensors, nodes);
}

inline std::string recompute(Version version) {
  return request(dllm::kGraphRecompute, std::string(version.major >= 8 ? 12 : 4, '\0'));
}

inline std::string random_bytes(Random& random, std::size_t count) {
  std::string out(count, '\0');
  for (std::size_t at = 0; at < count; at += 3) {
    const auto three = static_cast<std::uint32_t>(random());
    std::memcpy(out.data() + at, &three, std::min<std::size_t>(3, count - at));
  }
  return out;
}

// One request and the reply it gets; an empty reply means none.
struct Exchange {
  std::uint8_t id;
  std::string request;
  std::string reply;
};

// The worker gives the buffer all tensors here lie in, and says where it is.
inline std::vector<Exchange> allocation(Version version, std::uint64_t bytes = kBufferBytes) {
  std::string wanted, given, handle, base;
  if (version >= Version{3, 0, 0}) put<std::uint32_t>(wanted, 0);
  put(wanted, bytes);
  put(given, kBuffer);
  put(given, bytes);
  put(handle, kBuffer);
  put(base, kBase);
  return {{dllm::kAllocBuffer, request(dllm::kAllocBuffer, wanted), reply(given)},
          {dllm::kBufferGetBase, request(dllm::kBufferGetBase, handle), reply(base)}};
}

inline TensorSpec random_tensor(Random& random) {
  TensorSpec spec;
  for (auto& ne : spec.ne) ne = 1 + static_cast<std::uint32_t>(random() % 9);
  spec.op = static_cast<std::uint32_t>(random() % 80);
  return spec;
}

inline std::string random_fields(Random& random, const Rule& rule) {
  std::string fields = random_bytes(random, rule.fields % dllm::kTensorBytes);
  std::string tensors;
  for (std::size_t i = 0; i < rule.fields / dllm::kTensorBytes; ++i) {
    tensors += tensor(random_tensor(random));
  }
  const bool device_first = rule.id == dllm::kGetAllocSize || rule.id == dllm::kCommAllreduce;
  return device_first ? fields + tensors : tensors + fields;
}

// Everything that names a part of a tensor, within it.
inline Exchange random_access(Random& random, const Rule& rule) {
  constexpr std::size_t kRow = 4000;
  const std::size_t size = 1 + random() % 900, count = 1 + random() % 3;
  std::string payload = tensor(row_of(kRow));
  if (rule.id == dllm::kSetTensor && rule.fields % 8 == 1) payload += '\0';
  put<std::uint64_t>(payload, random() % 90);
  if (rule.id != dllm::kSetTensor) put<std::uint64_t>(payload, size);
  const bool rows = rule.id == dllm::kSetTensor2d || rule.id == dllm::kGetTensor2d;
  if (rows) put<std::uint64_t>(payload, count);
  if (rows) put<std::uint64_t>(payload, size + random() % 90);
  if (rule.id == dllm::kMemsetTensor) payload += '\7';
  const std::string data = random_bytes(random, rows ? size * count : size);
  const bool fixed = rule.reply_kind == dllm::Reply::kFixed;
  const std::string answer = fixed ? random_bytes(random, rule.reply) : data;
  if (rule.data_follows) payload += data;
  const bool asks = rule.reply_kind != dllm::Reply::kNone;
  return {rule.id, request(rule.id, payload), asks ? reply(answer) : ""};
}

inline Exchange random_exchange(Random& random, Version version, const Rule& rule) {
  if (dllm::is_one_of(rule.id, {dllm::kSetTensor, dllm::kGetTensor, dllm::kMemsetTensor,
                                dllm::kSetTensorHash, dllm::kSetTensor2d, dllm::kGetTensor2d})) {
    return random_access(random, rule);
  }
  if (rule.id == dllm::kBufferGetBase) return allocation(version)[1];
  Exchange made{rule.id, request(rule.id, random_fields(random, rule)), ""};
  if (rule.id == dllm::kBufferClear) write(made.request, 9, kBuffer);
  if (rule.id == dllm::kFreeBuffer) write(made.request, 9, kBuffer + 1);
  if (rule.id == dllm::kGraphCompute) {
    // Each is made of the first: of one shape, they suit each other.
    constexpr std::uint32_t kOps[] = {0, 2, 6, 7, 9, 10, 25, 32, 34, 35, 50, 91};
    TensorSpec spec = random_tensor(random);
    std::vector<std::string> tensors(random() % 4);
    for (auto& each : tensors) {
      spec.op = kOps[random() % std::size(kOps)];
      each = tensor(spec);
    }
    made.request = graph(version, tensors);
  }
  if (rule.reply_kind != dllm::Reply::kNone) made.reply = reply(random_bytes(random, rule.reply));
  return made;
}

// HELLO, the buffer and `count` exchanges; when count allows, every command of the version occurs
// that a guard lets through.
inline std::vector<Exchange> conversation(Random& random, Version version, std::size_t count,
                                          bool with_caps = false) {
  std::vector<Exchange> all{
      {dllm::kHello, hello(version, with_caps), hello_reply(version, with_caps)}};
  for (Exchange& each : allocation(version)) all.push_back(std::move(each));
  const dllm::Protocol protocol(version);
  std::vector<const Rule*> rules;
  for (std::uint8_t id = 0; id < dllm::kCommands; ++id) {
    // A buffer is asked for first; while one is, no guard lets others be freed.
    if (dllm::is_one_of(id, {dllm::kHello, dllm::kAllocBuffer})) continue;
    if (dllm::is_one_of(id, {dllm::kCommInit, dllm::kCommAllreduce})) continue;
    if (protocol.rule(id)) rules.push_back(protocol.rule(id));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const bool all_occur = count >= rules.size() && i < rules.size();
    const Rule& rule = *(all_occur ? rules[i] : rules[random() % rules.size()]);
    all.push_back(random_exchange(random, version, rule));
  }
  return all;
}

// Cuts `bytes` into pieces at random points.
inline std::vector<std::string> split(Random& random, const std::string& bytes) {
  std::vector<std::string> pieces;
  const std::size_t longest = std::size_t{1} << (random() % 12);
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t count = std::min<std::size_t>(1 + random() % longest, bytes.size() - at);
    pieces.push_back(bytes.substr(at, count));
    at += count;
  }
  return pieces;
}

}  // namespace transcript
