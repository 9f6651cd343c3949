#include "src/core/cuda/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "src/core/cuda/launch.h"
#include "src/core/cuda/wgmma_layout.h"

namespace intarsia::cuda {
namespace {

using Encode = PFN_cuTensorMapEncodeTiled_v12000;

// The driver's function by the runtime: no link to libcuda, so that the library loads without it.
Status FindEncode(Encode& encode) {
  static const struct Found {
    void* function = nullptr;
    cudaError_t error;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    Found() {
      error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                               cudaEnableDefault, &result);
    }
  } found;
  INTARSIA_RETURN_IF_ERROR(ToStatus(found.error, "cuTensorMapEncodeTiled"));
  if (found.result != cudaDriverEntryPointSuccess || !found.function)
    return Internal("the NVIDIA driver has no cuTensorMapEncodeTiled");
  encode = reinterpret_cast<Encode>(found.function);
  return {};
}

}  // namespace

Status MakePanelMap(DType dtype, const void* data, int64_t columns, std::span<const MapAxis> axes,
                    CUtensorMap& map, int l2_bytes) {
  constexpr size_t kMaxAxes = 5;
  Encode encode = nullptr;
  INTARSIA_RETURN_IF_ERROR(FindEncode(encode));
  if (axes.empty() || axes.size() >= kMaxAxes || Bytes(dtype) > 2)
    return Internal(Text("a tensor map of ", axes.size() + 1, " axes of ", Name(dtype)));
  cuuint64_t sizes[kMaxAxes] = {static_cast<cuuint64_t>(columns)}, strides[kMaxAxes - 1] = {};
  cuuint32_t box[kMaxAxes] = {kPanelRowBytes / static_cast<cuuint32_t>(Bytes(dtype))},
             steps[kMaxAxes] = {1};
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t stride = axes[i].size == 1 ? kPanelRowBytes : axes[i].stride;
    sizes[i + 1] = static_cast<cuuint64_t>(axes[i].size);
    strides[i] = static_cast<cuuint64_t>(stride * Bytes(dtype));
    box[i + 1] = static_cast<cuuint32_t>(axes[i].box);
    steps[i + 1] = 1;
  }
  const CUresult result = encode(
      &map,
      Bytes(dtype) == 1      ? CU_TENSOR_MAP_DATA_TYPE_UINT8
      : dtype == DType::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                             : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      static_cast<cuuint32_t>(axes.size() + 1), const_cast<void*>(data), sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      l2_bytes == 128 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return Internal(Text("cuTensorMapEncodeTiled: CUresult ", static_cast<int>(result)));
}

Status MakeWordMap(const void* data, int64_t words, int box, std::span<const MapAxis> axes,
                   CUtensorMap& map) {
  constexpr size_t kMaxAxes = 5;
  Encode encode = nullptr;
  INTARSIA_RETURN_IF_ERROR(FindEncode(encode));
  if (axes.empty() || axes.size() >= kMaxAxes)
    return Internal(Text("a tensor map of ", axes.size() + 1, " axes"));
  cuuint64_t sizes[kMaxAxes] = {static_cast<cuuint64_t>(words)}, strides[kMaxAxes - 1] = {};
  cuuint32_t boxes[kMaxAxes] = {static_cast<cuuint32_t>(box)}, steps[kMaxAxes] = {1};
  for (size_t i = 0; i < axes.size(); ++i) {
    sizes[i + 1] = static_cast<cuuint64_t>(axes[i].size);
    strides[i] = static_cast<cuuint64_t>(axes[i].stride * 4);
    boxes[i + 1] = static_cast<cuuint32_t>(axes[i].box);
    steps[i + 1] = 1;
  }
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, static_cast<cuuint32_t>(axes.size() + 1),
             const_cast<void*>(data), sizes, strides, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return Internal(Text("cuTensorMapEncodeTiled: CUresult ", static_cast<int>(result)));
}

}  // namespace intarsia::cuda
