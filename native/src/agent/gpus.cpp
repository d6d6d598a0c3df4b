#include "gpus.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <utility>

#include "control_groups.h"

namespace dllm::agent {

namespace {

constexpr std::size_t kGpusMax = 64;

// As nvml.h has them; their layout is part of its stable interface.
constexpr int kNvmlSuccess = 0;
constexpr int kNvmlOnDie = 0;
constexpr int kNvmlClockOfCores = 1;

// "00000000:65:00.0" as the kernel writes it: 0000:65:00.0, in lower case.
std::string kernel_address(std::string id) {
  const std::size_t colon = id.find(':');
  // The kernel's domain has four digits, or more where they are needed.
  if (colon == 8 && id.starts_with("0000")) id.erase(0, 4);
  std::transform(id.begin(), id.end(), id.begin(), [](unsigned char c) { return std::tolower(c); });
  return id;
}

}  // namespace

struct Nvml::Functions {
  using Device = void*;

  struct Utilization {
    unsigned gpu, memory;
  };

  struct Memory1 {
    unsigned long long total, free, used;
  };

  // Without what the driver keeps for itself, as nvidia-smi shows it.
  struct Memory2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
  };

  struct Pci {
    char legacy_id[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char id[32];
  };

  explicit Functions(const std::string& name) : library(::dlopen(name.c_str(), RTLD_NOW)) {
    find(init, "nvmlInit_v2");
    find(shutdown, "nvmlShutdown");
    find(count, "nvmlDeviceGetCount_v2");
    find(handle, "nvmlDeviceGetHandleByIndex_v2");
    find(device_name, "nvmlDeviceGetName");
    find(pci, "nvmlDeviceGetPciInfo_v3");
    find(utilization, "nvmlDeviceGetUtilizationRates");
    find(memory, "nvmlDeviceGetMemoryInfo");
    find(memory2, "nvmlDeviceGetMemoryInfo_v2");
    find(temperature, "nvmlDeviceGetTemperature");
    find(power, "nvmlDeviceGetPowerUsage");
    find(power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    find(clock, "nvmlDeviceGetClockInfo");
    works = init != nullptr && count != nullptr && handle != nullptr && init() == kNvmlSuccess;
  }
  ~Functions() {
    if (works && shutdown != nullptr) shutdown();
    if (library != nullptr) ::dlclose(library);
  }
  Functions(const Functions&) = delete;
  Functions& operator=(const Functions&) = delete;

  template <typename Function>
  void find(Function*& function, const char* name) const {
    if (library != nullptr) function = reinterpret_cast<Function*>(::dlsym(library, name));
  }

  [[nodiscard]] Gpu read(Device device) const {
    Gpu gpu;
    gpu.vendor = "nvidia";
    std::array<char, 96> text{};
    if (done(device_name, device, text.data(), unsigned{text.size()})) gpu.name = text.data();
    Pci address{};
    if (done(pci, device, &address)) {
      address.id[sizeof address.id - 1] = '\0';
      gpu.pci = kernel_address(address.id);
    }
    Utilization loads{};
    if (done(utilization, device, &loads)) gpu.load_percent = static_cast<int>(loads.gpu);
    read_memory(gpu, device);
    unsigned number = 0;
    if (done(temperature, device, kNvmlOnDie, &number)) gpu.celsius = static_cast<int>(number);
    if (done(power, device, &number)) gpu.power_mw = number;
    if (done(power_limit, device, &number)) gpu.power_limit_mw = number;
    if (done(clock, device, kNvmlClockOfCores, &number)) gpu.clock_mhz = static_cast<int>(number);
    return gpu;
  }

  void read_memory(Gpu& gpu, Device device) const {
    Memory2 two{};
    two.version = sizeof two | 2U << 24;
    Memory1 one{};
    if (done(memory2, device, &two)) {
      gpu.used_bytes = two.used;
      gpu.total_bytes = two.total;
    } else if (done(memory, device, &one)) {
      gpu.used_bytes = one.used;
      gpu.total_bytes = one.total;
    }
  }

  template <typename Function, typename... Arguments>
  static bool done(Function* function, Arguments... arguments) {
    return function != nullptr && function(arguments...) == kNvmlSuccess;
  }

  void* library;
  bool works = false;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, Device*) = nullptr;
  int (*device_name)(Device, char*, unsigned) = nullptr;
  int (*pci)(Device, Pci*) = nullptr;
  int (*utilization)(Device, Utilization*) = nullptr;
  int (*memory)(Device, Memory1*) = nullptr;
  int (*memory2)(Device, Memory2*) = nullptr;
  int (*temperature)(Device, int, unsigned*) = nullptr;
  int (*power)(Device, unsigned*) = nullptr;
  int (*power_limit)(Device, unsigned*) = nullptr;
  int (*clock)(Device, int, unsigned*) = nullptr;
};

Nvml::Nvml(const std::string& library) : functions_(std::make_unique<Functions>(library)) {}

Nvml::~Nvml() = default;

std::vector<Gpu> Nvml::read() const {
  std::vector<Gpu> gpus;
  unsigned count = 0;
  if (!functions_->works || functions_->count(&count) != kNvmlSuccess) return gpus;
  for (unsigned index = 0; index < std::min<std::size_t>(count, kGpusMax); ++index) {
    Functions::Device device = nullptr;
    if (functions_->handle(index, &device) == kNvmlSuccess)
      gpus.push_back(functions_->read(device));
  }
  return gpus;
}

namespace {

constexpr const char* kAmd = "0x1002";
constexpr const char* kIntel = "0x8086";

std::optional<std::uint64_t> number_of(const std::string& file) {
  return number_in(slurp(file));
}

// A count in other units; none where there is none.
std::optional<std::uint64_t> scaled(std::optional<std::uint64_t> count, std::uint64_t by) {
  return count ? std::optional(*count / by) : std::nullopt;
}

std::optional<int> small(std::optional<std::uint64_t> count) {
  return count ? std::optional(static_cast<int>(*count)) : std::nullopt;
}

// The first of these files that holds a number.
std::optional<std::uint64_t> first_of(const std::string& folder,
                                      const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (const auto found = number_of(folder + name)) return found;
  }
  return std::nullopt;
}

std::string first_line(const std::string& file) {
  const std::string text = slurp(file);
  return text.substr(0, text.find('\n'));
}

// The folder of a card's sensors, with a final slash; empty where it has none.
std::string sensors_of(const std::string& device) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(device + "hwmon", error)) {
    return entry.path().string() + "/";
  }
  return "";
}

