// The counterpart of src/core/cuda/grid.cuh.
#pragma once
#include "tests/emulator/emulator.h"

namespace intarsia::cuda {

inline void AwaitGrid() { emulator::AwaitGrid(); }

}  // namespace intarsia::cuda
