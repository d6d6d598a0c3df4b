// Conversations made up from the protocol table: well-formed requests and replies of any version.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "relay/protocol.h"

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

struct TensorSpec {
  std::uint32_t type = 0;
  std::vector<std::uint32_t> ne = {4, 1, 1, 1};
  std::uint32_t op = 0;
  std::uint64_t data = 0x7f0000000000;
  std::uint64_t buffer = 1;
  std::string name;
};

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
  if (version.major >= 4) out += std::string(1, '\0') + std::string(24, with_caps ? 'C' : '\0');
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

inline std::string graph(Version version, const std::vector<std::string>& tensors) {
  std::string payload;
  if (version >= Version{3, 0, 0}) put<std::uint32_t>(payload, 0);
  if (version.major >= 8) put<std::uint64_t>(payload, 77);
  put(payload, static_cast<std::uint32_t>(tensors.size()));
  for (std::size_t i = 0; i < tensors.size(); ++i) put<std::uint64_t>(payload, i + 1);
  put(payload, static_cast<std::uint32_t>(tensors.size()));
  for (const std::string& each : tensors) payload += each;
  return request(dllm::kGraphCompute, payload);
}

inline std::string recompute(Version version) {
  return request(dllm::kGraphRecompute, std::string(version.major >= 8 ? 12 : 4, '\0'));
}

inline std::string random_bytes(Random& random, std::size_t count) {
  std::string out(count, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

// One request and the reply it gets; an empty reply means none.
struct Exchange {
  std::uint8_t id;
  std::string request;
  std::string reply;
};

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

inline Exchange random_exchange(Random& random, Version version, const Rule& rule) {
  Exchange made{rule.id, "", ""};
  std::string payload = random_fields(random, rule);
  if (rule.id == dllm::kGraphCompute) {
    std::vector<std::string> tensors(random() % 4);
    for (auto& each : tensors) each = tensor(random_tensor(random));
    made.request = graph(version, tensors);
  } else if (rule.id == dllm::kSetTensor || rule.id == dllm::kSetTensor2d) {
    write<std::uint64_t>(payload, payload.size() - 8, 0);
    made.request = request(rule.id, payload + random_bytes(random, random() % 3000));
  } else {
    made.request = request(rule.id, payload);
  }
  std::uint64_t size = rule.reply;
  if (rule.reply_kind == dllm::Reply::kTensor || rule.reply_kind == dllm::Reply::kTensorRows) {
    size = random() % 2000;
    const bool rows = rule.reply_kind == dllm::Reply::kTensorRows;
    write<std::uint64_t>(made.request, 9 + dllm::kTensorBytes, 0);
    write<std::uint64_t>(made.request, 9 + dllm::kTensorBytes + 8, size);
    if (rows) write<std::uint64_t>(made.request, 9 + dllm::kTensorBytes + 16, 3);
    if (rows) size *= 3;
  }
  if (rule.id == dllm::kMemsetTensor) {
    write<std::uint64_t>(made.request, 9 + dllm::kTensorBytes, 0);
    write<std::uint64_t>(made.request, 9 + dllm::kTensorBytes + 8, 16);
  }
  if (rule.reply_kind != dllm::Reply::kNone) made.reply = reply(random_bytes(random, size));
  return made;
}

// HELLO and `count` exchanges; every command of the version occurs when count allows.
inline std::vector<Exchange> conversation(Random& random, Version version, std::size_t count,
                                          bool with_caps = false) {
  std::vector<Exchange> all{
      {dllm::kHello, hello(version, with_caps), hello_reply(version, with_caps)}};
  const dllm::Protocol protocol(version);
  std::vector<const Rule*> rules;
  for (std::uint8_t id = 0; id < dllm::kCommands; ++id) {
    if (id != dllm::kHello && protocol.rule(id)) rules.push_back(protocol.rule(id));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const Rule& rule = *(i < rules.size() ? rules[i] : rules[random() % rules.size()]);
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
