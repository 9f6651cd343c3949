// What the blocks of a launch do together (LaunchConfig::cooperative).
#pragma once
#include <cooperative_groups.h>

namespace intarsia::cuda {

// All threads of the grid: they wait until each has come here, and see what any wrote before.
__device__ __forceinline__ void AwaitGrid() { cooperative_groups::this_grid().sync(); }

}  // namespace intarsia::cuda
