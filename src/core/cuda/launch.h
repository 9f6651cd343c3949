// How kernels are loaded and launched. Host code; the kernel's own side is in vec.cuh.
#pragma once
#include <cuda_runtime.h>

#include <atomic>

#include "src/core/context.h"
#include "src/core/status.h"

namespace intarsia::cuda {

// A kernel that the library can launch: a namespace-scope constant registers it, so that
// LoadKernels() finds them all.
//   const Kernel kRowKernel("RowKernel", reinterpret_cast<const void*>(&RowKernel<float>));
class Kernel {
 public:
  // max_shared_bytes: the most dynamic shared memory that a launch asks for.
  Kernel(const char* name, const void* function, int max_shared_bytes = 0);
  const char* name() const { return name_; }
  const void* function() const { return function_; }
  const Kernel* next() const { return next_; }
  // Loads the kernel on the current device and raises its limit of shared memory, if the device has
  // as much; CheckFits says so if not.
  Status Load(int device) const;
  Status CheckFits(int device) const;

 private:
  const char* name_;
  const void* function_;
  int max_shared_bytes_;
  const Kernel* next_;                          // registered before this one
  mutable std::atomic<uint64_t> too_large_{0};  // bit i: for device i
};

// Loads every kernel of the library on the current device; a few nanoseconds after the first time.
// Checks first that the device and the driver can run this build.
Status LoadKernels();

Status ToStatus(cudaError_t error, const char* what);

// The number of multiprocessors of the current device.
Status NumSms(int& count);

// The shared memory that one block may have on the current device.
Status MaxSharedBytes(int& bytes);

// 64 bits wide, so that LaunchUntyped sees what does not fit into CUDA's limits.
struct Grid {
  int64_t x = 0, y = 1, z = 1;
};

struct Shape {
  Grid grid;
  dim3 block;
  int shared_bytes = 0;
};

// The launch of a grid-stride loop over `items`, a thread an item.
Shape GridStride(int64_t items);

// The block for rows of so many items (vectors, as a rule), of which a thread has room for `kept`:
// a row a threadIdx.y; blockDim.x is a power of two up to 32, or a multiple of 32 and blockDim.y 1.
// As few threads as hold a row, since many rows hide latency best; more when there are few rows,
// up to `most`, a multiple of 128.
inline constexpr int kMaxRowThreads = 1024;
Status RowBlock(int64_t rows, int64_t items, int kept, dim3& block, int most = kMaxRowThreads);

// Enqueues a kernel. An empty grid is no launch. The error that it returns may also come from an
// earlier asynchronous launch.
Status LaunchUntyped(const CudaContext& context, const Kernel& kernel, const Shape& shape,
                     void** arguments);

template <class... Arguments>
Status Launch(const CudaContext& context, const Kernel& kernel, const Shape& shape,
              Arguments... arguments) {
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  return LaunchUntyped(context, kernel, shape, pointers);
}

}  // namespace intarsia::cuda
