#include "src/ops/convert_fp8/convert_fp8.h"

namespace intarsia {

Status ConvertFp8::Check() const {
  const DType to = CodeType(*DTypeFromName(out_dtype)), from = CodeType(x.dtype);
  if (to == DType::kU8 || from == DType::kU8)
    return InvalidArgument(Text("kv_cache_dtype is auto, but ",
                                from == DType::kU8 ? "x has dtype u8" : "out_dtype is u8",
                                ", expected fp8_e4m3 or fp8_e5m2"));
  if (IsFp8(to) == IsFp8(from))
    return InvalidArgument(Text("x has dtype ", Name(x.dtype), " and out_dtype is ", out_dtype,
                                ", expected one of them to be an fp8 type"));
  return {};
}

}  // namespace intarsia
