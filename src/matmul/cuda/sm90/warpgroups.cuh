// Products with weights in 4-bit codes, u4b8, or u4 with points in bytes, by wgmma, or mma.sync for
// few rows:
//   out[row, column] = sum_i x[row, i] w[column, i] + bias[column]      (matmul/quantized.h)
// for groups of 128 columns and multiples of it.
//
// One thread has the copy engine fetch codes, factors and rows of x, a stage of 128 columns at a
// time. A stage's sums are a group's, or part of one: its scale multiplies them in f32. Its point
// is taken from codes as they become numbers.
//
// More than 16 rows of x: warpgroups decode codes into registers, which are wgmma's A, 64 rows of w
// at a time. B are rows of x as they lie in memory. A lane of A has columns 2c, 2c + 1, 2c + 8 and
// 2c + 9 of 16, of rows r and r + 8, in whose place are rows 2r and 2r + 1 of a tile: byte c of two
// neighboring lines of codes, in 8 bytes of each line.
//
// Up to 16 rows: mma.sync (codes_block.cuh), since wgmma with A in registers takes as long for 8
// rows as for 32. Shared memory and registers have room for a second CTA, so that the next kernel's
// CTAs are there when this one ends.
//
// Codes in registers, fed by copies ahead of them, are Marlin's design (Frantar et al., 2024), on
// wgmma Machete's.
#pragma once
#include "src/core/cuda/tma.cuh"
#include "src/core/cuda/vec.cuh"
#include "src/core/cuda/wgmma.cuh"
#include "src/matmul/cuda/codes.cuh"
#include "src/matmul/cuda/quantized_plan.h"
#include "src/matmul/cuda/sm90/codes_block.cuh"
#include "src/matmul/cuda/sm90/shared.cuh"

namespace intarsia::matmul::sm90 {

template <DType kType_, int kRows_, bool kPoints_>
struct WarpgroupsConfig {
  static constexpr DType kType = kType_;
  static constexpr bool kPoints = kPoints_;
  static constexpr Format kFormat = kPoints ? Format::kU4 : Format::kU4B8;
  using T = cuda::DeviceT<kType>;
  static constexpr int kRows = kRows_;  // of x
  // Whether warps multiply by mma.sync.
  static constexpr bool kByWarps = kRows <= 16;
  // Of a warpgroup's rows of w. Registers of one leave room for more warps; two share what is read
  // of x.
  static constexpr int kHalves = kRows == 32 ? 1 : 2;
  static constexpr int kTiles = kWarpgroupsTiles;
  static constexpr int kMultiplying = kTiles / (4 * kHalves);  // warpgroups
  static constexpr int kMultipliers = kMultiplying * cuda::kWarpgroupThreads;
  static constexpr int kThreads = kMultipliers + (kByWarps ? 32 : cuda::kWarpgroupThreads);
  // The copying warpgroup gives registers to those that multiply, unless kByWarps.
  static constexpr int kAtStart = 65536 / kThreads / 8 * 8, kCopying = 40;
  static constexpr int kMultiplyingRegisters =
      (kAtStart + (kAtStart - kCopying) / kMultiplying) / 8 * 8;
  static constexpr int kXBytes = kRows * kStageColumns * 2;
  static constexpr int kTileBytes = kStageColumns * static_cast<int>(kTileRows) / 2;
  static constexpr int kPointBytes = kPoints ? kTiles * static_cast<int>(kTileRows) : 0;
  static constexpr int kMostScaleBytes = kTiles * static_cast<int>(kTileRows) * 4;
  static constexpr int kStages = WarpgroupsStages(kRows);
  static constexpr int kPitch = kTiles * static_cast<int>(kTileRows) + 4;  // of sums, for the banks
};

template <class S>
struct alignas(cuda::kSwizzleAtomBytes) WarpgroupsShared {
  struct Stage {
    alignas(cuda::kSwizzleAtomBytes) char x[S::kXBytes];
    alignas(cuda::kSwizzleAtomBytes) char codes[S::kTiles][S::kTileBytes];
  };
  union {
    Stage stages[S::kStages];
    float sums[S::kRows * S::kPitch];  // when all stages are read
  };
  // Scales one after the other; then points.
  alignas(128) char factors[S::kStages][S::kMostScaleBytes + S::kPointBytes];
  Ring<S::kStages> ring;
};

// What a CTA computes: stages [begin, end) of the sum, for tiles from first_tile on.
struct WarpgroupsTask {
  int64_t first_tile;
  int tiles, first_row, begin, end;
};

struct WarpgroupsMaps {
  CUtensorMap x, codes, scales, points;
};

// By one thread. Boxes end with zeros where x, or w, ends.
template <class S>
__device__ __forceinline__ void CopyStages(const QuantizedParams& p, const QuantizedPlan& plan,
                                           const WarpgroupsMaps& maps, const WarpgroupsTask& task,
                                           WarpgroupsShared<S>& shared) {
  const int stages_of_group = static_cast<int>(p.group) / kStageColumns;
  const int tile = static_cast<int>(task.first_tile);
  cuda::RingPlace<S::kStages> place;
  for (int i = task.begin; i < task.end; ++i, place.Next()) {
    auto& full = shared.ring.full[place.index];
    auto& stage = shared.stages[place.index];
    shared.ring.empty[place.index].Wait(place.parity ^ 1);
    full.ArriveExpecting(S::kXBytes + S::kTiles * (S::kTileBytes + plan.scale_bytes) +
                         S::kPointBytes);
    cuda::CopyBox<2>(stage.codes, maps.codes, {i * (S::kTileBytes / 4), tile}, full);
    char* const factors = shared.factors[place.index];
    cuda::CopyBox<3>(factors, maps.scales, {0, i / stages_of_group, tile}, full);
    if constexpr (S::kPoints)
      cuda::CopyBox<3>(factors + S::kMostScaleBytes, maps.points, {0, i / stages_of_group, tile},
                       full);
#pragma unroll
    for (int panel = 0; panel < 2; ++panel)
      cuda::CopyBox<2>(stage.x + panel * (S::kXBytes / 2), maps.x,
                       {i * kStageColumns + panel * cuda::kPanelColumns, task.first_row}, full);
  }
}

// Four warps that compute 64 kHalves rows of w.
template <class S>
class WarpgroupsProduct {
 public:
  static constexpr int kSums = S::kRows / 2;
  static constexpr int kSteps = kStageColumns / cuda::kWgmmaStep;
  using M = cuda::Wgmma<S::kRows>;
  using Steps = CountedSteps<S::kFormat, S::kType>;
  using Block = CodesBlock<S::kFormat, S::kType, S::kRows, S::kHalves>;

