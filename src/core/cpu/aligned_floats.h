// Memory for SIMD code.
#pragma once
#include <cstdint>
#include <memory>
#include <new>

namespace intarsia {

// The f32 of 64 bytes: the widest register, and a cache line.
inline constexpr int64_t kAlignFloats = 16;

struct AlignedDelete {
  void operator()(float* p) const { operator delete[](p, std::align_val_t{kAlignFloats * 4}); }
};
using AlignedFloats = std::unique_ptr<float[], AlignedDelete>;

// Not initialized.
inline AlignedFloats MakeAligned(int64_t n) {
  return AlignedFloats(new (std::align_val_t{kAlignFloats * 4}) float[static_cast<size_t>(n)]);
}

}  // namespace intarsia
