// simd.h of one instruction set behind plain functions. The test itself is compiled for any
// machine, as the library is: see isa.h.
#pragma once
#include <cstdint>

#include "src/core/cpu/isa.h"

namespace intarsia {

// All take any n: the last register is a part.
struct SimdFunctions {
  int lanes;
  void (*exp)(const float* x, int64_t n, float* y);
  void (*tanh)(const float* x, int64_t n, float* y);
  void (*normal_cdf)(const float* x, int64_t n, float* y);
  void (*load_f16)(const uint16_t* x, int64_t n, float* y);
  void (*load_bf16)(const uint16_t* x, int64_t n, float* y);
  void (*store_f16)(const float* x, int64_t n, uint16_t* y);
  void (*store_bf16)(const float* x, int64_t n, uint16_t* y);
  void (*round_to_f16)(const float* x, int64_t n, float* y);
  void (*round_to_bf16)(const float* x, int64_t n, float* y);
  struct EightBit {
    void (*load)(const uint8_t* x, int64_t n, float* y);
    void (*store)(const float* x, int64_t n, uint8_t* y);
    void (*round_to)(const float* x, int64_t n, float* y);
  };
  EightBit f8e4m3, f8e5m2, i8;
  // Of one register.
  float (*sum)(const float* x);
  float (*largest)(const float* x);
  void (*splat)(float x, float* y);
  void (*sum_each)(const float* x, float* y);  // x [lanes, lanes]
};

template <Isa isa>
const SimdFunctions& GetSimdFunctions();

}  // namespace intarsia
