#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd_8bit.h"
#include "src/core/dispatch.h"
#include "src/ops/convert_fp8/convert_fp8.h"

namespace intarsia {
namespace {

// to[i] = of(from[i]) for i < size.
template <class From, class To, class Of>
void Convert(const From* from, To* to, int64_t size, const CpuContext& context, Of of) {
  ForRows(context, CeilDiv(size, kTileElements), kTileElements, [&](int64_t row) {
    const int64_t start = row * kTileElements;
    ForLanes(std::min(kTileElements, size - start), [&](int64_t i, int lanes) {
      StoreN(to + start + i, of(LoadN(from + start + i, lanes)), lanes);
    });
  });
}

}  // namespace

template <>
Status RunCpu<kIsa>(const ConvertFp8& op, const CpuContext& context) {
  const VecF scale = Splat(op.scale);
  const DType codes = op.CodeType(op.to_fp8() ? op.out.dtype : op.x.dtype),
              numbers = op.to_fp8() ? op.x.dtype : op.out.dtype;
  return DispatchDType<kF8E4M3, kF8E5M2>("x", codes, [&]<DType kCode>() -> Status {
    return DispatchDType<kF32, kF16, kBF16>("x", numbers, [&]<DType kType>() -> Status {
      using Code = CpuT<kCode>;
      using T = CpuT<kType>;
      if (op.to_fp8())
        Convert(op.x.as<const T>(), op.out.as<Code>(), op.x.size(), context,
                [=](VecF x) { return x / scale; });
      else
        Convert(op.x.as<const Code>(), op.out.as<T>(), op.x.size(), context,
                [=](VecF x) { return x * scale; });
      return {};
    });
  });
}

}  // namespace intarsia
