// What the relay beside a worker asks it by itself, right behind what llama-server asked: the
// answers that are known to be wanted next. Each is of the very worker that is asked.
#pragma once

#include <string>
#include <vector>

#include "protocol/commands.h"
#include "reply_cache.h"

namespace dllm {

// A request of our own, and what its answer is kept by.
struct Prefetch {
  std::string request;
  std::string key;
};

// Behind others. None where this version has other fields.
void add_question(std::vector<Prefetch>& all, const Protocol& protocol, Command id,
                  const std::string& fields);
// As a client would write it.
std::string make_request(Command id, const std::string& fields);

// Of the request with these fields, which has got this reply.
std::vector<Prefetch> prefetches(const Protocol& protocol, const Rule& rule, View fields,
                                 View reply);

}  // namespace dllm
