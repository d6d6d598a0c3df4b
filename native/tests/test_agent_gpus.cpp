#include <filesystem>

#include "agent/gpus.h"
#include "check.h"

using check::TempDir;
using check::write;
using dllm::agent::Gpu;
using dllm::agent::Nvml;
using dllm::agent::SysfsGpus;

namespace {

// The files of a card, which its class names by a link.
void card(const TempDir& root, const std::string& name, const std::string& pci,
          const std::string& vendor) {
  const std::string device = "sys/devices/pci0000:00/" + pci;
  write(root, device + "/vendor", vendor + "\n");
  write(root, "sys/class/drm/" + name + "/dev", "226:0\n");
  std::filesystem::create_directory_symlink(root / device,
                                            root / ("sys/class/drm/" + name + "/device"));
}

}  // namespace

TEST(nvidia_tells_by_its_library) {
  const std::vector<Gpu> gpus = Nvml(DLLM_NVML_STUB).read();
  CHECK(gpus.size() == 2);
  const Gpu& one = gpus[0];
  CHECK(one.vendor == "nvidia" && one.name == "NVIDIA H100" && one.pci == "0000:65:00.0");
  CHECK(one.load_percent == 93 && one.celsius == 64);
  CHECK(one.used_bytes == 41000U && one.total_bytes == 80000U);
  CHECK(one.power_mw == 312'000U && one.power_limit_mw == 700'000U);
}

TEST(a_function_that_is_missing_or_refuses_is_no_figure) {
  const std::vector<Gpu> gpus = Nvml(DLLM_NVML_STUB).read();
  CHECK(!gpus[0].clock_mhz);
  const Gpu& two = gpus[1];
  CHECK(two.pci == "0001:0b:00.0");
  CHECK(!two.load_percent && !two.celsius && !two.power_mw && !two.power_limit_mw);
  // The older function has a figure all the same.
  CHECK(two.used_bytes == 1000U && two.total_bytes == 16000U);
}

TEST(without_the_library_there_are_none) {
  CHECK(Nvml("libno-such-driver.so.1").read().empty());
  // A library of something else.
  CHECK(Nvml("libc.so.6").read().empty());
}

TEST(amd_tells_by_files) {
  const TempDir root;
  card(root, "card1", "0000:0b:00.0", "0x1002");
  const std::string device = "sys/devices/pci0000:00/0000:0b:00.0/";
  write(root, device + "gpu_busy_percent", "71\n");
  write(root, device + "mem_info_vram_used", "1024\n");
  write(root, device + "mem_info_vram_total", "4096\n");
  write(root, device + "hwmon/hwmon3/temp1_input", "54000\n");
  write(root, device + "hwmon/hwmon3/power1_average", "180000000\n");
  write(root, device + "hwmon/hwmon3/power1_cap", "303000000\n");
  write(root, device + "hwmon/hwmon3/freq1_input", "2304000000\n");
  write(root, "sys/class/drm/card1-HDMI-A-1/status", "connected\n");
  const std::vector<Gpu> gpus = SysfsGpus(root.path()).read(0);
  CHECK(gpus.size() == 1);
  CHECK(gpus[0].vendor == "amd" && gpus[0].pci == "0000:0b:00.0" && gpus[0].name.empty());
  CHECK(gpus[0].load_percent == 71 && gpus[0].celsius == 54 && gpus[0].clock_mhz == 2304);
  CHECK(gpus[0].used_bytes == 1024U && gpus[0].total_bytes == 4096U);
  CHECK(gpus[0].power_mw == 180'000U && gpus[0].power_limit_mw == 303'000U);
}

TEST(intel_counts_energy) {
  const TempDir root;
  card(root, "card0", "0000:03:00.0", "0x8086");
  const std::string sensors = "sys/devices/pci0000:00/0000:03:00.0/hwmon/hwmon1/";
  write(root, sensors + "energy1_input", "5000000\n");
  write(root, sensors + "temp2_input", "48000\n");
  write(root, "sys/class/drm/card0/gt_act_freq_mhz", "2400\n");
  SysfsGpus gpus(root.path());
  CHECK(!gpus.read(0)[0].power_mw);
  write(root, sensors + "energy1_input", "95000000\n");
  const Gpu now = gpus.read(2'000'000)[0];
  // 90 J in 2 s.
  CHECK(now.power_mw == 45'000U);
  CHECK(now.celsius == 48 && now.clock_mhz == 2400 && !now.load_percent);
}

TEST(what_tells_nothing_is_left_out) {
  const TempDir root;
  card(root, "card0", "0000:00:02.0", "0x8086");
  card(root, "card1", "0000:01:00.0", "0x10de");
  CHECK(SysfsGpus(root.path()).read(0).empty());
  CHECK(SysfsGpus(root / "nothing").read(0).empty());
}

RUN_TESTS()
