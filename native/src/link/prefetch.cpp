#include "prefetch.h"

#include <algorithm>

#include "size_guesses.h"

namespace dllm {

namespace {

// A stock worker has a handful.
constexpr std::uint32_t kDevicesMax = 16;

std::vector<Prefetch> about_devices(const Protocol& protocol, std::uint32_t count) {
  std::vector<Prefetch> all;
  for (std::uint32_t device = 0; device < std::min(count, kDevicesMax); ++device) {
    const std::string fields(reinterpret_cast<const char*>(&device), sizeof device);
    for (const Command id : {kGetAlignment, kGetMaxSize, kGetDeviceMemory}) {
      add_question(all, protocol, id, fields);
    }
  }
  return all;
}

// Where it is, and what it leaves. None: the worker had no room.
std::vector<Prefetch> about_buffer(const Protocol& protocol, View fields, View reply) {
  if (load<std::uint64_t>(reply.data()) == 0) return {};
  const View device = fields.first(fields.size() - sizeof(std::uint64_t));
  std::vector<Prefetch> all;
  add_question(all, protocol, kBufferGetBase,
               {reply.begin(), reply.begin() + sizeof(std::uint64_t)});
  add_question(all, protocol, kGetDeviceMemory, {device.begin(), device.end()});
  return all;
}

}  // namespace

std::string make_request(Command id, const std::string& fields) {
  const std::uint64_t size = fields.size();
  std::string request(1, static_cast<char>(id));
  request.append(reinterpret_cast<const char*>(&size), sizeof size);
  return request + fields;
}

void add_question(std::vector<Prefetch>& all, const Protocol& protocol, Command id,
                  const std::string& fields) {
  const Rule* rule = protocol.rule(id);
  if (rule == nullptr || rule->fields != fields.size()) return;
  all.push_back({make_request(id, fields), ReplyCache::key(*rule, view(fields))});
}

std::vector<Prefetch> prefetches(const Protocol& protocol, const Rule& rule, View fields,
                                 View reply) {
  std::vector<Prefetch> all;
  switch (rule.id) {
    case kHello:
      add_question(all, protocol, kDeviceCount, {});
      break;
    case kDeviceCount:
      return about_devices(protocol, load<std::uint32_t>(reply.data()));
    case kAllocBuffer:
      return about_buffer(protocol, fields, reply);
    case kGetAllocSize:
      for (const std::string& guess : size_guesses(fields)) {
        add_question(all, protocol, kGetAllocSize, guess);
      }
      break;
    default:
      break;
  }
  return all;
}

}  // namespace dllm
