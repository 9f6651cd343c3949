#include "src/matmul/cuda/scaled_choice.h"

#include "src/core/aligned.h"
#include "src/matmul/cuda/sm90/scaled.h"

namespace intarsia::matmul {
namespace {

// 16 bytes of a row at a time.
bool HasAlignedRows(const ScaledParams& p) {
  return p.k > 0 && p.k % 16 == 0 && IsAligned16(p.x) && IsAligned16(p.w);
}

}  // namespace

namespace sm90 {
// Results are stored 16 bytes at a time, and sums of all blocks of int8 have 32 bits.
bool Supports(const ScaledParams& p) {
  constexpr int64_t kLargestCode = 128;
  constexpr int64_t kMostSummed = (int64_t{1} << 31) / (kLargestCode * kLargestCode) - 1;
  return HasAlignedRows(p) && p.n % 8 == 0 && IsAligned16(p.out) &&
         (p.dtype != DType::kI8 || p.has_blocks() || p.k <= kMostSummed);
}
}  // namespace sm90

std::string_view Name(ScaledKernel kernel) {
  switch (kernel) {
    case ScaledKernel::kWarpgroups:
      return "Hopper";
    case ScaledKernel::kStream:
      return "portable, 16 rows streamed past";
    case ScaledKernel::kTiles:
      break;
  }
  return "portable, tiles of 64 rows";
}

bool CanRun(ScaledKernel kernel, const ScaledParams& p, const cuda::Device& device) {
  switch (kernel) {
    case ScaledKernel::kWarpgroups:
      return cuda::HasImage(cuda::kHopper, device) && sm90::Supports(p);
    case ScaledKernel::kStream:  // whose grid has rows as its y
      return HasAlignedRows(p) && p.m <= 65535 * kMostStreamedRows / 2;
    case ScaledKernel::kTiles:
      break;
  }
  return true;
}

ScaledKernel Choose(const ScaledParams& p, const cuda::Device& device) {
  const bool has_hopper = CanRun(ScaledKernel::kWarpgroups, p, device);
  // Hopper's kernel reads as fast as the other from 9 rows on, where its tiles of 128 rows of w
  // keep all multiprocessors busy.
  const bool is_large = p.n >= int64_t{kScaleBlock} * device.sms;
  const int64_t most = has_hopper && is_large ? kMostStreamedRows / 2 : kMostStreamedRows;
  if (p.m <= most && CanRun(ScaledKernel::kStream, p, device)) return ScaledKernel::kStream;
  return has_hopper ? ScaledKernel::kWarpgroups : ScaledKernel::kTiles;
}

std::vector<cuda::KernelChoice> ReportScaledChoices(const cuda::Device& device) {
  std::vector<cuda::KernelChoice> choices;
  for (const int64_t rows : {1, 32, 4096}) {
    const ScaledParams p{.m = rows, .n = 4096, .k = 4096};
    choices.push_back(
        {Text("product of codes, rows: ", rows), std::string(Name(Choose(p, device)))});
  }
  return choices;
}

}  // namespace intarsia::matmul
