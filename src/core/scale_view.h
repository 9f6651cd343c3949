// Scales of quantized operands, and other f32 numbers that there is one of for a tensor, for each
// head, or for each head of each sequence.
#pragma once
#include <cstdint>

#include "src/core/index_vector.h"
#include "src/core/tensor_view.h"

namespace intarsia {

struct ScaleView {
  const float* data = nullptr;  // null: absent
  int64_t seq_stride = 0, head_stride = 0;

  [[gnu::always_inline]] INTARSIA_HOST_DEVICE float At(int64_t seq, int64_t head,
                                                       float if_absent = 1.0f) const {
    return data ? data[seq * seq_stride + head * head_stride] : if_absent;
  }
};

// `tensor` is f32 of shape [1], [h] or [b, h], and dense.
inline ScaleView ToScaleView(const Optional& tensor) {
  if (!tensor) return {};
  return {.data = tensor->as<const float>(),
          .seq_stride = tensor->rank == 2 ? tensor->stride(0) : 0,
          .head_stride = tensor->dim(-1) == 1 ? 0 : tensor->stride(-1)};
}

}  // namespace intarsia
