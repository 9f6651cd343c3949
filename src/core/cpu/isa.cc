#include "src/core/cpu/isa.h"

#include "src/core/config.h"

namespace intarsia {

Isa BestIsa() {
#if defined(__x86_64__)
  static const Isa best = [] {
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512dq");
    if (avx512 && GetConfig().isa != "avx2") return Isa::kAvx512;
    return avx2 ? Isa::kAvx2 : Isa::kGeneric;
  }();
  return best;
#else
  return Isa::kGeneric;
#endif
}

std::string_view Name(Isa isa) {
  constexpr std::string_view kNames[] = {"generic", "avx2", "avx512"};
  return kNames[static_cast<int>(isa)];
}

}  // namespace intarsia
