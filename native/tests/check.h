// A test runner in one page: TEST defines a case, CHECK reports and goes on, run_tests counts.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace check {

using Case = std::pair<const char*, void (*)()>;

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

inline int failures = 0;

inline void expect(bool holds, const char* text, const char* file, int line) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, text);
}

inline int run_tests() {
  // Of one that stands still its name is told, too.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  for (const auto& [name, body] : cases()) {
    std::printf("%s\n", name);
    const auto begun = std::chrono::steady_clock::now();
    try {
      body();
    } catch (const std::exception& error) {
      ++failures;
      std::fprintf(stderr, "%s: threw %s\n", name, error.what());
    }
    const std::chrono::duration<double> took_s = std::chrono::steady_clock::now() - begun;
    if (took_s.count() >= 1) std::printf("  took %.1f s\n", took_s.count());
  }
  std::printf("%zu cases, %d failures\n", cases().size(), failures);
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

// The exception's text; empty when `body` throws nothing.
template <typename Error, typename Body>
std::string thrown(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A directory that is deleted with everything in it.
class TempDir {
 public:
  TempDir() {
    std::string form = (std::filesystem::temp_directory_path() / "dllm-test-XXXXXX").string();
    if (::mkdtemp(form.data()) == nullptr) std::abort();
    path_ = std::filesystem::canonical(form).string();
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

inline void spill(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// A file below a folder, with the folders it needs.
inline void write(const TempDir& root, const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(root / path).parent_path());
  spill(root / path, text);
}

}  // namespace check

#define TEST(name)                              \
  static void name();                           \
  static const bool registered_##name = [] {    \
    ::check::cases().emplace_back(#name, name); \
    return true;                                \
  }();                                          \
  static void name()

#define CHECK(condition) ::check::expect((condition), #condition, __FILE__, __LINE__)

#define RUN_TESTS()              \
  int main() {                   \
    return ::check::run_tests(); \
  }
