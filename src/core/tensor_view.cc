#include "src/core/tensor_view.h"

namespace intarsia {

int64_t TensorView::size() const {
  int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= dim(i);
  return n;
}

int64_t TensorView::rows() const {
  int64_t n = 1;
  for (int i = 0; i + 1 < rank; ++i) n *= dim(i);
  return n;
}

bool TensorView::dense() const {
  int64_t expected = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (dim(i) != 1 && stride(i) != expected) return size() == 0;
    expected *= dim(i);
  }
  return true;
}

Status MakeDense(void* data, DType dtype, std::span<const int64_t> dims, TensorView& view) {
  if (dims.size() > kMaxRank)
    return InvalidArgument(
        Text("has rank ", static_cast<int64_t>(dims.size()), ", at most 8 is supported"));
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int>(dims.size());
  // The bound counts zero sizes as one, so that no stride overflows either.
  int64_t stride = 1, bytes = Bytes(dtype);
  for (size_t i = dims.size(); i-- > 0;) {
    view.dims[i] = dims[i];
    view.strides[i] = stride;
    if (dims[i] < 0) return InvalidArgument(Text("has a negative size: ", ShapeText(dims)));
    if (dims[i] == 0) continue;
    if (__builtin_mul_overflow(bytes, dims[i], &bytes))
      return InvalidArgument(Text("has more than 2^63 bytes: ", ShapeText(dims)));
    stride *= dims[i];
  }
  return {};
}

Status MakeStrided(void* data, DType dtype, std::span<const int64_t> dims, const int64_t* strides,
                   TensorView& view) {
  INTARSIA_RETURN_IF_ERROR(MakeDense(data, dtype, dims, view));
  if (view.size() == 0) return {};
  int64_t reach = 0;  // bytes
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 2) continue;
    view.strides[i] = strides[i];
    const auto stride = static_cast<uint64_t>(strides[i]);
    int64_t of_axis = 0;
    if (__builtin_mul_overflow(strides[i] < 0 ? -stride : stride, dims[i], &of_axis) ||
        __builtin_mul_overflow(of_axis, Bytes(dtype), &of_axis) ||
        __builtin_add_overflow(reach, of_axis, &reach))
      return InvalidArgument(Text("has strides ", ShapeText({strides, dims.size()}), " for shape ",
                                  ShapeText(dims), ", expected a reach below 2^63 bytes"));
  }
  return {};
}

std::optional<int64_t> EvenStride(const TensorView& x, int axes) {
  std::optional<int64_t> innermost;
  int64_t even = 0;  // the stride that the next axis has in an even walk
  for (int axis = axes - 1; axis >= 0; --axis) {
    if (x.dim(axis) == 1) continue;
    if (!innermost)
      innermost = x.stride(axis);
    else if (x.stride(axis) != even)
      return std::nullopt;
    even = x.dim(axis) * x.stride(axis);
  }
  return innermost.value_or(0);
}

std::string ShapeText(std::span<const int64_t> dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

}  // namespace intarsia
