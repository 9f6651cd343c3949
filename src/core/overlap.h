// Whether two tensors share memory.
#pragma once
#include "src/core/tensor_view.h"

namespace intarsia {

// Whether an element of one lies in an element of the other. Two views may lie between each other's
// elements, as parts of one cache do. Strides that take too long to tell count as apart.
bool Overlap(const TensorView& a, const TensorView& b);

}  // namespace intarsia
