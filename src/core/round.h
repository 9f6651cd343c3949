// Division and rounding up of numbers >= 0.
#pragma once

namespace intarsia {

template <class Int>
constexpr Int CeilDiv(Int a, Int b) {
  return (a + b - 1) / b;
}

template <class Int>
constexpr Int RoundUp(Int a, Int b) {
  return CeilDiv(a, b) * b;
}

}  // namespace intarsia
