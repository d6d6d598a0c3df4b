#include <fcntl.h>
#include <unistd.h>

#include "agent/process_dir.h"
#include "check.h"
#include "posix.h"

using check::slurp;
using check::spill;
using dllm::enforce_log_limit;

namespace {

dllm::UniqueFd open_dir(const check::TempDir& dir) {
  return dllm::open_at(AT_FDCWD, dir.path(), O_RDONLY | O_DIRECTORY);
}

}  // namespace

TEST(a_log_within_its_limit_is_left_alone) {
  const check::TempDir dir;
  spill(dir / "log", "12345");
  CHECK(!enforce_log_limit(open_dir(dir).get(), 5));
  CHECK(slurp(dir / "log") == "12345");
  CHECK(!std::filesystem::exists(dir / "log.1"));
}

TEST(the_newest_bytes_are_kept_aside) {
  const check::TempDir dir;
  spill(dir / "log", "0123456789");
  spill(dir / "log.1", "older");
  CHECK(enforce_log_limit(open_dir(dir).get(), 4));
  CHECK(slurp(dir / "log").empty());
  CHECK(slurp(dir / "log.1") == "6789");
}

TEST(a_writer_goes_on_at_the_beginning) {
  const check::TempDir dir;
  const auto writer = dllm::open_at(AT_FDCWD, dir / "log", O_WRONLY | O_CREAT | O_APPEND, 0600);
  dllm::write_all(writer.get(), std::string(1 << 20, 'x'), "write");
  CHECK(enforce_log_limit(open_dir(dir).get(), 1000));
  dllm::write_all(writer.get(), "next", "write");
  CHECK(slurp(dir / "log") == "next");
  CHECK(slurp(dir / "log.1") == std::string(1000, 'x'));
}

TEST(what_cannot_be_copied_is_still_emptied) {
  const check::TempDir dir;
  spill(dir / "log", "0123456789");
  std::filesystem::create_directories(dir / "log.1/in the way");
  CHECK(enforce_log_limit(open_dir(dir).get(), 4));
  CHECK(slurp(dir / "log").empty());
  CHECK(!std::filesystem::exists(dir / "log.1.tmp"));
}

TEST(no_limit_and_no_log_do_nothing) {
  const check::TempDir dir;
  CHECK(!enforce_log_limit(open_dir(dir).get(), 1));
  spill(dir / "log", "0123456789");
  CHECK(!enforce_log_limit(open_dir(dir).get(), 0));
  CHECK(slurp(dir / "log") == "0123456789");
}

RUN_TESTS()
