// Which instance of a kernel a format takes.
#pragma once
#include "src/core/status.h"
#include "src/matmul/quantized.h"

namespace intarsia::matmul {

// fn.operator()<kFormat>() for formats of 4 and 8 bits, which kernels stream.
template <class Fn>
Status DispatchStreamed(Format format, Fn fn) {
  switch (format) {
    case Format::kU4:
      return fn.template operator()<Format::kU4>();
    case Format::kU4B8:
      return fn.template operator()<Format::kU4B8>();
    case Format::kE2M1:
      return fn.template operator()<Format::kE2M1>();
    case Format::kI8:
      return fn.template operator()<Format::kI8>();
    default:
      return fn.template operator()<Format::kE4M3>();
  }
}

// fn.operator()<kFormat, kEnds>(): e2m1 has instances for mxfp4 and nvfp4, and others for groups of
// 32 columns and of 128.
template <class Fn>
Status DispatchStreamed(Format format, GroupEnds ends, Fn fn) {
  return DispatchStreamed(format, [&]<Format kFormat>() -> Status {
    using enum GroupEnds;
    constexpr GroupEnds kSecond = kFormat == Format::kE2M1 ? kEach16 : kEach128;
    if (ends == kSecond) return fn.template operator()<kFormat, kSecond>();
    return fn.template operator()<kFormat, kEach32>();
  });
}

// The same for all formats.
template <class Fn>
Status DispatchFormat(Format format, Fn fn) {
  switch (format) {
    case Format::kU5:
      return fn.template operator()<Format::kU5>();
    case Format::kU5B16:
      return fn.template operator()<Format::kU5B16>();
    case Format::kU6B32:
      return fn.template operator()<Format::kU6B32>();
    default:
      return DispatchStreamed(format, fn);
  }
}

}  // namespace intarsia::matmul
