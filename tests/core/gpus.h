// GPUs that choices of kernels are tested for, as cudaGetDeviceProperties describes them.
#pragma once
#include <string_view>

#include "src/core/cuda/device.h"

namespace intarsia::cuda {

struct NamedDevice {
  const char* name;
  Device device;
};

inline constexpr int64_t kMega = int64_t{1} << 20;
inline constexpr NamedDevice kGpus[] = {
    {"A100", {0, 80, 108, 163 * 1024, 164 * 1024, 40 * kMega}},
    {"A10", {0, 86, 72, 99 * 1024, 100 * 1024, 6 * kMega}},
    {"RTX 3090", {0, 86, 82, 99 * 1024, 100 * 1024, 6 * kMega}},
    {"L4", {0, 89, 58, 99 * 1024, 100 * 1024, 48 * kMega}},
    {"L40S", {0, 89, 142, 99 * 1024, 100 * 1024, 96 * kMega}},
    {"RTX 4090", {0, 89, 128, 99 * 1024, 100 * 1024, 72 * kMega}},
    {"H20", {0, 90, 78, 227 * 1024, 228 * 1024, 60 * kMega}},
    {"H100 PCIe", {0, 90, 114, 227 * 1024, 228 * 1024, 50 * kMega}},
    {"H100", {0, 90, 132, 227 * 1024, 228 * 1024, 50 * kMega}},
    {"H200", {0, 90, 132, 227 * 1024, 228 * 1024, 60 * kMega}},
    {"B200", {0, 100, 148, 227 * 1024, 228 * 1024, 126 * kMega}},
    {"RTX 5090", {0, 120, 170, 99 * 1024, 100 * 1024, 96 * kMega}},
};

constexpr Device Gpu(std::string_view name) {
  for (const NamedDevice& gpu : kGpus)
    if (gpu.name == name) return gpu.device;
  throw "no such GPU";
}

}  // namespace intarsia::cuda
