#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "answer.h"
#include "family.h"
#include "ports.h"
#include "posix.h"
#include "process_dir.h"
#include "protocol/json.h"
#include "system.h"
#include "work.h"

namespace dllm::agent {

namespace {

// A read shorter than the longest UTF-8 sequence could never get past one.
constexpr std::int64_t kLogReadMin = 4;
constexpr std::int64_t kLogReadMax = 4 << 20;
constexpr int kPortMax = 65535;

int port_in(const json::Value& request) {
  const std::int64_t port = json::integer_of(request, "port");
  if (port < 1 || port > kPortMax) throw Refusal(kBadRequest, "there is no such port");
  return static_cast<int>(port);
}

pid_t pid_of(std::int64_t number) {
  return number > 0 && number <= INT32_MAX ? static_cast<pid_t>(number) : 0;
}

// None when there is no log.
UniqueFd open_log(const std::string& path, const std::string& name) {
  UniqueFd log(retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  struct stat status{};
  if (log && (::fstat(log.get(), &status) != 0 || !S_ISREG(status.st_mode))) {
    throw Refusal(kFailed, "the log of " + name + " cannot be read (it is no file)");
  }
  if (!log && errno != ENOENT && errno != ENOTDIR) {
    throw Refusal(kFailed, "the log of " + name + " cannot be read (" + std::strerror(errno) + ")");
  }
  return log;
}

// Where to read a log of that size: from the end if negative, anew if beyond the end.
std::int64_t first_byte(std::int64_t offset, std::int64_t size) {
  if (offset < 0) return std::max<std::int64_t>(size + offset, 0);
  return offset <= size ? offset : 0;
}

std::string read_at(const UniqueFd& log, std::int64_t start, std::int64_t limit) {
  check(::lseek(log.get(), static_cast<off_t>(start), SEEK_SET), "cannot read the log");
  return read_all(log.get(), static_cast<std::size_t>(limit));
}

}  // namespace

std::string base64(std::string_view data) {
  constexpr const char* kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((data.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < data.size(); at += 3) {
    const std::string_view part = data.substr(at, 3);
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      bits = bits << 8 | (i < part.size() ? static_cast<unsigned char>(part[i]) : 0U);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      out += i <= part.size() ? kDigits[bits >> (18 - 6 * i) & 63] : '=';
    }
  }
  return out;
}

std::string name_in(const json::Value& request) {
  std::string name = json::text_of(request, "name");
  if (!is_process_name(name)) {
    throw Refusal(kBadName, "'" + name + "' cannot be the name of a process");
  }
  return name;
}

std::string records_of(const RunDir& run, const json::Value& request) {
  const bool is_one = request.find("name") != nullptr;
  std::vector<std::string> names = is_one ? std::vector{name_in(request)} : run.names();
  std::vector<std::string> records;
  for (const std::string& name : names) {
    if (const auto record = run.read_settled(name)) records.push_back(to_json(*record, true));
  }
  return json::Object().raw("records", json::list(records)).str();
}

std::string log_of(const RunDir& run, const json::Value& request) {
  const std::string name = name_in(request);
  const std::int64_t offset = json::integer_of(request, "offset");
  const std::int64_t limit =
      std::clamp(json::integer_of(request, "limit"), kLogReadMin, kLogReadMax);
  const UniqueFd log = open_log(run.directory(name) + "/" + kLogFile, name);
  const auto record = run.read(name);
  if (!log && !record) throw Refusal(kUnknown, "There is no process called " + name);
  struct stat status{};
  if (log) check(::fstat(log.get(), &status), "cannot read the log");
  const std::int64_t start = first_byte(offset, status.st_size);
  json::Object result;
  result.number("size", std::int64_t{status.st_size}).number("start", start);
  result.text("data", log ? base64(read_at(log, start, limit)) : "");
  return result.flag("ended", !record || !record->alive).str();
}

std::string listens_of(const json::Value& request) {
  const pid_t pid = pid_of(json::integer_of(request, "pid"));
  return json::Object().flag("listens", listens(pid, port_in(request))).str();
}

std::string port_owner_of(const json::Value& request) {
  const int port = port_in(request);
  json::Object result;
  const bool used = is_port_used(port);
  result.flag("used", used);
  const auto owner = used ? listener_on(port) : std::nullopt;
  if (owner) result.number("pid", *owner).text("name", name_of(*owner));
  return result.str();
}

std::string rss_of(const json::Value& request) {
  json::Object bytes;
  const json::Value* const pids = request.find("pids");
  if (pids == nullptr) throw Refusal(kBadRequest, "'pids' is missing");
  for (const json::Value& item : pids->array("pids")) {
    const pid_t pid = pid_of(item.integer("pids"));
    const auto found = pid > 0 ? rss_bytes(pid) : std::nullopt;
    if (found) bytes.number(std::to_string(pid), *found);
  }
  return json::Object().raw("rss_bytes", bytes.str()).str();
}

std::string orphans_of(const RunDir& run) {
  std::vector<std::string> orphans;
  for (const Orphan& orphan : find_orphans(run)) {
    json::Object object;
    object.text("name", orphan.name).number("pid", orphan.member.pid);
    object.text("start_id", orphan.member.start_id).raw("argv", json::array(orphan.argv));
    orphans.push_back(object.str());
  }
  return json::Object().raw("orphans", json::list(orphans)).str();
}

}  // namespace dllm::agent
