#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>

#include "agent/run_program.h"
#include "check.h"
#include "posix.h"

using dllm::agent::Outcome;
using dllm::agent::Program;
using dllm::agent::run_program;

namespace {

Program shell(const std::string& code) {
  Program program;
  program.argv = {"sh", "-c", code};
  return program;
}

// Nobody ever leaves.
Outcome run(const Program& program) {
  const dllm::Pipe lifeline = dllm::make_pipe();
  return run_program(program, lifeline.reader.get());
}

bool is_gone(const std::string& pid) {
  for (int i = 0; i < 500; ++i) {
    if (::kill(std::stoi(pid), 0) != 0) return true;
    ::usleep(10'000);
  }
  return false;
}

}  // namespace

TEST(output_and_status) {
  Program program = shell("echo out; echo \"$MINE\" >&2; pwd; exit 3");
  program.env = {{"MINE", "a=b"}};
  const Outcome outcome = run(program);
  CHECK(outcome.code == 3 && !outcome.signal && !outcome.timed_out && !outcome.truncated);
  CHECK(outcome.out == "out\n/\n" && outcome.err == "a=b\n");
  CHECK(run(shell("kill -TERM $$")).signal == SIGTERM);
}

TEST(output_is_bounded) {
  Program program = shell("head -c 3000000 /dev/zero; head -c 10 /dev/zero >&2");
  program.limit_bytes = 1000;
  const Outcome outcome = run(program);
  CHECK(outcome.truncated && outcome.out.size() == 1000 && outcome.err.size() == 10);
}

TEST(nothing_of_its_group_lives_on) {
  const Outcome outcome = run(shell("sleep 600 & echo $!"));
  CHECK(outcome.code == 0);
  CHECK(is_gone(outcome.out));
}

TEST(it_ends_in_time) {
  Program program = shell("trap '' TERM; echo $$; sleep 600 & wait");
  program.timeout = std::chrono::milliseconds(200);
  const Outcome outcome = run(program);
  CHECK(outcome.timed_out && outcome.signal == SIGKILL);
  CHECK(is_gone(outcome.out));
}

TEST(it_ends_when_it_has_said_what_was_waited_for) {
  Program program = shell("printf 'almost said'; sleep 0.1; echo ' it all'; sleep 600");
  program.until = {"nothing", "said"};
  const Outcome outcome = run(program);
  CHECK(!outcome.timed_out && outcome.signal == SIGKILL);
  CHECK(outcome.out == "almost said it all\n");
}

TEST(a_port_is_touched_once_somebody_listens) {
  const dllm::UniqueFd listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const where = reinterpret_cast<sockaddr*>(&address);
  CHECK(::bind(listener.get(), where, size) == 0 && ::listen(listener.get(), 4) == 0);
  CHECK(::getsockname(listener.get(), where, &size) == 0);
  Program program = shell("sleep 0.2");
  program.touch_port = ntohs(address.sin_port);
  CHECK(run(program).code == 0);
  ::fcntl(listener.get(), F_SETFL, O_NONBLOCK);
  CHECK(static_cast<bool>(dllm::UniqueFd(::accept(listener.get(), nullptr, nullptr))));
  CHECK(!dllm::UniqueFd(::accept(listener.get(), nullptr, nullptr)));
}

TEST(it_ends_with_whoever_asked) {
  dllm::Pipe lifeline = dllm::make_pipe();
  lifeline.writer.reset();
  const Outcome outcome = run_program(shell("sleep 600"), lifeline.reader.get());
  CHECK(outcome.signal == SIGKILL);
}

TEST(what_cannot_be_executed_says_so) {
  Program program;
  program.argv = {"/no/such"};
  CHECK(check::contains(check::thrown<std::runtime_error>([&] { run(program); }),
                        "cannot execute '/no/such': No such file"));
}

RUN_TESTS()
