// The compiler's own type for f16, for conversions without intrinsics.
#pragma once

namespace intarsia {

#if defined(__aarch64__)
using NativeF16 = __fp16;  // GCC 12 has no _Float16 in C++ there; arithmetic is in f32 with either
#else
using NativeF16 = _Float16;
#endif

}  // namespace intarsia
