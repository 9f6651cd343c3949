// How kernels are loaded and launched. Host code; the kernel's own side is in vec.cuh.
#pragma once
#include <cuda_runtime.h>

#include <atomic>

#include "src/core/context.h"
#include "src/core/cuda/device.h"
#include "src/core/status.h"

namespace intarsia::cuda {

inline constexpr int kMaxDevices = 64;  // CUDA's ordinals are below

// A kernel that the library can launch: a namespace-scope constant registers it, so that
// CurrentDevice() finds and loads them all.
//   const Kernel kRowKernel("RowKernel", reinterpret_cast<const void*>(&RowKernel<float>));
class Kernel {
 public:
  // max_shared_bytes: the most dynamic shared memory that a launch asks for. arch: kPortable, or
  // the one architecture that the kernel has an image for.
  Kernel(const char* name, const void* function, int max_shared_bytes = 0, int arch = kPortable);
  const char* name() const { return name_; }
  const void* function() const { return function_; }
  const Kernel* next() const { return next_; }
  int max_shared_bytes() const { return max_shared_bytes_; }
  // Loads the kernel, if the device has an image of it and enough shared memory; CheckLoaded says
  // so if not. `real`: the current device, not held back.
  Status Load(const Device& device, const Device& real) const;
  Status CheckLoaded(const Device& device) const;
  // Whether the code that the device runs can wait for the kernel before it (AwaitPrevious in
  // ptx.cuh): what was compiled for an older architecture does not.
  bool AwaitsPrevious(const Device& device) const {
    return awaits_.load(std::memory_order_relaxed) >> device.index & 1;
  }
  // Static shared memory of a block; known once a device has loaded the kernel.
  int static_shared_bytes() const { return static_shared_bytes_; }

 private:
  const char* name_;
  const void* function_;
  int max_shared_bytes_;
  int arch_;
  const Kernel* next_;  // registered before this one
  mutable std::atomic<int> static_shared_bytes_{0};
  mutable std::atomic<uint64_t> loaded_{0}, awaits_{0};  // bit i: on device i
};

// A context on a stream of the current device.
Status MakeContext(void* stream, CudaContext& context);

Status ToStatus(cudaError_t error, const char* what);

// 64 bits wide, so that LaunchUntyped sees what does not fit into CUDA's limits.
struct Grid {
  int64_t x = 0, y = 1, z = 1;
};

struct LaunchConfig {
  Grid grid;
  dim3 block;
  int shared_bytes = 0;
  dim3 cluster = {1, 1, 1};  // blocks that share a cluster; from sm_90 on
  // Programmatic dependent launch, from sm_90 on and ignored before: the kernel may begin while the
  // one before it on the stream ends. It calls AwaitPrevious (ptx.cuh) before it reads what that
  // one wrote, and before it writes: results may take the place of what that one reads.
  bool overlaps_previous = false;
  // All blocks are resident at once, so that they may wait for each other (grid.cuh).
  bool cooperative = false;
};

// How many clusters of such a launch the device has room for at once, by the driver; 0 if the code
// that the device runs knows no clusters.
int ResidentClusters(const CudaContext& context, const Kernel& kernel, const LaunchConfig& config);

// The launch of a grid-stride loop over `items`, a thread an item.
LaunchConfig GridStride(int64_t items);

// The block for rows of so many items (vectors, as a rule), of which a thread has room for `kept`:
// a row a threadIdx.y; blockDim.x is a power of two up to 32, or a multiple of 32 and blockDim.y 1.
// As few threads as hold a row, since many rows hide latency best; more when there are few rows,
// up to `most`, a multiple of 128.
inline constexpr int kMaxRowThreads = 1024;
dim3 RowBlock(const Device& device, int64_t rows, int64_t items, int kept,
              int most = kMaxRowThreads);

// Enqueues a kernel. An empty grid is no launch. The error that it returns may also come from an
// earlier asynchronous launch.
Status LaunchUntyped(const CudaContext& context, const Kernel& kernel, const LaunchConfig& config,
                     void** arguments);

template <class... Arguments>
Status Launch(const CudaContext& context, const Kernel& kernel, const LaunchConfig& config,
              Arguments... arguments) {
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  return LaunchUntyped(context, kernel, config, pointers);
}

}  // namespace intarsia::cuda
