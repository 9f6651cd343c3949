// Rotary embedding of one head. rotary_embedding.h has the formula. For <op>_cpu.cc files only,
// like simd.h.
#pragma once
#include "src/core/cpu/simd.h"

namespace intarsia {
namespace {

// Row `position` of the table in f32, [r]: cosines, then sines, negated to turn back. Turns nothing
// if the position is outside.
template <class C>
void LoadAngles(const C* table, int64_t max_pos, int64_t r, int64_t position, bool inverse,
                float* angles) {
  const bool inside = position >= 0 && position < max_pos;
  const float sign = inverse ? -1.0f : 1.0f;
  ForLanes(r, [&](int64_t i, int lanes) {
    StoreN(angles + i, inside ? LoadN(table + position * r + i, lanes) : VecF{}, lanes);
  });
  for (int64_t i = 0; i < r / 2; ++i) {
    angles[i] = inside ? angles[i] : 1.0f;
    angles[r / 2 + i] *= sign;
  }
}

template <class T>
void TurnNeox(const T* x, const float* angles, int64_t half, T* out) {
  ForLanes(half, [&](int64_t i, int lanes) {
    const VecF x1 = LoadN(x + i, lanes), x2 = LoadN(x + half + i, lanes);
    const VecF cos = LoadN(angles + i, lanes), sin = LoadN(angles + half + i, lanes);
    StoreN(out + i, x1 * cos - x2 * sin, lanes);
    StoreN(out + half + i, x2 * cos + x1 * sin, lanes);
  });
}

template <class T>
void TurnGptj(const T* x, const float* angles, int64_t half, T* out) {
  ForLanes(half, [&](int64_t i, int lanes) {
    T even[kLanes] = {}, odd[kLanes] = {};
    for (int k = 0; k < lanes; ++k) even[k] = x[2 * (i + k)], odd[k] = x[2 * (i + k) + 1];
    const VecF cos = LoadN(angles + i, lanes), sin = LoadN(angles + half + i, lanes);
    const VecF x1 = Load(even), x2 = Load(odd);
    Store(even, x1 * cos - x2 * sin);
    Store(odd, x2 * cos + x1 * sin);
    for (int k = 0; k < lanes; ++k) out[2 * (i + k)] = even[k], out[2 * (i + k) + 1] = odd[k];
  });
}

}  // namespace
}  // namespace intarsia
