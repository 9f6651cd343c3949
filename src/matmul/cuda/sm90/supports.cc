#include "src/core/aligned.h"
#include "src/matmul/cuda/sm90/grouped.h"

namespace intarsia::matmul::sm90 {
namespace {

// Each task reads all sizes anew.
constexpr int64_t kMostGroups = 4096;
// Of x: 16 bytes that gathering warps count.
constexpr int64_t kMostUnits = (int64_t{1} << 32) - 1;
// Of a tensor map, in 16-bit elements.
constexpr int64_t kStrideEnd = (int64_t{1} << 40) / 2;

bool HasFewGroups(const GroupSizes& groups) {
  return groups.all <= kMostGroups && groups.count <= kMostGroups;
}

// The copy engine reads rows that begin at multiples of 16 bytes; results are written 16 bytes at a
// time.
bool SupportsRows(DType dtype, int64_t k, int64_t n, const GroupSizes& groups) {
  return (dtype == DType::kBF16 || dtype == DType::kF16) && k > 0 && n > 0 && k % 8 == 0 &&
         n % 8 == 0 && groups.m > 0 && groups.count > 0 && HasFewGroups(groups);
}

}  // namespace

bool CanFindRows(const GroupSizes& groups, const IndexVector& rows, int64_t x_rows, int64_t k) {
  return HasFewGroups(groups) && x_rows > 0 && x_rows < int64_t{1} << 31 &&
         (!rows.data || x_rows <= kMostUnits / (k / 8 + 1));
}

bool Supports(const GroupedParams& p) {
  if (p.gating.is_there && (!p.transposed || p.out_dtype != p.dtype || p.n % 16 != 0)) return false;
  return SupportsRows(p.dtype, p.k, p.n, p.groups) &&
         CanFindRows(p.groups, p.rows, p.x_rows, p.k) && p.k * p.n < kStrideEnd &&
         IsAligned16(p.x) && IsAligned16(p.w) && IsAligned16(p.out);
}

bool Supports(const GroupedGradientParams& p) {
  return SupportsRows(p.dtype, p.k, p.n, p.groups) && IsAligned16(p.x) && IsAligned16(p.d_out) &&
         IsAligned16(p.out);
}

}  // namespace intarsia::matmul::sm90
