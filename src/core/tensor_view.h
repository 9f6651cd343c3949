// A tensor that somebody else owns: address, dtype, shape and element strides.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "src/core/dtype.h"
#include "src/core/status.h"

namespace intarsia {

inline constexpr int kMaxRank = 8;

struct TensorView {
  // A call has tens of these: what is beyond `rank` is not set, for clearing it is a tenth of the
  // time of a small call from torch.
  TensorView() {}  // NOLINT: `= default` would clear it in optional::emplace()

  void* data = nullptr;
  DType dtype = DType::kOther;
  int rank = 0;
  std::array<int64_t, kMaxRank> dims;
  std::array<int64_t, kMaxRank> strides;  // in elements

  // Negative axes count from the back, as in NumPy.
  int64_t dim(int axis) const { return dims[static_cast<size_t>(axis < 0 ? rank + axis : axis)]; }
  int64_t stride(int axis) const {
    return strides[static_cast<size_t>(axis < 0 ? rank + axis : axis)];
  }
  int64_t size() const;
  int64_t rows() const;  // of all axes but the last
  bool dense() const;    // row-major without gaps
  std::span<const int64_t> shape() const { return {dims.data(), static_cast<size_t>(rank)}; }
  bool same_strides(const TensorView& other) const {
    return rank == other.rank &&
           std::equal(strides.begin(), strides.begin() + rank, other.strides.begin());
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};
using Optional = std::optional<TensorView>;

// A view of a dense array. Fails on a rank above kMaxRank, negative sizes, or a product of sizes
// that overflows int64.
Status MakeDense(void* data, DType dtype, std::span<const int64_t> dims, TensorView& view);

// A view with strides of its own, in elements. An axis of one element or less gets the stride of a
// dense array, whatever is given: nobody walks along it, and torch lets it be anything. So kernels
// may multiply any stride by its axis' size. Fails as MakeDense does, and on a view that reaches
// beyond 2^63 bytes.
Status MakeStrided(void* data, DType dtype, std::span<const int64_t> dims, const int64_t* strides,
                   TensorView& view);

// The distance, in elements, of neighbors in a walk over the first `axes` axes; none if it is not
// always the same. Axes of one element have no part in it: torch gives them any stride.
std::optional<int64_t> EvenStride(const TensorView& x, int axes);

// The distance of the rows, all axes but the last, of what lies as Access::kEvenRows says.
inline int64_t RowStride(const TensorView& x) { return EvenStride(x, x.rank - 1).value_or(0); }

// "[2, 3, 64]"
std::string ShapeText(std::span<const int64_t> dims);

}  // namespace intarsia
