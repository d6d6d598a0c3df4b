#include "identity.h"

#include <fcntl.h>

#include <sstream>
#include <system_error>

#include "posix.h"

#ifdef __APPLE__
#include <libproc.h>
#endif

namespace dllm {

#ifdef __APPLE__

std::string start_id(pid_t pid) {
  proc_bsdinfo info{};
  // Answers nothing for a zombie (its last but one argument would ask for them).
  const int size = ::proc_pidinfo(pid, PROC_PIDTBSDINFO, 0, &info, sizeof info);
  if (size != static_cast<int>(sizeof info)) return "";
  return std::to_string(info.pbi_start_tvsec * 1'000'000 + info.pbi_start_tvusec);
}

#else

namespace {

constexpr std::size_t kProcFileMax = 4096;
constexpr int kFieldsBetweenStateAndStart = 18;

std::string slurp(const std::string& path) {
  try {
    return read_all(open_at(AT_FDCWD, path, O_RDONLY).get(), kProcFileMax);
  } catch (const std::system_error&) {
    return "";
  }
}

}  // namespace

std::string start_id(pid_t pid) {
  const std::string stat = slurp("/proc/" + std::to_string(pid) + "/stat");
  // The second field is the program's name in brackets and may itself hold brackets.
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return "";
  std::istringstream fields(stat.substr(name_end + 1));
  std::string state, field, start_ticks, boot_id;
  fields >> state;
  for (int i = 0; i < kFieldsBetweenStateAndStart; ++i) fields >> field;
  fields >> start_ticks;
  if (!fields || state == "Z" || state == "X") return "";
  std::istringstream(slurp("/proc/sys/kernel/random/boot_id")) >> boot_id;
  return boot_id + ":" + start_ticks;
}

#endif

}  // namespace dllm
