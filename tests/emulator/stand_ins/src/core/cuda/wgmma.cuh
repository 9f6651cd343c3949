// The counterpart of src/core/cuda/wgmma.cuh, which says what each function does. A product is done
// when all of a warpgroup have asked for it.
#pragma once
#include <type_traits>

#include "src/core/cuda/ptx.cuh"
#include "src/core/cuda/wgmma_layout.h"

namespace intarsia::cuda {

inline constexpr int kWarpgroupThreads = 128;
inline constexpr int kWgmmaRows = 64;
inline constexpr int kWgmmaStep = 16;

inline void WgmmaFence() {}
inline void WgmmaCommit() {}
template <int kPending>
void WgmmaWait() {}

class Descriptor {
 public:
  explicit Descriptor(uint64_t descriptor) : descriptor_(descriptor) {}
  uint64_t At(uint32_t bytes) const { return descriptor_ + bytes / 16; }

 private:
  uint64_t descriptor_;
};

// An operand in shared memory, as its descriptor says (PTX ISA, "Matrix Descriptor Format").
template <class T>
class MatrixInShared {
 public:
  MatrixInShared(uint64_t descriptor, bool rows_summed)
      : start_((descriptor & 0x3fff) << 4),
        leading_((descriptor >> 16 & 0x3fff) << 4),
        stride_((descriptor >> 32 & 0x3fff) << 4),
        rows_summed_(rows_summed) {}
  // Row (of A) or column (of B) i, and number k of those that are summed over.
  float At(uint32_t i, uint32_t k) const {
    constexpr uint32_t kBytes = sizeof(T), kUnit = kPanelRowBytes / kBytes;
    const uint32_t byte = rows_summed_ ? i / kUnit * leading_ + k / 8 * stride_ +
                                             k % 8 * kPanelRowBytes + i % kUnit * kBytes
                                       : i / 8 * stride_ + i % 8 * kPanelRowBytes + k * kBytes;
    T x;
    std::memcpy(&x, emulator::At(Swizzle128(start_ + byte)), kBytes);
    return static_cast<float>(x);
  }

 private:
  uint32_t start_, leading_, stride_;
  bool rows_summed_;
};

// d = or += A B; A from four registers of each thread, or from shared memory.
template <class T, int kN, bool kAdd, bool kFromRegisters, bool kRowsA, bool kRowsB>
void MultiplyInWarpgroup(float (&d)[kN / 2], const uint32_t* a_registers, uint64_t a, uint64_t b) {
  struct Operands {
    float* d;
    const uint32_t* registers;
    uint64_t a, b;
  } own{d, a_registers, a, b};
  emulator::InWarpgroup("wgmma", own, [](Operands** threads) {
    constexpr int kOf = 4 / sizeof(T), kColumns = kWgmmaStep * 2 / sizeof(T);
    static float x[kWgmmaRows][kColumns], y[kColumns][kN], sums[kWgmmaRows][kN];
    const MatrixInShared<T> shared_b(threads[0]->b, kRowsB);
    for (int k = 0; k < kColumns; ++k)
      for (int n = 0; n < kN; ++n) y[k][n] = shared_b.At(n, k);
    if constexpr (kFromRegisters) {
      for (int t = 0; t < kWarpgroupThreads; ++t) {
        for (int r = 0; r < 4; ++r) {
          const int row = t / 32 * 16 + t % 32 / 4 + r % 2 * 8;
          const int column = t % 4 * kOf + r / 2 * 4 * kOf;
          for (int e = 0; e < kOf; ++e)
            x[row][column + e] = ElementOf<T>(threads[t]->registers[r], e);
        }
      }
    } else {
      const MatrixInShared<T> shared_a(threads[0]->a, kRowsA);
      for (int row = 0; row < kWgmmaRows; ++row)
        for (int k = 0; k < kColumns; ++k) x[row][k] = shared_a.At(row, k);
    }
    for (int row = 0; row < kWgmmaRows; ++row) {
      std::fill_n(sums[row], kN, 0.0f);
      for (int k = 0; k < kColumns; ++k)
        for (int n = 0; n < kN; ++n) sums[row][n] += x[row][k] * y[k][n];
    }
    for (int t = 0; t < kWarpgroupThreads; ++t) {
      for (int i = 0; i < kN / 2; ++i) {
        float& to = threads[t]->d[i];
        to = (kAdd ? to : 0.0f) + sums[AccumulatorRow(t, i)][AccumulatorColumn(t, i)];
      }
    }
  });
}

template <int kN>
struct Wgmma {
  template <class T, bool kAdd, bool kRowsA = false, bool kRowsB = false>
  static void Shared(float (&d)[kN / 2], uint64_t a, uint64_t b) {
    MultiplyInWarpgroup<T, kN, kAdd, false, kRowsA, kRowsB>(d, nullptr, a, b);
  }
  template <class T>
  static void Registers(float (&d)[kN / 2], const uint32_t* a, uint64_t b) {
    MultiplyInWarpgroup<T, kN, true, true, false, true>(d, a, 0, b);
  }
  template <class T, bool kAdd>
  static void RegistersColumns(float (&d)[kN / 2], const uint32_t* a, uint64_t b) {
    MultiplyInWarpgroup<T, kN, kAdd, true, false, false>(d, a, 0, b);
  }
};

}  // namespace intarsia::cuda
