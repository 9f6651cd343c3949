// A gated activation, the middle of a gated MLP:
//   out = round_T(act(gate)) * up, rounded to T, with act in f32.
// Equal to the two ops one after the other. An op of this family is a name for its `act`; it may
// also quantise the product by a given scale.
#pragma once
#include "src/core/op.h"

namespace intarsia {

struct GatedActivation {
  TensorView x;
  Optional up;
  TensorView out;
};

consteval auto GatedSpec(std::string_view name, std::string_view summary, std::string_view source) {
  return MakeSpec(
             name, summary, source,
             In("x", &GatedActivation::x, "up: ... n | ... 2*n", "T",
                "gate and up side by side; the gate alone if up is given"),
             In("up", &GatedActivation::up, "... n", "T",
                "what the gate multiplies, when it is an array of its own, as a sharded last axis "
                "needs"),
             Out("out", &GatedActivation::out, "... n", "T", "the product"))
      .Separable("n");
}

// What kernels see: rows of n elements, wherever gate and up lie.
template <class T, class Out = T>
struct GatedRows {
  [[gnu::always_inline]] explicit GatedRows(const GatedActivation& op)
      : gate(op.x.as<const T>()),
        out(op.out.as<Out>()),
        n(op.out.dim(-1)),
        rows(n == 0 ? 0 : op.out.size() / n),
        gate_stride(op.x.dim(-1)),
        up(op.up ? op.up->as<const T>() : gate + (rows == 0 ? 0 : n)),
        up_stride(op.up ? n : gate_stride) {}

  const T* gate;
  Out* out;
  int64_t n, rows, gate_stride;
  const T* up;
  int64_t up_stride;
};

}  // namespace intarsia
