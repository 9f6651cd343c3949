// Minimums of many rows, as a product of wgmma: of each group's minimum with the sums of x over the
// group. bf16 has 8 bits, so that either is the sum of three of its numbers,
//   m s = m1 s1 + m2 s1 + m1 s2 + m2 s2 + m1 s3 + m3 s1 + m3 s2 + m2 s3,
// but for m3 s3: two steps of 16 columns for the four blocks of a stage. Of an infinite number the
// second part is NaN.
//
// Sums are columns of a stage of x, from kStageColumns on. Warps that neither copy nor multiply add
// them up in f32. A product by mma.sync would wait some 250 cycles behind those of wgmma, and wgmma
// would need a whole warpgroup, which has other work (docs/notebook/formats_of_files.md).
#pragma once
#include <cstring>

#include "src/core/cuda/vec.cuh"
#include "src/core/cuda/wgmma_layout.h"
#include "src/matmul/cuda/counted_steps.cuh"
#include "src/matmul/cuda/sm90/register_products.cuh"
#include "src/matmul/cuda/sm90/warpgroups_stage.cuh"

namespace intarsia::matmul::sm90 {

inline constexpr int kSummingWarps = 3;

// Parts of two numbers, in pairs.
struct ThreeParts {
  uint32_t at[3];
  __device__ __forceinline__ ThreeParts(float low, float high) {
#pragma unroll
    for (uint32_t& pair : at) {
      const auto rounded =
          cuda::FromFloats<cuda::DeviceT<DType::kBF16>>(cuda::Pack<float, 2>{{low, high}});
      memcpy(&pair, &rounded, sizeof pair);
      const float2 parts = FloatsOf<DType::kBF16>(pair);
      low -= parts.x, high -= parts.y;
    }
  }
  // Parts i and j of the lower number, or of the higher one.
  __device__ __forceinline__ uint32_t Low(int i, int j) const {
    return __byte_perm(at[i], at[j], 0x5410);
  }
  __device__ __forceinline__ uint32_t High(int i, int j) const {
    return __byte_perm(at[i], at[j], 0x7632);
  }
};

// all += minimums times sums of x, in flight afterwards. `minimum`: of lane c's block, for rows 2r
// and 2r + 1 of a tile.
template <class S, int kSums>
__device__ __forceinline__ void AddMinimums(float2 minimum, WarpgroupsShared<S>& shared, int stage,
                                            uint32_t parity, float (&all)[kSums]) {
  constexpr int kFirst = kStageColumns / cuda::kWgmmaStep;
  const ThreeParts m(minimum.x, minimum.y);
  const uint32_t a[2][4] = {{m.Low(0, 1), m.High(0, 1), m.Low(0, 1), m.High(0, 1)},
                            {m.Low(0, 2), m.High(0, 2), m.Low(2, 1), m.High(2, 1)}};
  shared.summed[stage].Wait(parity);
  MultiplySteps<cuda::DeviceT<DType::kBF16>, S::kRows, kFirst, 2, true>(
      shared.stages[stage].x, [&](int step) { return a[step - kFirst]; }, all);
}

// `unit` times the sums of 8 rows of x from `first` on, by a warp: a lane has a row and a block.
template <class S>
__device__ __forceinline__ void SumEight(char* x, int first, float unit) {
  const int lane = static_cast<int>(threadIdx.x % 32), row = first + lane % 8, block = lane / 8;
  uint4 eights[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    eights[i] =
        *reinterpret_cast<const uint4*>(x + cuda::PanelOffset(S::kRows, row, 32 * block + 8 * i));
  float2 even{}, odd{};
#pragma unroll
  for (const uint4& eight : eights) {
    const auto add = [](float2& to, uint32_t pair) {
      const float2 both = FloatsOf<S::kType>(pair);
      to.x += both.x, to.y += both.y;
    };
    add(even, eight.x), add(odd, eight.y), add(even, eight.z), add(odd, eight.w);
  }
  const float sum = (even.x + even.y + (odd.x + odd.y)) * unit;
  const ThreeParts s(sum, sum);
  const auto store = [&](int pair, uint32_t parts) {
    *reinterpret_cast<uint32_t*>(
        x + cuda::PanelOffset(S::kRows, row, kStageColumns + 8 * pair + 2 * block)) = parts;
  };
  store(0, s.at[0]), store(1, s.at[1]), store(2, s.Low(2, 0)), store(3, s.Low(1, 2));
}

// By kSummingWarps, of which this is number `warp`.
template <class S>
__device__ __forceinline__ void SumStages(const WarpgroupsTask& task, WarpgroupsShared<S>& shared,
                                          int warp, float unit) {
  cuda::RingPlace<S::kStages> place;
  for (int i = task.begin; i < task.end; ++i, place.Next()) {
    shared.ring.full[place.index].Wait(place.parity);
#pragma unroll
    for (int first = 8 * warp; first < S::kRows; first += 8 * kSummingWarps)
      SumEight<S>(shared.stages[place.index].x, first, unit);
    cuda::FenceForAsyncReads();
    shared.summed[place.index].Arrive();
  }
}

}  // namespace intarsia::matmul::sm90
