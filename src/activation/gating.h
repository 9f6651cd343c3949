// The activations of gates and ups that a product can end with. Those with all gates first are one
// formula, for kernels that would otherwise need a copy of their loops for each:
//   act = round_T(gate / (1 + e^-(gate (linear + cubic gate^2)))) up,
// which is silu, or gelu_tanh. Where gate and up are neighbors, it is that of swigluoai_and_mul
// with `linear` for alpha.
#pragma once
#include <string_view>

#include "src/activation/constants.h"

namespace intarsia {

struct Gating {
  bool is_there = false;
  bool in_turn = false;  // gate and up are neighbors
  float linear = 1.0f, cubic = 0.0f, limit = 0.0f;

  static Gating Of(std::string_view activation, float limit, float alpha) {
    if (activation == "swigluoai") return {true, true, alpha, 0.0f, limit};
    if (activation == "gelu_tanh") return {true, false, kGeluTanhLinear, kGeluTanhCubic};
    return {true};
  }
};

}  // namespace intarsia
