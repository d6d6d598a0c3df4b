// What the relay beside a worker remembers of earlier starts, kept for the relay that follows it:
// questions, and what the rpc-server was that was asked them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "relay/link.h"

namespace dllm::pair {

// The bytes of a notebook, and what they tell: none when they are damaged, or of another release.
std::string encode_notebook(const Precedents& precedents, std::string_view release);
std::optional<Precedents> decode_notebook(std::string_view data, std::string_view release);

class Notebook {
 public:
  // That of the link's worker in a directory, which is made where it is missing. What was kept
  // there, if anything is to be believed, is what the link begins with. `owner`: whose worker it is;
  // another head may have one of that name.
  Notebook(Link& link, std::string directory, std::string release, const std::string& owner = {});

  [[nodiscard]] std::string path() const { return directory_ + "/" + name_; }
  // Keeps what is new until `stop` becomes readable: no byte on the link waits for a disk.
  void run(int stop);

 private:
  void keep_news();

  Link& link_;
  const std::string directory_;
  const std::string release_;
  const std::string name_;
  std::uint64_t kept_ = 0;  // the revision
  bool has_failed_ = false;
};

}  // namespace dllm::pair