  __device__ __forceinline__ WarpgroupsProduct(const QuantizedParams& p, const WarpgroupsTask& task,
                                               WarpgroupsShared<S>& shared, int number)
      : p_(p), task_(task), shared_(shared), steps_(OpaqueZero(p)), block_(OpaqueZero(p)) {
    const int thread = static_cast<int>(threadIdx.x % cuda::kWarpgroupThreads), lane = thread % 32;
    r_ = lane / 4, c_ = lane % 4;
    tile_ = number * S::kHalves * 4 + thread / 32;
    bytes_ = (c_ | (4 + c_) << 4) * 0x101;
  }

  // Products of a half are in flight while the next one is decoded.
  __device__ __forceinline__ void Run() {
    float group[S::kHalves][kSums];
    uint32_t a[S::kHalves][kSteps][4];
    cuda::RingPlace<S::kStages> place;
#pragma unroll
    for (auto& of_half : all_)
#pragma unroll
      for (float& sum : of_half) sum = 0.0f;
#pragma unroll 1
    for (int i = task_.begin; i < task_.end; ++i, place.Next()) {
      shared_.ring.full[place.index].Wait(place.parity);
      if constexpr (S::kByWarps && S::kPoints) {
        const uint2 biases[] = {BiasesOf(place.index, 0), BiasesOf(place.index, 1)};
        MultiplyByWarps(place.index, group, [&](int half) { return biases[half]; });
      } else if constexpr (S::kByWarps) {
        MultiplyByWarps(place.index, group);
      } else {
#pragma unroll
        for (int half = 0; half < S::kHalves; ++half) {
          if constexpr (S::kPoints)
            Decode(place.index, half, a[half], BiasesOf(place.index, half));
          else
            Decode(place.index, half, a[half]);
          // Decoded before the first product begins, not between products.
#pragma unroll
          for (auto& of_step : a[half])
#pragma unroll
            for (uint32_t& pair : of_step) asm volatile("" : "+r"(pair)::"memory");
          Multiply(place.index, a[half], group[half]);
        }
      }
      float2 scales[S::kHalves];
#pragma unroll
      for (int half = 0; half < S::kHalves; ++half) scales[half] = ScalesOf(place.index, half);
      if constexpr (!S::kByWarps && S::kHalves == 2) cuda::WgmmaWait<1>();
      if constexpr (S::kHalves == 2) AddScaled(scales[0], group[0], all_[0]);
      if constexpr (!S::kByWarps) cuda::WgmmaWait<0>();
      Release(place.index);
      AddScaled(scales[S::kHalves - 1], group[S::kHalves - 1], all_[S::kHalves - 1]);
    }
  }

