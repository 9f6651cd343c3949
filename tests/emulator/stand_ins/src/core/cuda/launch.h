// The counterpart of src/core/cuda/launch.h: its Launch runs the kernel in the emulator.
#pragma once
#define Launch LaunchOnDevice
#include_next "src/core/cuda/launch.h"
#undef Launch

#include "tests/emulator/emulator.h"

namespace intarsia::cuda {

template <class... Arguments>
Status Launch(const CudaContext&, const Kernel& kernel, const LaunchConfig& config,
              Arguments... arguments) {
  const auto& [x, y, z] = config.grid;
  if (x == 0 || y == 0 || z == 0) return {};
  if (config.shared_bytes > kernel.max_shared_bytes())
    return Internal(Text(kernel.name(), " asks for ", config.shared_bytes,
                         " bytes of shared memory, registered are ", kernel.max_shared_bytes()));
  const auto function =
      reinterpret_cast<void (*)(Arguments...)>(reinterpret_cast<uintptr_t>(kernel.function()));
  const dim3 grid(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
  emulator::Run(grid, config.block, config.cooperative, [&] { function(arguments...); });
  return {};
}

}  // namespace intarsia::cuda
