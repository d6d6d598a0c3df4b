#include "listeners_linux.h"

#ifdef __linux__

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <sstream>
#include <system_error>

#include "posix.h"

namespace dllm::agent {

namespace {

constexpr std::size_t kAnswerMax = 32U << 10;
constexpr std::size_t kTableMax = 64U << 20;
constexpr const char* kListening = "0A";

struct Question {
  nlmsghdr header;
  inet_diag_req_v2 asked;
};

// --- the kernel, asked for listeners alone ---------------------------------------------

bool ask(const UniqueFd& kernel, int family, int port) {
  Question question{};
  question.header.nlmsg_len = sizeof question;
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  question.asked.sdiag_family = static_cast<std::uint8_t>(family);
  question.asked.sdiag_protocol = IPPROTO_TCP;
  question.asked.idiag_states = 1U << TCP_LISTEN;
  question.asked.id.idiag_sport = htons(static_cast<std::uint16_t>(port));
  return ::send(kernel.get(), &question, sizeof question, 0) == sizeof question;
}

bool is_loopback(const inet_diag_msg& found) {
  const std::uint32_t* address = found.id.idiag_src;
  const std::uint32_t last = htonl(INADDR_LOOPBACK);
  if (found.idiag_family == AF_INET) return address[0] == 0 || address[0] == last;
  if (address[0] != 0 || address[1] != 0) return false;
  const bool any = address[2] == 0 && address[3] == 0;
  return any || (address[2] == htonl(0xFFFF) && address[3] == last);
}

// Whether all went well, which the last message says; none while there are more.
std::optional<bool> take(const nlmsghdr* message, std::set<std::string>& inodes) {
  const auto* content = static_cast<const unsigned char*>(NLMSG_DATA(message));
  int error = 0;
  switch (message->nlmsg_type) {
    case NLMSG_DONE:
      if (message->nlmsg_len >= NLMSG_LENGTH(sizeof error)) {
        std::memcpy(&error, content, sizeof error);
      }
      return error == 0;
    case SOCK_DIAG_BY_FAMILY: {
      inet_diag_msg found;
      if (message->nlmsg_len < NLMSG_LENGTH(sizeof found)) return false;
      std::memcpy(&found, content, sizeof found);
      if (is_loopback(found)) inodes.insert(std::to_string(found.idiag_inode));
      return std::nullopt;
    }
    default:
      return false;
  }
}

// False where the kernel does not answer such questions.
bool told_by_kernel(int family, int port, std::set<std::string>& inodes) {
  const UniqueFd kernel(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!kernel || !ask(kernel, family, port)) return false;
  for (;;) {
    alignas(nlmsghdr) char answer[kAnswerMax];
    const ssize_t size = retry([&] { return ::recv(kernel.get(), answer, sizeof answer, 0); });
    if (size <= 0) return false;
    auto left = static_cast<std::uint32_t>(size);
    const auto* message = reinterpret_cast<const nlmsghdr*>(answer);
    for (; NLMSG_OK(message, left); message = NLMSG_NEXT(message, left)) {
      if (const auto end = take(message, inodes)) return *end;
    }
  }
}

// --- its table of every connection -----------------------------------------------------

// An address as /proc/net/tcp and tcp6 write it.
bool is_loopback(const std::string& address) {
  return address == "0100007F" || address == "00000000" ||
         address == "00000000000000000000000000000000" ||
         address == "0000000000000000FFFF00000100007F";
}

std::string read_table(const char* path) {
  try {
    return read_all(open_at(AT_FDCWD, path, O_RDONLY).get(), kTableMax);
  } catch (const std::system_error&) {
    return "";
  }
}

void look_up(const char* table, int port, std::set<std::string>& inodes) {
  std::istringstream lines(read_table(table));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, skipped, inode;
    fields >> slot >> local >> remote >> state;
    for (int i = 0; i < 5; ++i) fields >> skipped;
    fields >> inode;
    const std::size_t colon = local.find(':');
    if (!fields || state != kListening || colon == std::string::npos) continue;
    int found = 0;
    std::from_chars(local.data() + colon + 1, local.data() + local.size(), found, 16);
    if (found == port && is_loopback(local.substr(0, colon))) inodes.insert(inode);
  }
}

}  // namespace

std::set<std::string> listeners(int port) {
  std::set<std::string> inodes;
  const bool told = told_by_kernel(AF_INET, port, inodes) && told_by_kernel(AF_INET6, port, inodes);
  // The table costs a look at room for every connection that the machine could have.
  return told ? inodes : listeners_by_table(port);
}

std::set<std::string> listeners_by_table(int port) {
  std::set<std::string> inodes;
  look_up("/proc/net/tcp", port, inodes);
  look_up("/proc/net/tcp6", port, inodes);
  return inodes;
}

}  // namespace dllm::agent

#endif
