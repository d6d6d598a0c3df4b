// What has no business on the wire. A stock worker trusts its client: these requests would crash
// it or run code in it. Everything else that is wrong it refuses itself, by closing.
#pragma once

#include "decoder.h"

namespace dllm::guard {

// Each returns why the request must not reach the worker, or null.

// A header: a size that would abort the worker or exhaust its memory.
const char* refuses_size(const Rule* rule, std::uint64_t size);
// The fixed part of a request: tensor regions that wrap around, impossible types.
const char* refuses_fields(const Request& request, View fields);
// A tensor of a graph: in addition, ops that this version cannot have or that call into memory.
const char* refuses_tensor(Version version, Tensor tensor);

// Whether the op numbers of this version are known; without them ops are not judged.
bool knows_ops(Version version);

}  // namespace dllm::guard
