// Where the groups of a grouped product lie. Rows 0 ... m - 1 belong to one group after the other,
// group i of `all` having sizes[i] of them. The matrices at hand are those of the groups
// offset ... offset + count - 1.
//
// Sizes may hold anything: a negative one counts as 0, and a group ends at row m at the latest. A
// group outside of [0, all) has no rows. So ranges are within [0, m), and no two share a row.
#pragma once
#include <cstdint>

#include "src/core/index_vector.h"

namespace intarsia::matmul {

struct RowRange {
  int64_t begin = 0, end = 0;
};

struct GroupSizes {
  IndexVector sizes;
  int64_t all = 0, count = 0, m = 0;
  IndexVector offset = {};  // absent: 0, or one number

  [[gnu::always_inline]] INTARSIA_HOST_DEVICE int64_t SizeAt(int64_t i) const {
    const int64_t size = sizes.At(i);
    return size < 0 ? 0 : size > m ? m : size;
  }
  // Any two sizes or sums of sizes; never more than m.
  [[gnu::always_inline]] INTARSIA_HOST_DEVICE int64_t Sum(int64_t a, int64_t b) const {
    return a + b > m ? m : a + b;
  }
  // Which of all groups is the first at hand: below 0, or `all` and more, if that is none.
  [[gnu::always_inline]] INTARSIA_HOST_DEVICE int64_t Offset() const {
    const int64_t first = offset.data ? offset.At(0) : 0;
    return first < -count ? -count : first > all ? all : first;
  }
};

// What a product on a GPU may not read before the kernel ahead of it on the stream is done. Kernels
// that cannot begin early take no notice.
enum class Await {
  kNothing,  // it begins behind that kernel
  kAll,
  kRows,  // of x, nor write results; everything else is there, kernels further ahead are done
};

}  // namespace intarsia::matmul
