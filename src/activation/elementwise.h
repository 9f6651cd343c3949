// An activation of each element, in f32 and rounded once: out = act(x). An op of this family is a
// name for its `act`.
#pragma once
#include "src/core/op.h"

namespace intarsia {

struct ElementwiseActivation {
  TensorView x;
  TensorView out;
};

template <class... Attributes>
consteval auto ElementwiseSpec(std::string_view name, std::string_view summary,
                               std::string_view source, Attributes... attributes) {
  return MakeSpec(name, summary, source, In("x", &ElementwiseActivation::x, "...", "T", "numbers"),
                  attributes...,
                  Out("out", &ElementwiseActivation::out, "...", "T", "their activations"));
}

}  // namespace intarsia
