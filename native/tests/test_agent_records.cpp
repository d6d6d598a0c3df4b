#include <sys/stat.h>
#include <unistd.h>

#include "agent/process_dir.h"
#include "agent/records.h"
#include "agent/requests.h"
#include "check.h"

using check::spill;
using check::TempDir;
using dllm::agent::is_process_name;
using dllm::agent::Lines;
using dllm::agent::RunDir;

namespace {

void make(const TempDir& run, const std::string& name, const std::string& process) {
  ::mkdir((run / name).c_str(), 0700);
  spill(run / (name + "/process.json"), process);
}

std::string me() {
  return R"({"pid":)" + std::to_string(::getpid()) + R"(,"start_id":")" +
         dllm::start_id(::getpid()) + R"(","argv":["a"],"meta":"{}"})";
}

}  // namespace

TEST(names) {
  for (const char* good : {"a", "default/worker-a", "A.b_c-9", "0/0"}) CHECK(is_process_name(good));
  for (const char* bad : {"", ".", "..", "/", "a/", "/a", "a//b", "a/b/c", "../a", "a/..", ".a",
                          "a b", "a\n", "é", "-a"}) {
    CHECK(!is_process_name(bad));
  }
  CHECK(is_process_name(std::string(64, 'a')) && !is_process_name(std::string(65, 'a')));
}

TEST(processes_of_both_layouts_are_listed) {
  const TempDir run;
  make(run, "bare", me());
  ::mkdir((run / "default").c_str(), 0700);
  make(run, "default/w", me());
  ::mkdir((run / "empty").c_str(), 0700);
  spill(run / "a-file", "");
  const RunDir dir(run.path());
  CHECK((dir.clusters() == std::vector<std::string>{"default", "empty"}));
  CHECK((dir.names() == std::vector<std::string>{"bare", "default/w"}));
  CHECK(dir.read("bare")->alive && dir.read("default/w")->name == "default/w");
  CHECK(!dir.read("empty") && !dir.read("default/none"));
}

TEST(damaged_records_are_ended_ones_without_a_number) {
  const TempDir run;
  const RunDir dir(run.path());
  for (const char* damage :
       {"", "{", "null", "[]", "\xff\xfe", R"({"pid":"x","start_id":1})", "{}",
        R"({"pid":99999999999,"start_id":"x"})", R"({"pid":-4,"start_id":"x"})",
        R"({"pid":1,"start_id":"x","argv":[1]})"}) {
    make(run, "p", damage);
    const auto record = dir.read("p");
    CHECK(record && record->pid == 0 && !record->alive && record->argv.empty());
  }
}

TEST(ends_count_for_their_own_process_only) {
  const TempDir run;
  const RunDir dir(run.path());
  make(run, "p", R"({"pid":1,"start_id":"gone"})");
  CHECK(!dir.read("p")->end_known);
  spill(run / "p/exit.json", R"({"pid":1,"start_id":"gone","code":3,"signal":null})");
  CHECK(dir.read("p")->end_known && dir.read("p")->code == 3 && !dir.read("p")->signal);
  spill(run / "p/exit.json", R"({"pid":2,"start_id":"gone","code":3,"signal":null})");
  CHECK(!dir.read("p")->end_known);
  spill(run / "p/exit.json", R"({"pid":1,"start_id":"gone","code":"3"})");
  CHECK(!dir.read("p")->end_known && !dir.read("p")->code);
}

TEST(a_run_directory_that_is_not_there_or_no_directory) {
  const TempDir run;
  CHECK(RunDir(run / "none").names().empty());
  spill(run / "file", "");
  CHECK(!check::thrown<std::runtime_error>([&] {
           static_cast<void>(RunDir(run / "file").names());
         }).empty());
}

TEST(lines_are_cut_and_bounded) {
  Lines lines;
  lines.add("one\ntw");
  CHECK(lines.next() == std::optional<std::string>("one"));
  CHECK(!lines.next());
  lines.add("o\n\n");
  CHECK(lines.next() == std::optional<std::string>("two"));
  CHECK(lines.next() == std::optional<std::string>(""));
  const std::string piece(1 << 16, 'x');
  int told = 0;
  for (int i = 0; i < 40; ++i) {
    lines.add(piece);
    while (const auto line = lines.next()) {
      CHECK(!*line);
      ++told;
    }
  }
  CHECK(told == 1);
  lines.add("end\nnext\n");
  CHECK(lines.next() == std::optional<std::string>("next"));
  lines.add(std::string(dllm::agent::kLineBytesMax + 1, 'x') + "\nz\n");
  CHECK(!*lines.next());
  CHECK(lines.next() == std::optional<std::string>("z"));
}

RUN_TESTS()
