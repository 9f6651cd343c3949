// A kernel that has an image for sm_90a alone, as *_sm90.cu of the library do: setmaxnreg is an
// instruction of that architecture.
#include "tests/cuda/hopper_kernel.h"

namespace intarsia::cuda {
namespace {

__global__ void __launch_bounds__(128, 1) HopperKernel(int* out) {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
  if (threadIdx.x == 0) *out = static_cast<int>(gridDim.x);
}

}  // namespace

const Kernel kHopperKernel("HopperKernel", reinterpret_cast<const void*>(&HopperKernel), 0,
                           kHopper);

}  // namespace intarsia::cuda
