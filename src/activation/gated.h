// A gated activation, the middle of a gated MLP:
//   out = round_T(act(gate)) * up, rounded to T, with act in f32.
// Equal to the two ops one after the other. An op of this family is a name for its `act`, which may
// have attributes; it may also quantize the product by a given scale.
#pragma once
#include <utility>

#include "src/core/op.h"

namespace intarsia {

struct GatedActivation {
  TensorView x;
  Optional up;
  TensorView out;
};

template <class... Attributes>
consteval auto GatedSpec(std::string_view name, std::string_view summary, std::string_view source,
                         Attributes... attributes) {
  return MakeSpec(
             name, summary, source,
             In("x", &GatedActivation::x, "up: ... n | ... 2*n", "T",
                "gate and up side by side; the gate alone if up is given"),
             In("up", &GatedActivation::up, "... n", "T",
                "what the gate multiplies, when it is an array of its own, as a sharded last axis "
                "needs"),
             attributes..., Out("out", &GatedActivation::out, "... n", "T", "the product"))
      .Separable("n");
}

// Where gate and up lie in x, when it holds both.
enum class GatedOrder { kGateFirst, kUpFirst, kInTurn /* gate, up, gate, up, ... */ };

// What kernels see: rows of n elements, wherever gate and up lie.
template <class T, class Out = T>
struct GatedRows {
  [[gnu::always_inline]] explicit GatedRows(const GatedActivation& op, GatedOrder order)
      : gate(op.x.as<const T>()),
        out(op.out.as<Out>()),
        n(op.out.dim(-1)),
        rows(n == 0 ? 0 : op.out.size() / n),
        gate_stride(op.x.dim(-1)),
        up(op.up ? op.up->as<const T>() : gate),
        up_stride(op.up ? n : gate_stride),
        in_turn(order == GatedOrder::kInTurn && !op.up) {
    if (!op.up && rows > 0) up += in_turn ? 1 : n;
    if (order != GatedOrder::kUpFirst) return;
    std::swap(gate, up);
    std::swap(gate_stride, up_stride);
  }

  const T* gate;
  Out* out;
  int64_t n, rows, gate_stride;
  const T* up;
  int64_t up_stride;
  bool in_turn;  // then the neighbors of both are two elements apart
};

}  // namespace intarsia
