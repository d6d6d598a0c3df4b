#ifdef __APPLE__

#include <arpa/inet.h>
#include <libproc.h>
#include <mach/mach_time.h>
#include <netinet/in.h>
#include <sys/proc.h>
#include <sys/proc_info.h>
#include <sys/sysctl.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "system.h"

namespace dllm::agent {

namespace {

// KERN_PROCARGS2: the number of arguments, the path of the program, zeros, the arguments, the
// environment, each ended by a zero.
std::string process_arguments(pid_t pid) {
  int name[3] = {CTL_KERN, KERN_PROCARGS2, pid};
  std::size_t size = 0;
  if (::sysctl(name, 3, nullptr, &size, nullptr, 0) != 0) return "";
  std::string text(size, '\0');
  if (::sysctl(name, 3, text.data(), &size, nullptr, 0) != 0) return "";
  text.resize(size);
  return text;
}

struct Arguments {
  std::vector<std::string> argv;
  std::vector<std::string> env;
};

Arguments arguments_of(pid_t pid) {
  Arguments found;
  const std::string text = process_arguments(pid);
  int count = 0;
  if (text.size() < sizeof count) return found;
  std::memcpy(&count, text.data(), sizeof count);
  std::size_t at = std::min(text.find('\0', sizeof count), text.size());
  while (at < text.size() && text[at] == '\0') ++at;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\0', at), text.size());
    const bool is_argument = static_cast<int>(found.argv.size()) < count;
    if (!is_argument && end == at) break;
    (is_argument ? found.argv : found.env).push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return found;
}

bool is_loopback(const in_sockinfo& socket) {
  if (socket.insi_vflag & INI_IPV4) {
    const in_addr_t address = socket.insi_laddr.ina_46.i46a_addr4.s_addr;
    return address == htonl(INADDR_LOOPBACK) || address == htonl(INADDR_ANY);
  }
  return IN6_IS_ADDR_UNSPECIFIED(&socket.insi_laddr.ina_6);
}

bool is_listener(const socket_info& socket, int port) {
  if (socket.soi_kind != SOCKINFO_TCP) return false;
  const tcp_sockinfo& tcp = socket.soi_proto.pri_tcp;
  return tcp.tcpsi_state == TSI_S_LISTEN && is_loopback(tcp.tcpsi_ini) &&
         ntohs(static_cast<std::uint16_t>(tcp.tcpsi_ini.insi_lport)) == port;
}

}  // namespace

std::vector<pid_t> all_pids() {
  // More may start between the two calls.
  const int bytes = ::proc_listpids(PROC_ALL_PIDS, 0, nullptr, 0);
  std::vector<pid_t> pids(static_cast<std::size_t>(std::max(bytes, 0)) / sizeof(pid_t) + 64);
  const int filled =
      ::proc_listpids(PROC_ALL_PIDS, 0, pids.data(), static_cast<int>(pids.size() * sizeof(pid_t)));
  pids.resize(static_cast<std::size_t>(std::max(filled, 0)) / sizeof(pid_t));
  std::erase_if(pids, [](pid_t pid) { return pid <= 0; });
  return pids;
}

std::string variable_of(pid_t pid, const std::string& name) {
  const std::string wanted = name + "=";
  for (const std::string& item : arguments_of(pid).env) {
    if (item.starts_with(wanted)) return item.substr(wanted.size());
  }
  return "";
}

std::vector<std::string> argv_of(pid_t pid) {
  return arguments_of(pid).argv;
}

std::string name_of(pid_t pid) {
  char name[2 * MAXCOMLEN + 1] = "";
  return ::proc_name(pid, name, sizeof name) > 0 ? name : "";
}

std::optional<std::uint64_t> rss_bytes(pid_t pid) {
  proc_taskinfo info{};
  const int size = ::proc_pidinfo(pid, PROC_PIDTASKINFO, 0, &info, sizeof info);
  if (size != static_cast<int>(sizeof info)) return std::nullopt;
  return info.pti_resident_size;
}

std::optional<std::uint64_t> cpu_ms(pid_t pid) {
  proc_taskinfo info{};
  const int size = ::proc_pidinfo(pid, PROC_PIDTASKINFO, 0, &info, sizeof info);
  mach_timebase_info_data_t base{};
  if (size != static_cast<int>(sizeof info) || ::mach_timebase_info(&base) != KERN_SUCCESS) {
    return std::nullopt;
  }
  // Not nanoseconds but the ticks of the clock, of which this base tells.
  const double ns =
      static_cast<double>(info.pti_total_user + info.pti_total_system) * base.numer / base.denom;
  return static_cast<std::uint64_t>(ns / 1e6);
}

bool is_stopped(pid_t pid) {
  proc_bsdinfo info{};
  const int size = ::proc_pidinfo(pid, PROC_PIDTBSDINFO, 0, &info, sizeof info);
  return size == static_cast<int>(sizeof info) && info.pbi_status == SSTOP;
}

bool listens(pid_t pid, int port) {
  if (pid <= 0) return false;
  const int bytes = ::proc_pidinfo(pid, PROC_PIDLISTFDS, 0, nullptr, 0);
  if (bytes <= 0) return false;
  std::vector<proc_fdinfo> fds(static_cast<std::size_t>(bytes) / sizeof(proc_fdinfo) + 16);
  const int filled = ::proc_pidinfo(pid, PROC_PIDLISTFDS, 0, fds.data(),
                                    static_cast<int>(fds.size() * sizeof(proc_fdinfo)));
  fds.resize(static_cast<std::size_t>(std::max(filled, 0)) / sizeof(proc_fdinfo));
  return std::any_of(fds.begin(), fds.end(), [&](const proc_fdinfo& fd) {
    if (fd.proc_fdtype != PROX_FDTYPE_SOCKET) return false;
    socket_fdinfo socket{};
    const int size =
        ::proc_pidfdinfo(pid, fd.proc_fd, PROC_PIDFDSOCKETINFO, &socket, sizeof socket);
    return size == static_cast<int>(sizeof socket) && is_listener(socket.psi, port);
  });
}

std::optional<pid_t> listener_on(int port) {
  std::vector<pid_t> pids = all_pids();
  std::sort(pids.begin(), pids.end());
  for (const pid_t pid : pids) {
    if (listens(pid, port)) return pid;
  }
  return std::nullopt;
}

}  // namespace dllm::agent

#endif
