// What a choice of kernel may depend on besides shapes: the GPU that it is made for. Plain data and
// pure functions, so that tests make choices for GPUs that they do not have.
#pragma once
#include <algorithm>
#include <cstdint>

#include "src/core/status.h"

namespace intarsia::cuda {

struct Device {
  int index = 0;                   // CUDA's ordinal
  int arch = 0;                    // compute capability 8.9: 89
  int sms = 0;                     // multiprocessors
  int shared_bytes_per_block = 0;  // the largest that a kernel may ask for, static and dynamic
  int shared_bytes_per_sm = 0;
  int64_t l2_bytes = 0;
  int machine_code = arch;  // the architecture whose code it runs, also when it is held back
};

// The architecture that a kernel is written for. kPortable: machine code or PTX for every GPU from
// compute capability 8.0 on. Others use instructions of one architecture alone (sm_90a) and have
// an image for no other.
inline constexpr int kPortable = 80, kHopper = 90;

constexpr bool HasImage(int kernel_arch, const Device& device) {
  if (kernel_arch == kPortable) return device.arch >= kPortable;
  return device.arch == kernel_arch && device.machine_code == kernel_arch;
}

// Shared memory that the system takes of each block: CUDA C++ Programming Guide, "Shared Memory"
// of compute capability 8.x and 9.0.
inline constexpr int kReservedSharedBytes = 1024;

// Blocks with so much shared memory, static and dynamic, that a multiprocessor has room for.
constexpr int ResidentBlocks(const Device& device, int shared_bytes) {
  if (shared_bytes > device.shared_bytes_per_block) return 0;
  return device.shared_bytes_per_sm / (shared_bytes + kReservedSharedBytes);
}

// Shared memory of a multiprocessor in KB; a block may have one less. CUDA C++ Programming Guide,
// table "Technical Specifications per Compute Capability".
constexpr int SharedKilobytes(int arch) {
  if (arch == 86 || arch == 89 || arch >= 120) return 100;
  return arch < 90 ? 164 : 228;
}

// The largest that a block may have.
constexpr int MostSharedBytes(int arch) {
  return SharedKilobytes(arch) * 1024 - kReservedSharedBytes;
}

// Whether so many blocks with so much each have room on a multiprocessor.
constexpr bool HaveRoom(int arch, int blocks, int64_t shared_bytes) {
  return blocks * (shared_bytes + kReservedSharedBytes) <= SharedKilobytes(arch) * 1024;
}

// The device with the kernels of an older architecture, and with no more room for them than that
// one has.
constexpr Device HeldBack(Device device, int arch) {
  device.arch = std::min(device.arch, arch);
  device.shared_bytes_per_sm = std::min(device.shared_bytes_per_sm, SharedKilobytes(arch) * 1024);
  device.shared_bytes_per_block = std::min(device.shared_bytes_per_block, MostSharedBytes(arch));
  return device;
}

// The current device as kernels are to be chosen for it, held back to INTARSIA_ARCH. Asked once a
// device, when all kernels that it has an image of are loaded: a few nanoseconds after that.
// Fails where the device or the driver cannot run this build.
Status CurrentDevice(const Device*& device);

// The same, or null if it has not been asked for yet: loads nothing.
const Device* LoadedCurrentDevice();

}  // namespace intarsia::cuda
