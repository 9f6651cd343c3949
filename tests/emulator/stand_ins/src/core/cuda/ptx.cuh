// The counterpart of src/core/cuda/ptx.cuh, which says what each function does.
#pragma once
#include "tests/emulator/builtins.h"

namespace intarsia::cuda {

inline char* DynamicShared() { return emulator::DynamicShared(); }
inline uint32_t SharedAddress(const void* pointer) { return emulator::AddressOf(pointer); }

inline void AwaitPrevious() {}
inline void LetNextBegin() {}
// A read, so that an address that is far out ends the test.
inline void PrefetchL2(const void* at) { (void)*static_cast<const volatile char*>(at); }
inline int64_t LoadIndexIf(bool there, const void* data, bool wide, int i) {
  if (!there) return 0;
  return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
}

inline uint2 LoadOnce8(const void* from) {
  uint2 x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline void CpAsync16(uint32_t shared, const void* global, bool valid) {
  if (valid)
    std::memcpy(emulator::At(shared), global, 16);
  else
    std::memset(emulator::At(shared), 0, 16);
}
inline void CpAsyncCommit() {}
template <int kPending>
void CpAsyncWait() {}

template <class T>
uint32_t FmaPair(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t result = 0;
  for (int i = 0; i < 2; ++i) {
    const auto of = [&](uint32_t word) {
      return static_cast<float>(std::bit_cast<T>(static_cast<uint16_t>(word >> 16 * i)));
    };
    // Exact in f64, but for the last rounding, for numbers as near to each other as codes are.
    const double sum = double{of(x)} * of(y) + of(z);
    result |= uint32_t{std::bit_cast<uint16_t>(T(static_cast<float>(sum)))} << 16 * i;
  }
  return result;
}
inline uint32_t FmaF16(uint32_t x, uint32_t y, uint32_t z) { return FmaPair<__half>(x, y, z); }
inline uint32_t FmaBF16(uint32_t x, uint32_t y, uint32_t z) {
  return FmaPair<__nv_bfloat16>(x, y, z);
}

// A matrix of ldmatrix or stmatrix: row i of matrix j lies where lane 8 j + i says.
struct MatrixRows {
  uint32_t address;
  uint32_t* registers;
};
template <bool kTransposed>
void LoadMatrices(uint32_t (&r)[4], uint32_t shared) {
  MatrixRows own{shared, r};
  emulator::InWarp("ldmatrix", own, [](MatrixRows** lanes) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      uint16_t x[8][8];
      for (int row = 0; row < 8; ++row)
        std::memcpy(x[row], emulator::At(lanes[8 * matrix + row]->address), 16);
      for (int lane = 0; lane < 32; ++lane) {
        const int i = lane / 4, j = lane % 4 * 2;
        const uint32_t low = kTransposed ? x[j][i] : x[i][j];
        const uint32_t high = kTransposed ? x[j + 1][i] : x[i][j + 1];
        lanes[lane]->registers[matrix] = low | high << 16;
      }
    }
  });
}
inline void LdMatrix4(uint32_t (&r)[4], uint32_t shared) { LoadMatrices<false>(r, shared); }
inline void LdMatrix4Transposed(uint32_t (&r)[4], uint32_t shared) {
  LoadMatrices<true>(r, shared);
}
inline void StMatrix4Transposed(uint32_t shared, const uint32_t (&r)[4]) {
  uint32_t registers[] = {r[0], r[1], r[2], r[3]};
  MatrixRows own{shared, registers};
  emulator::InWarp("stmatrix", own, [](MatrixRows** lanes) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      uint16_t x[8][8];
      for (int lane = 0; lane < 32; ++lane)
        for (int e = 0; e < 2; ++e)
          x[lane % 4 * 2 + e][lane / 4] =
              static_cast<uint16_t>(lanes[lane]->registers[matrix] >> 16 * e);
      for (int row = 0; row < 8; ++row)
        std::memcpy(emulator::At(lanes[8 * matrix + row]->address), x[row], 16);
    }
  });
}

// Element i of those that a register holds.
template <class T>
float ElementOf(uint32_t word, int i) {
  if constexpr (sizeof(T) == 1)
    return static_cast<float>(std::bit_cast<T>(static_cast<uint8_t>(word >> 8 * i)));
  else if constexpr (sizeof(T) == 2)
    return static_cast<float>(std::bit_cast<T>(static_cast<uint16_t>(word >> 16 * i)));
  else
    return std::bit_cast<T>(word);
}

// m16n8, of as many columns of A as four registers hold.
template <class T>
void Multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Operands {
    float* c;
    const uint32_t* a;
    uint32_t b[2];
  } own{c, a, {b0, b1}};
  emulator::InWarp("mma", own, [](Operands** lanes) {
    constexpr int kOf = 4 / sizeof(T), kColumns = 8 * kOf;
    float x[16][kColumns], y[kColumns][8];
    for (int lane = 0; lane < 32; ++lane) {
      for (int e = 0; e < kOf; ++e) {
        const int row = lane / 4, column = lane % 4 * kOf + e;
        for (int r = 0; r < 4; ++r)
          x[row + r % 2 * 8][column + r / 2 * 4 * kOf] = ElementOf<T>(lanes[lane]->a[r], e);
        for (int r = 0; r < 2; ++r)
          y[column + r * 4 * kOf][row] = ElementOf<T>(lanes[lane]->b[r], e);
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < kColumns; ++k) lanes[lane]->c[i] += x[row][k] * y[k][column];
      }
    }
  });
}
inline void MmaF16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Multiply<__half>(c, a, b0, b1);
}
inline void MmaBF16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Multiply<__nv_bfloat16>(c, a, b0, b1);
}
inline void MmaE4M3(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Multiply<__nv_fp8_e4m3>(c, a, b0, b1);
}
// What is not tf32 becomes another number on a GPU, and here a NaN.
inline void MmaTf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const auto checked = [](uint32_t x) { return x & 0x1fff ? 0x7fc00000u : x; };
  const uint32_t rounded[] = {checked(a[0]), checked(a[1]), checked(a[2]), checked(a[3])};
  Multiply<float>(c, rounded, checked(b0), checked(b1));
}
// Ties away from zero; infinities stay.
inline uint32_t ToTf32(float x) { return (std::bit_cast<uint32_t>(x) + 0x1000) & ~0x1fffu; }

inline uint32_t ToE4M3x4(float x0, float x1, float x2, float x3) {
  uint32_t codes = 0;
  const float x[] = {x0, x1, x2, x3};
  for (int i = 0; i < 4; ++i)
    codes |= uint32_t{__nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E4M3)} << 8 * i;
  return codes;
}

inline void BarrierSync(int id, int threads) { emulator::ArriveAt(id, threads, true); }
inline bool BarrierOr(int id, int threads, bool mine) {
  return emulator::ArriveAt(id, threads, true, mine);
}
inline float Exp2(float x) { return std::exp2(x); }
inline float Log2(float x) { return std::log2(x); }

}  // namespace intarsia::cuda
