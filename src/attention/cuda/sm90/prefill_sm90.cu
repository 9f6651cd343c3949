#include "src/attention/cuda/sm90/prefill.h"

namespace intarsia::attention::sm90 {

Status LaunchPrefill(const Params& params, const CudaContext& context, const PrefillRows& rows) {
  return LaunchByKeyType(params, [&]<DType kType>(const Params& p) -> Status {
    if constexpr (kType == kBF16 || kType == kF16)
      return LaunchPrefillOf<kType>(p, context, rows);
    else if (IsFp8(kType) && p.dtype == kF16)
      return LaunchCodesOf<kF16>(p, context, rows);
    else if (IsFp8(kType) && p.dtype == kBF16)
      return LaunchCodesOf<kBF16>(p, context, rows);
    else if constexpr (kType == kF8E4M3)
      return p.out_dtype == kF16 ? LaunchE4M3Of<kF16>(p, context, rows)
                                 : LaunchE4M3Of<kBF16>(p, context, rows);
    else
      return Internal(Text("the sm_90 prefill kernel was given K and V of ", Name(kType)));
  });
}

}  // namespace intarsia::attention::sm90