  // store(tile of the CTA, row of it, row of x, sum of that row and of the next one of the tile)
  template <class Store>
  __device__ __forceinline__ void ForEachPair(Store store) const {
#pragma unroll
    for (int half = 0; half < S::kHalves; ++half)
#pragma unroll
      for (int i = 0; i < kSums; i += 4)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          store(tile_ + 4 * half, 2 * r_, 2 * i + 2 * c_ + e, all_[half][i + e],
                all_[half][i + 2 + e]);
  }

 private:
  // 64 rows of w, of which a warp has a tile. biases: none, or of rows 2r and 2r + 1.
  template <class... Biases>
  __device__ __forceinline__ void Decode(int stage, int half, uint32_t (&a)[kSteps][4],
                                         Biases... biases) const {
    const char* const codes = shared_.stages[stage].codes[tile_ + 4 * half] + 8 * r_;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const auto line = [&](int l) {
        return *reinterpret_cast<const uint2*>(codes + (2 * step + l) * kLineBytes);
      };
      const uint2 low = line(0), high = line(1);
      Pairs(low.x, high.x, a[step][0], a[step][2], biases.x...);
      Pairs(low.y, high.y, a[step][1], a[step][3], biases.y...);
    }
  }
  // The pairs of byte c of two words.
  template <class... Bias>
  __device__ __forceinline__ void Pairs(uint32_t first, uint32_t second, uint32_t& low,
                                        uint32_t& high, Bias... bias) const {
    const uint32_t twice = __byte_perm(first, second, bytes_);
    low = steps_.Pair(twice, bias...), high = steps_.Pair(twice >> 8, bias...);
  }
  // Of rows 2r and 2r + 1 of a tile.
  __device__ __forceinline__ uint2 BiasesOf(int stage, int half) const {
    return PointBiases<S::kType>(shared_.factors[stage] + S::kMostScaleBytes +
                                     (tile_ + 4 * half) * static_cast<int>(kTileRows),
                                 r_);
  }
  // The copy engine swaps 16 bytes of a row of a panel by the row's number.
  template <class... Biases>
  __device__ __forceinline__ void MultiplyByWarps(int stage, float (&sums)[S::kHalves][kSums],
                                                  Biases... biases) const {
    const char* const x = shared_.stages[stage].x + r_ * 128;
#pragma unroll
    for (auto& of_half : sums)
#pragma unroll
      for (float& sum : of_half) sum = 0.0f;
#pragma unroll
    for (int block = 0; block < kStageColumns / 32; ++block) {
      const int unit = block % 2 * 4 + c_;
      block_.MultiplyAdd(
          [&](int half) {
            return shared_.stages[stage].codes[tile_ + 4 * half] + (4 * block + c_) * kLineBytes +
                   8 * r_;
          },
          [&](int n) { return x + block / 2 * (S::kXBytes / 2) + n * 1024 + (unit ^ r_) * 16; },
          sums, biases...);
    }
  }
  // In flight afterwards, as a group of its own.
  __device__ __forceinline__ void Multiply(int stage, const uint32_t (&a)[kSteps][4],
                                           float (&sums)[kSums]) const {
    const uint64_t x = cuda::ColumnsSummed(cuda::SharedAddress(shared_.stages[stage].x));
    using T = typename S::T;
    cuda::WgmmaFence();
    M::template RegistersColumns<T, false>(sums, a[0], x);
#pragma unroll
    for (int step = 1; step < kSteps; ++step)
      M::template RegistersColumns<T, true>(sums, a[step],
                                            x + cuda::ColumnStepBytes(S::kRows, step) / 16);
    cuda::WgmmaCommit();
  }
  // Of two neighboring rows; those of a tile that is not there are not stored.
  __device__ __forceinline__ float2 ScalesOf(int stage, int half) const {
    const int pair_of_all = (tile_ + 4 * half) * static_cast<int>(kTileRows) / 2 + r_;
    const float2 scales = ScalePair(shared_.factors[stage], p_.scales.dtype, pair_of_all);
    return make_float2(scales.x / Steps::kUnit, scales.y / Steps::kUnit);
  }
  __device__ __forceinline__ void Release(int stage) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared_.ring.empty[stage].Arrive();
  }

  const QuantizedParams& p_;
  const WarpgroupsTask& task_;
  WarpgroupsShared<S>& shared_;
  const Steps steps_;
  const Block block_;
  int r_, c_, tile_;
  uint32_t bytes_;
  float all_[S::kHalves][kSums];
};

}  // namespace intarsia::matmul::sm90
