#include "src/cache/cell.cuh"
#include "src/core/cuda/launch.h"
#include "src/core/dispatch.h"
#include "src/ops/convert_fp8/convert_fp8.h"

namespace intarsia {
namespace {

using cuda::Dequantize, cuda::Quantize;

// out[i] = x[i] converted for i < cells, a cell at a time.
template <class Cell>
__global__ void ConvertKernel(const typename Cell::In* x, typename Cell::Out* out, int64_t cells,
                              float scale) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < cells;
       i += stride)
    out[i] = Cell::Stored(x[i], scale);
}

template <class Cell>
const cuda::Kernel kConvertKernel("ConvertKernel",
                                  reinterpret_cast<const void*>(&ConvertKernel<Cell>));

template <class Wide, class Single>
Status Convert(const CudaContext& context, const ConvertFp8& op) {
  const int64_t size = op.x.size();
  const bool wide = size % Wide::kElements == 0 &&
                    reinterpret_cast<uintptr_t>(op.x.data) % alignof(typename Wide::In) == 0 &&
                    reinterpret_cast<uintptr_t>(op.out.data) % alignof(typename Wide::Out) == 0;
  if (!wide)
    return Launch(context, kConvertKernel<Single>, cuda::GridStride(size),
                  op.x.as<const typename Single::In>(), op.out.as<typename Single::Out>(), size,
                  op.scale);
  const int64_t cells = size / Wide::kElements;
  return Launch(context, kConvertKernel<Wide>, cuda::GridStride(cells),
                op.x.as<const typename Wide::In>(), op.out.as<typename Wide::Out>(), cells,
                op.scale);
}

}  // namespace

Status ConvertFp8::Run(const CudaContext& context) const {
  const DType codes = CodeType(to_fp8() ? out.dtype : x.dtype),
              numbers = to_fp8() ? x.dtype : out.dtype;
  return DispatchDType<kF8E4M3, kF8E5M2>("x", codes, [&]<DType kCode>() -> Status {
    return DispatchDType<kF32, kF16, kBF16>("x", numbers, [&]<DType kType>() -> Status {
      using F8 = cuda::DeviceT<kCode>;
      using T = cuda::DeviceT<kType>;
      constexpr int kCount = cuda::kMaxAccessBytes / sizeof(T);
      return to_fp8() ? Convert<Quantize<T, F8, kCount>, Quantize<T, F8, 1>>(context, *this)
                      : Convert<Dequantize<F8, T, kCount>, Dequantize<F8, T, 1>>(context, *this);
    });
  });
}

}  // namespace intarsia