void read_amd(Gpu& gpu, const std::string& device) {
  gpu.vendor = "amd";
  gpu.name = first_line(device + "product_name");
  gpu.load_percent = small(number_of(device + "gpu_busy_percent"));
  gpu.used_bytes = number_of(device + "mem_info_vram_used");
  gpu.total_bytes = number_of(device + "mem_info_vram_total");
}

void read_intel(Gpu& gpu, const std::string& card, const std::string& device) {
  gpu.vendor = "intel";
  // i915's file is the card's, xe's the device's.
  gpu.clock_mhz = small(number_of(card + "gt_act_freq_mhz"));
  if (!gpu.clock_mhz) gpu.clock_mhz = small(number_of(device + "tile0/gt0/freq0/act_freq"));
}

}  // namespace

std::vector<Gpu> SysfsGpus::read(std::int64_t now_us) {
  std::vector<Gpu> gpus;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root_ + "/sys/class/drm", error)) {
    const std::string name = entry.path().filename();
    // A connector is called card0-HDMI-A-1.
    if (!name.starts_with("card") || name.find('-') != std::string::npos) continue;
    const std::string card = entry.path().string() + "/", device = card + "device/";
    const std::string vendor = first_line(device + "vendor");
    if (vendor != kAmd && vendor != kIntel) continue;
    Gpu gpu;
    std::error_code lost;
    gpu.pci = std::filesystem::canonical(device, lost).filename();
    vendor == kAmd ? read_amd(gpu, device) : read_intel(gpu, card, device);
    if (const std::string sensors = sensors_of(device); !sensors.empty()) {
      // The first is the edge of the die, or where there is none, its package.
      gpu.celsius = small(scaled(first_of(sensors, {"temp1_input", "temp2_input"}), 1000));
      gpu.power_mw = scaled(first_of(sensors, {"power1_average", "power1_input"}), 1000);
      gpu.power_limit_mw = scaled(first_of(sensors, {"power1_cap", "power1_max"}), 1000);
      if (const auto joules = number_of(sensors + "energy1_input"); joules && !gpu.power_mw) {
        gpu.power_mw = power_mw(gpu.pci, *joules, now_us);
      }
      if (!gpu.clock_mhz)
        gpu.clock_mhz = small(scaled(number_of(sensors + "freq1_input"), 1'000'000));
    }
    const bool told = gpu.load_percent || gpu.total_bytes || gpu.celsius || gpu.power_mw;
    if (told && gpus.size() < kGpusMax) gpus.push_back(std::move(gpu));
  }
  std::sort(gpus.begin(), gpus.end(),
            [](const Gpu& one, const Gpu& two) { return one.pci < two.pci; });
  return gpus;
}

std::optional<std::uint64_t> SysfsGpus::power_mw(const std::string& pci, std::uint64_t joules_e6,
                                                 std::int64_t now_us) {
  const auto [place, is_first] = before_.try_emplace(pci, Energy{joules_e6, now_us});
  const Energy before = std::exchange(place->second, Energy{joules_e6, now_us});
  if (is_first || now_us <= before.at_us || joules_e6 < before.joules_e6) return std::nullopt;
  return (joules_e6 - before.joules_e6) * 1000 / static_cast<std::uint64_t>(now_us - before.at_us);
}

}  // namespace dllm::agent
