// Both ends of the lean encodings. The input is a script that makes requests which resemble each
// other as real ones do: each must come out as it went in, and so must the input as a stream. Then
// the decoder alone gets what was written with something changed, and the input itself: it takes or
// refuses, within its bounds.
#include <algorithm>
#include <span>

#include "lean/decoder.h"
#include "lean/encoder.h"
#include "lean/stream.h"
#include "transcript.h"

namespace {

using dllm::Version;
using dllm::View;
namespace lean = dllm::lean;

void demand(bool holds) {
  if (!holds) std::abort();
}

View view(const std::string& bytes) {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

// Takes numbers from the input; zeros behind its end.
class Script {
 public:
  explicit Script(View input) : left_(input) {}
  [[nodiscard]] bool empty() const { return left_.empty(); }
  std::uint8_t next() {
    if (left_.empty()) return 0;
    const std::uint8_t value = left_[0];
    left_ = left_.subspan(1);
    return value;
  }
  std::uint32_t number() { return next() | std::uint32_t{next()} << 8; }
  std::string bytes(std::size_t most) {
    const View taken = left_.first(std::min(most, left_.size()));
    left_ = left_.subspan(taken.size());
    return {taken.begin(), taken.end()};
  }

 private:
  View left_;
};

// The numbers of a mask or of indices: constants, counts and changes, in periods or not.
std::string make_data(Script& script) {
  std::string data;
  const std::string pattern = script.bytes(1 + script.next() % 16);
  // Mostly few: what many repetitions reach, they do seldom.
  const std::uint32_t most = script.next() % 32 == 0 ? 8000 : 300;
  for (std::uint32_t left = script.number() % most; left > 0 && !pattern.empty(); --left) {
    data += pattern;
  }
  for (int left = script.next() % 8; left > 0 && !data.empty(); --left) {
    data[script.number() * 37 % data.size()] = static_cast<char>(script.next());
  }
  return data + script.bytes(script.next() % 16);
}

class Client {
 public:
  Client(Version version, Script& script) : version_(version), script_(script) {}

  std::string next() {
    switch (script_.next() % 6) {
      case 0:
        return last_ = anything();
      case 1:
        return last_ = set_tensor();
      case 2:
        return last_ = graph();
      case 3:
        return transcript::recompute(version_);
      default:
        return last_ = change(last_);
    }
  }

 private:
  std::string anything() {
    const std::uint8_t id = script_.next();
    return transcript::request(id, script_.bytes(script_.number()));
  }

  std::string set_tensor() {
    constexpr std::uint32_t types[] = {0, 1, 26, 27, 30, 8};
    transcript::TensorSpec spec;
    spec.type = types[script_.next() % std::size(types)];
    spec.ne[0] = script_.number();
    spec.name = std::to_string(script_.next() % 80);
    std::string request = transcript::set_tensor(version_, spec, make_data(script_));
    transcript::write<std::uint64_t>(request, dllm::kRequestHeaderBytes, script_.next() % 80);
    return request;
  }

  std::string graph() {
    static const std::vector<std::string> usual = usual_tensors(32);
    // Mostly small: what many tensors reach, they do seldom.
    const std::size_t most = script_.next() % 16 == 0 ? usual.size() : 8;
    const auto count = static_cast<std::ptrdiff_t>(script_.next() % most);
    std::vector<std::string> tensors(usual.begin(), usual.begin() + count);
    for (std::string& each : tensors) {
      if (script_.next() % 4 == 0) each = edit(each, 0);
    }
    return transcript::graph(version_, tensors);
  }

  static std::vector<std::string> usual_tensors(std::size_t count) {
    std::vector<std::string> tensors;
    for (std::size_t i = 0; i < count; ++i) {
      transcript::Random random(i + 1);
      tensors.push_back(transcript::tensor(transcript::random_tensor(random)));
    }
    return tensors;
  }

  std::string edit(std::string bytes, std::size_t from) {
    for (int left = script_.next() % 4; left > 0 && bytes.size() > from; --left) {
      bytes[from + script_.number() % (bytes.size() - from)] = static_cast<char>(script_.next());
    }
    return bytes;
  }

  std::string change(const std::string& request) {
    constexpr std::size_t header = dllm::kRequestHeaderBytes;
    if (request.size() < header) return anything();
    std::string changed = edit(request, header);
    if (script_.next() % 8 == 0) changed.resize(header + script_.number() % (changed.size()));
    changed += script_.bytes(script_.next() % 4);
    transcript::write<std::uint64_t>(changed, 1, changed.size() - header);
    return changed;
  }

  Version version_;
  Script& script_;
  std::string last_;
};

using Messages = std::vector<lean::Buffer>;

// One request; what crossed but the bytes as they are is added to `messages`.
void pass(lean::Encoder& encoder, lean::Decoder& decoder, const std::string& request,
          Messages& messages) {
  const View whole = view(request);
  const std::size_t wanted = encoder.wants(whole.first(dllm::kRequestHeaderBytes));
  demand(wanted <= whole.size() && wanted <= lean::kGraphRequestBytes);
  lean::Buffer out;
  const lean::Begun begun = encoder.begin(whole.first(wanted), messages.emplace_back());
  const lean::Decoded decoded = decoder.decode(messages.back(), out);
  demand(decoded.taken == messages.back().size());
  demand(begun.in_blocks ? decoded.follows == 0 : decoded.follows == whole.size() - begun.taken);
  View rest = whole.subspan(begun.taken);
  while (begun.in_blocks && !rest.empty()) {
    const View piece = rest.first(std::min(rest.size(), lean::kBlockBytes));
    encoder.block(piece, messages.emplace_back());
    demand(decoder.decode(messages.back(), out).taken == messages.back().size());
    rest = rest.subspan(piece.size());
  }
  demand(std::ranges::equal(out, whole.first(whole.size() - rest.size())));
}

// What a decoder makes of something; nothing behind junk.
void decode_anything(lean::Decoder& decoder, View bytes) {
  while (!bytes.empty()) {
    lean::Buffer out;
    const lean::Decoded decoded = decoder.decode(bytes, out);
    demand(out.size() <= lean::kGraphRequestBytes);
    demand(decoded.taken <= bytes.size() && (decoded.taken == 0) == decoder.is_lost());
    if (decoder.is_lost()) return demand(out.empty());
    bytes = bytes.subspan(decoded.taken);
    bytes = bytes.subspan(std::min<std::uint64_t>(decoded.follows, bytes.size()));
  }
}

// One byte of what was written, changed, from which on nothing is certain.
void change_one(Version version, Messages& messages, View input) {
  std::size_t at = 0;
  for (const std::uint8_t each : input) at = at * 31 + each;
  lean::Buffer& changed = messages[at % messages.size()];
  changed[at / 7 % changed.size()] ^= static_cast<std::uint8_t>(1 + at % 255);
  lean::Decoder decoder(version);
  for (const lean::Buffer& message : messages) decode_anything(decoder, message);
}

// The input as what a client sends: whatever it is, it comes out.
void send_anything(Version version, View input) {
  lean::Sender sender;
  lean::Receiver receiver;
  lean::Buffer wire, received;
  sender.learned(version);
  const std::size_t middle = input.size() / 3;
  sender.requests(input.first(middle), wire);
  sender.requests(input.subspan(middle), wire);
  sender.end(wire);
  for (View left = wire; !left.empty();) {
    left = left.subspan(receiver.take(left, received));
    demand(!receiver.is_lost());
  }
  demand(std::ranges::equal(received, input));
}

void receive_anything(View input) {
  lean::Receiver receiver;
  while (!input.empty() && !receiver.is_lost()) {
    lean::Buffer out;
    input = input.subspan(receiver.take(input, out));
    demand(out.size() <= lean::Receiver::kMostBytes + lean::kGraphRequestBytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const View input{data, size};
  Script script(input);
  const Version version = transcript::kVersions[script.next() % transcript::kVersions.size()];
  lean::Encoder encoder(version);
  lean::Decoder decoder(version), alone(version);
  Client client(version, script);
  Messages messages;
  while (!script.empty()) pass(encoder, decoder, client.next(), messages);
  if (!messages.empty()) change_one(version, messages, input);
  const View rest = input.subspan(std::min<std::size_t>(1, size));
  decode_anything(alone, rest);
  send_anything(version, rest);
  receive_anything(rest);
  return 0;
}
