// Stands for NVIDIA's library: two cards, of which the second tells next to nothing.
#include <cstdint>
#include <cstring>

namespace {

constexpr int kOk = 0;
constexpr int kNotSupported = 3;

bool is_second(void* device) {
  return device == reinterpret_cast<void*>(std::uintptr_t{2});
}

int tell(void* device, unsigned* out, unsigned value) {
  *out = value;
  return is_second(device) ? kNotSupported : kOk;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return kOk;
}
int nvmlShutdown() {
  return kOk;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return kOk;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(std::uintptr_t{index + 1});
  return kOk;
}
int nvmlDeviceGetName(void* device, char* name, unsigned size) {
  std::strncpy(name, is_second(device) ? "NVIDIA T4" : "NVIDIA H100", size);
  return kOk;
}
int nvmlDeviceGetPciInfo_v3(void* device, char* info) {
  std::strcpy(info + 16 + 5 * sizeof(unsigned),
              is_second(device) ? "00000001:0B:00.0" : "00000000:65:00.0");
  return kOk;
}
int nvmlDeviceGetUtilizationRates(void* device, unsigned* rates) {
  return tell(device, rates, 93);
}
int nvmlDeviceGetMemoryInfo_v2(void* device, unsigned long long* memory) {
  memory[1] = 80000, memory[2] = 600, memory[3] = 38400, memory[4] = 41000;
  return is_second(device) ? kNotSupported : kOk;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* memory) {
  memory[0] = 16000, memory[1] = 15000, memory[2] = 1000;
  return kOk;
}
int nvmlDeviceGetTemperature(void* device, int, unsigned* celsius) {
  return tell(device, celsius, 64);
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  return tell(device, milliwatts, 312'000);
}
int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned* milliwatts) {
  return tell(device, milliwatts, 700'000);
}
// nvmlDeviceGetClockInfo is missing, as in a library of another release.

}  // extern "C"
