// The library beside a kernel for sm_90a on the GPU at hand: with INTARSIA_ARCH=80, which makes it
// an A100, everything else must load and run, and the kernel must refuse by name.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/cuda/attention_batch.cuh"
#include "tests/cuda/hopper_kernel.h"

namespace intarsia::cuda {
namespace {

__global__ void PortableKernel(int* out) { *out = static_cast<int>(gridDim.x); }
const Kernel kPortableKernel("PortableKernel", reinterpret_cast<const void*>(&PortableKernel));

int failures = 0;

void Expect(bool holds, const char* what) {
  std::printf("%s: %s\n", holds ? "ok" : "FAILED", what);
  failures += !holds;
}

// What the kernel wrote when it was launched with three blocks, or -1 if it was refused.
int Run(const Kernel& kernel, const CudaContext& context, const LaunchConfig& config,
        std::string& error) {
  attention::DeviceArray<int> out(1);
  out.Poison();
  if (const Status status = Launch(context, kernel, config, out.data()); !status.ok()) {
    error = status.message;
    return -1;
  }
  attention::Require(cudaDeviceSynchronize());
  int wrote = 0;
  attention::Require(cudaMemcpy(&wrote, out.data(), sizeof wrote, cudaMemcpyDeviceToHost));
  return wrote;
}

int Main(bool held_back) {
  if (held_back) setenv("INTARSIA_ARCH", "80", 1);
  const CudaContext context = attention::ContextOn();
  const Device& device = *context.device;
  std::printf("GPU 0 is seen as sm_%d: %d multiprocessors, %d bytes of shared memory, %d a block\n",
              device.arch, device.sms, device.shared_bytes_per_sm, device.shared_bytes_per_block);
  std::string error;
  Expect(Run(kPortableKernel, context, {{3}, dim3(1)}, error) == 3, "a portable kernel runs");
  const int wrote = Run(kHopperKernel, context, {{3}, dim3(128)}, error);
  if (device.arch == kHopper) {
    Expect(wrote == 3, "a kernel for sm_90a runs");
    LaunchConfig config{{4}, dim3(128)};
    config.cluster = dim3(2);
    config.overlaps_previous = true;
    Expect(Run(kHopperKernel, context, config, error) == 4,
           "a launch carries clusters and programmatic dependent launch");
  } else {
    Expect(wrote == -1 && error.find("HopperKernel is built for compute capability 9.0 alone") == 0,
           "a kernel for sm_90a is refused by name");
  }
  if (held_back) Expect(device.arch == 80, "INTARSIA_ARCH=80 holds the GPU back");
  return failures ? 1 : 0;
}

}  // namespace
}  // namespace intarsia::cuda

// Device descriptions are made once in a process, so each way has one of its own.
int main(int argc, char** argv) {
  if (argc > 1) return intarsia::cuda::Main(std::strcmp(argv[1], "held-back") == 0);
  const std::string program = argv[0];
  int failed = 0;
  for (const char* way : {"held-back", "as-it-is"})
    failed |= std::system((program + " " + way).c_str());
  return failed ? 1 : 0;
}
