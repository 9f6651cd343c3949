#pragma once
#include "src/core/cuda/launch.h"

namespace intarsia::cuda {

extern const Kernel kHopperKernel;  // writes the number of blocks of its grid to an int*

}  // namespace intarsia::cuda
