#include "src/core/overlap.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>

namespace intarsia {
namespace {

// What the walks along an axis add to the distance of two elements: a number of steps.
struct Steps {
  int64_t bytes;      // of one, positive
  int64_t low, high;  // how many
};

// Every difference of the address of a byte of one tensor and one of another that began where it
// does is a sum of steps.
class Distances {
 public:
  // `sign`: 1 for the tensor whose addresses count, -1 for the one that they are less.
  void Add(const TensorView& x, int64_t sign) {
    const int64_t bytes = Bytes(x.dtype);
    for (int axis = 0; axis < x.rank; ++axis) Add(sign * x.stride(axis) * bytes, x.dim(axis) - 1);
    Add(sign, bytes - 1);
  }

  // Whether a distance is one of them.
  bool Contains(int64_t bytes) {
    std::sort(steps_.begin(), steps_.begin() + count_,
              [](const Steps& a, const Steps& b) { return a.bytes > b.bytes; });
    budget_ = kBudget;
    return Contains(bytes, {steps_.data(), static_cast<size_t>(count_)});
  }

  // The least and the largest.
  int64_t low() const { return low_; }
  int64_t high() const { return high_; }

 private:
  // Axes of strides that are no multiples of each other make many sums. Those of views of one
  // tensor need two for an axis.
  static constexpr int kBudget = 1024;

  void Add(int64_t stride, int64_t most) {
    if (stride == 0 || most == 0) return;
    const Steps more = stride > 0 ? Steps{stride, 0, most} : Steps{-stride, -most, 0};
    low_ += more.low * more.bytes;
    high_ += more.high * more.bytes;
    const auto end = steps_.begin() + count_;
    const auto same =
        std::find_if(steps_.begin(), end, [&](const Steps& x) { return x.bytes == more.bytes; });
    if (same == end) {
      steps_[static_cast<size_t>(count_++)] = more;
    } else {
      same->low += more.low;
      same->high += more.high;
    }
  }

  // The largest steps first: the smaller ones have to reach what is left.
  bool Contains(int64_t bytes, std::span<const Steps> steps) {
    if (steps.empty()) return bytes == 0;
    int64_t low = 0, high = 0;
    for (const Steps& x : steps.subspan(1)) {
      low += x.low * x.bytes;
      high += x.high * x.bytes;
    }
    const Steps& first = steps.front();
    const int64_t from = std::max(first.low, CeilOf(bytes - high, first.bytes));
    const int64_t to = std::min(first.high, -CeilOf(low - bytes, first.bytes));
    for (int64_t i = from; i <= to; ++i) {
      if (--budget_ < 0) return false;
      if (Contains(bytes - i * first.bytes, steps.subspan(1))) return true;
    }
    return false;
  }

  static int64_t CeilOf(int64_t a, int64_t b) { return a / b + (a % b > 0); }

  std::array<Steps, 2 * kMaxRank + 2> steps_;
  int count_ = 0, budget_ = 0;
  int64_t low_ = 0, high_ = 0;
};

constexpr int64_t kMaxReach = int64_t{1} << 60;  // bytes; no memory is as large

int64_t Reach(const TensorView& x) {
  int64_t bytes = 0;
  for (int axis = 0; axis < x.rank; ++axis)
    bytes += std::abs(x.stride(axis)) * (x.dim(axis) - 1) * Bytes(x.dtype);
  return bytes;
}

}  // namespace

bool Overlap(const TensorView& a, const TensorView& b) {
  if (a.size() == 0 || b.size() == 0) return false;
  if (a.data == b.data) return true;
  if (std::max(Reach(a), Reach(b)) > kMaxReach) return false;  // sums would overflow
  // b + walk in b = a + walk in a
  Distances distances;
  distances.Add(a, 1);
  distances.Add(b, -1);
  const auto between = static_cast<int64_t>(reinterpret_cast<uintptr_t>(b.data) -
                                            reinterpret_cast<uintptr_t>(a.data));
  if (between < distances.low() || between > distances.high()) return false;
  return distances.Contains(between);
}

}  // namespace intarsia
