// The GPUs of this machine and what they do now, as drivers tell any user of it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dllm::agent {

struct Gpu {
  std::string vendor;  // "nvidia", "amd", "intel"
  std::string name;    // empty where the driver tells none
  std::string pci;     // 0000:65:00.0
  std::optional<int> load_percent;
  std::optional<std::uint64_t> used_bytes, total_bytes;
  std::optional<int> celsius;
  std::optional<std::uint64_t> power_mw, power_limit_mw;
  std::optional<int> clock_mhz;
};

inline constexpr const char* kNvml = "libnvidia-ml.so.1";

// NVIDIA's library for this, opened while we run: nothing is built against it, and one that lacks
// the library or a function of it has no such figure.
class Nvml {
 public:
  explicit Nvml(const std::string& library = kNvml);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  [[nodiscard]] std::vector<Gpu> read() const;

 private:
  struct Functions;
  std::unique_ptr<Functions> functions_;
};

// AMD's and Intel's, by the files below `root` ("" on a real system).
class SysfsGpus {
 public:
  explicit SysfsGpus(std::string root = "") : root_(std::move(root)) {}

  // `now_us` is of a steady clock: some drivers count energy, not power.
  std::vector<Gpu> read(std::int64_t now_us);

 private:
  struct Energy {
    std::uint64_t joules_e6;
    std::int64_t at_us;
  };

  std::optional<std::uint64_t> power_mw(const std::string& pci, std::uint64_t joules_e6,
                                        std::int64_t now_us);

  std::string root_;
  std::map<std::string, Energy> before_;  // by PCI address
};

}  // namespace dllm::agent
