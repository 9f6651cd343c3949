// A vector of int32 or int64 indices, on whichever device the call runs.
#pragma once
#include <cstdint>

#include "src/core/tensor_view.h"

#ifdef __CUDACC__
#define INTARSIA_HOST_DEVICE __host__ __device__
#else
#define INTARSIA_HOST_DEVICE
#endif

namespace intarsia {

struct IndexVector {
  const void* data = nullptr;  // null: absent
  bool wide = false;           // int64

  [[gnu::always_inline]] INTARSIA_HOST_DEVICE int64_t At(int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

// `tensor` has dtype i32 or i64 and is dense.
inline IndexVector ToIndexVector(const TensorView& tensor) {
  return {tensor.data, tensor.dtype == DType::kI64};
}
inline IndexVector ToIndexVector(const Optional& tensor) {
  return tensor ? ToIndexVector(*tensor) : IndexVector{};
}

}  // namespace intarsia
