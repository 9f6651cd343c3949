// What kernels' launches need of the CUDA runtime and of src/core/cuda: memory is the host's, every
// call is done when it returns, and the device is a Hopper with few multiprocessors, so that each
// block gets several tasks.
#include <cstdlib>
#include <cstring>

#include "src/core/cuda/launch.h"
#include "src/core/cuda/tensor_map.h"
#include "src/core/cuda/tma.cuh"

namespace intarsia::cuda {

Kernel::Kernel(const char* name, const void* function, int max_shared_bytes, int arch)
    : name_(name),
      function_(function),
      max_shared_bytes_(max_shared_bytes),
      arch_(arch),
      next_(nullptr) {}

Status CurrentDevice(const Device*& device) {
  static const Device kDevice{.arch = kHopper,
                              .sms = emulator::multiprocessors,
                              .shared_bytes_per_block = 227 * 1024,
                              .shared_bytes_per_sm = 228 * 1024,
                              .l2_bytes = 50 << 20,
                              .machine_code = kHopper};
  device = &kDevice;
  return {};
}
Status MakeContext(void* stream, CudaContext& context) {
  context.stream = stream;
  return CurrentDevice(context.device);
}

namespace {

Status MakeMap(const void* data, int bytes, int64_t columns, int box, std::span<const MapAxis> axes,
               bool swizzled, CUtensorMap& map) {
  auto& contents = reinterpret_cast<MapContents&>(map);
  contents = {.data = static_cast<const char*>(data),
              .element_bytes = bytes,
              .axes = static_cast<int>(axes.size()) + 1};
  contents.swizzled = swizzled;
  contents.size[0] = columns;
  contents.box[0] = box;
  bool fits = reinterpret_cast<uintptr_t>(data) % 16 == 0 && contents.axes <= MapContents::kAxes &&
              columns > 0 && box > 0 && box <= 256 && box * bytes % 16 == 0;
  for (int i = 1; fits && i < contents.axes; ++i) {
    const MapAxis& axis = axes[i - 1];
    contents.size[i] = axis.size;
    contents.stride_bytes[i] = axis.size == 1 ? 0 : axis.stride * bytes;
    contents.box[i] = axis.box;
    fits = contents.stride_bytes[i] % 16 == 0 && axis.size > 0 && axis.box > 0 && axis.box <= 256;
  }
  return fits ? Status() : Internal("cuTensorMapEncodeTiled would not take this map");
}

}  // namespace

Status MakePanelMap(DType dtype, const void* data, int64_t columns, std::span<const MapAxis> axes,
                    CUtensorMap& map, int) {
  const int bytes = static_cast<int>(Bytes(dtype));
  return MakeMap(data, bytes, columns, kPanelRowBytes / bytes, axes, true, map);
}
Status MakeWordMap(const void* data, int64_t words, int box, std::span<const MapAxis> axes,
                   CUtensorMap& map) {
  return MakeMap(data, 4, words, box, axes, false, map);
}

}  // namespace intarsia::cuda

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) { return "an error"; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = nullptr;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
}
