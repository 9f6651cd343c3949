// From a run-time dtype or size to a template argument. One dispatch site an op.
//
//   return DispatchDType<kF32, kF16>("rms_norm: x", x.dtype, [&]<DType kType>() -> Status { ... });
//   return DispatchInt<64, 128>("paged_attention: d", d, [&]<int kD>() -> Status { ... });
//
// What falls through is legal but not built, and the message lists what is.
#pragma once
#include <span>

#include "src/core/dtype.h"
#include "src/core/status.h"

namespace intarsia {

inline constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBF16 = DType::kBF16,
                       kF8E4M3 = DType::kF8E4M3, kF8E5M2 = DType::kF8E5M2, kI8 = DType::kI8;

// Apart from the templates, which <op>_cpu.cc files instantiate: see cpu/isa.h.
Status NotBuilt(std::string_view what, DType got, std::span<const DType> built);
Status NotBuilt(std::string_view what, int64_t got, std::span<const int> built);

template <DType... kTypes, class Fn>
Status DispatchDType(std::string_view what, DType dtype, Fn&& fn) {
  Status status;
  const auto try_one = [&]<DType kType>() {
    if (dtype != kType) return false;
    status = fn.template operator()<kType>();
    return true;
  };
  if ((try_one.template operator()<kTypes>() || ...)) return status;
  static constexpr DType kBuilt[] = {kTypes...};
  return NotBuilt(what, dtype, kBuilt);
}

// The first of the ascending values that is >= value.
template <int... kValues, class Fn>
Status DispatchInt(std::string_view what, int64_t value, Fn&& fn) {
  Status status;
  const auto try_one = [&]<int kValue>() {
    if (value > kValue) return false;
    status = fn.template operator()<kValue>();
    return true;
  };
  if ((try_one.template operator()<kValues>() || ...)) return status;
  static constexpr int kBuilt[] = {kValues...};
  return NotBuilt(what, value, kBuilt);
}

}  // namespace intarsia
