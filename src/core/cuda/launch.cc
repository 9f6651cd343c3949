#include "src/core/cuda/launch.h"

#include <algorithm>
#include <atomic>

#include "src/core/round.h"

namespace intarsia::cuda {
namespace {

const Kernel*& Registered() {
  static const Kernel* last = nullptr;
  return last;
}

Status CurrentDevice(int& device) { return ToStatus(cudaGetDevice(&device), "cudaGetDevice"); }

Status CheckDevice(int device) {
  int driver = 0, major = 0, minor = 0;
  INTARSIA_RETURN_IF_ERROR(ToStatus(cudaDriverGetVersion(&driver), "cudaDriverGetVersion"));
  if (driver < CUDART_VERSION / 1000 * 1000)
    return Unimplemented(
        Text("the NVIDIA driver speaks CUDA ", driver / 1000, ".", driver % 1000 / 10,
             ", this library needs ", CUDART_VERSION / 1000,
             ".0 or newer: update the driver, or install an intarsia built for its CUDA"));
  INTARSIA_RETURN_IF_ERROR(ToStatus(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device"));
  INTARSIA_RETURN_IF_ERROR(ToStatus(
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "device"));
  if (major < 8)
    return Unimplemented(Text("GPU ", device, " has compute capability ", major, ".", minor,
                              "; this library needs 8.0 (Ampere) or newer"));
  return {};
}

// Of the current device.
Status GetAttribute(cudaDeviceAttr attribute, int& value) {
  int device = 0;
  INTARSIA_RETURN_IF_ERROR(CurrentDevice(device));
  return ToStatus(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
}

}  // namespace

Kernel::Kernel(const char* name, const void* function, int max_shared_bytes)
    : name_(name), function_(function), max_shared_bytes_(max_shared_bytes), next_(Registered()) {
  Registered() = this;
}

Status Kernel::Load(int device) const {
  // Asking for the attributes loads the kernel, which CUDA otherwise does at its first launch.
  cudaFuncAttributes attributes;
  INTARSIA_RETURN_IF_ERROR(ToStatus(cudaFuncGetAttributes(&attributes, function_), name_));
  int available = 0;
  INTARSIA_RETURN_IF_ERROR(ToStatus(
      cudaDeviceGetAttribute(&available, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), name_));
  if (max_shared_bytes_ + static_cast<int>(attributes.sharedSizeBytes) > available) {
    too_large_.fetch_or(uint64_t{1} << (device % 64));
    return {};
  }
  if (max_shared_bytes_ <= 48 * 1024) return {};
  return ToStatus(cudaFuncSetAttribute(function_, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       max_shared_bytes_),
                  name_);
}

Status Kernel::CheckFits(int device) const {
  if (!(too_large_.load() & uint64_t{1} << (device % 64))) return {};
  return Unimplemented(Text(name_, " needs ", max_shared_bytes_,
                            " bytes of shared memory a block, more than GPU ", device,
                            " has; A100, H100 and H200 have enough"));
}

Status LoadKernels() {
  static std::atomic<uint64_t> loaded{0};
  int device = 0;
  INTARSIA_RETURN_IF_ERROR(CurrentDevice(device));
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (loaded.load(std::memory_order_acquire) & bit) return {};
  INTARSIA_RETURN_IF_ERROR(CheckDevice(device));
  for (const Kernel* kernel = Registered(); kernel; kernel = kernel->next())
    INTARSIA_RETURN_IF_ERROR(kernel->Load(device));
  loaded.fetch_or(bit, std::memory_order_release);
  return {};
}

Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return Internal(Text(what, ": ", cudaGetErrorString(error),
                       " (may come from an earlier launch on this stream)"));
}

Status NumSms(int& count) { return GetAttribute(cudaDevAttrMultiProcessorCount, count); }

Status MaxSharedBytes(int& bytes) {
  return GetAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, bytes);
}

Shape GridStride(int64_t items) {
  constexpr int64_t kThreads = 256, kMaxBlocks = 1 << 20;
  return {{std::min(CeilDiv(items, kThreads), kMaxBlocks)}, dim3(kThreads)};
}

Status RowBlock(int64_t rows, int64_t items, int kept, dim3& block, int most) {
  constexpr int64_t kFewRows = 4, kSmallBlock = 128;
  int sms = 0;
  INTARSIA_RETURN_IF_ERROR(NumSms(sms));
  if (rows < kFewRows * sms) kept = 1;
  const int64_t per_warp = 32 * int64_t{kept};
  if (items <= per_warp) {
    // A short row goes to few threads, which then have as much on their way as those of a long one.
    const int64_t of_row = items < 32 ? CeilDiv<int64_t>(items, kept) : 32;
    const auto x = std::bit_ceil(static_cast<unsigned>(std::max<int64_t>(of_row, 1)));
    block = dim3(x, static_cast<unsigned>(kSmallBlock) / x);
  } else {
    const int64_t threads = CeilDiv(items, per_warp) * 32;
    block = dim3(static_cast<unsigned>(std::min<int64_t>(threads, most)));
  }
  return {};
}

Status LaunchUntyped(const CudaContext& context, const Kernel& kernel, const Shape& shape,
                     void** arguments) {
  const Grid& grid = shape.grid;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return {};
  if (grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
    return Unimplemented(Text(kernel.name(), " would need a grid of ", grid.x, " x ", grid.y, " x ",
                              grid.z, " blocks, CUDA has room for 2147483647 x 65535 x 65535"));
  INTARSIA_RETURN_IF_ERROR(LoadKernels());
  int device = 0;
  INTARSIA_RETURN_IF_ERROR(CurrentDevice(device));
  INTARSIA_RETURN_IF_ERROR(kernel.CheckFits(device));
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                    static_cast<unsigned>(grid.z));
  return ToStatus(cudaLaunchKernel(kernel.function(), blocks, shape.block, arguments,
                                   static_cast<size_t>(shape.shared_bytes),
                                   static_cast<cudaStream_t>(context.stream)),
                  kernel.name());
}

}  // namespace intarsia::cuda
