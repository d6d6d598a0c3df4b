// Which sizes of tensors a client asks for next: what it computes for many tokens it soon computes
// for one and for two.
#pragma once

#include <string>
#include <vector>

#include "protocol/decoder.h"

namespace dllm {

// Fields of GET_ALLOC_SIZE like these, which ask about a product of a weight or an attention over
// several tokens, for fewer. None of what is neither: nothing without a meaning is ever asked.
std::vector<std::string> size_guesses(View fields);

}  // namespace dllm
