// Products of groups of rows, each with a matrix of its own in codes:
//   out[row, column] = sum_i x[taken(row), i] w[group of row][column, i] + bias[group][column]
// or, with a gating, act(gate, up) of two such sums (matmul/quantized.h). Multiples of 32 columns
// (PlanGroupsHopper):
//
//   format     columns of a group          scales         zeros
//   u4b8, i8   32, 64, 128 and multiples   2 or 4 bytes   none
//   u5b16      32                          f16            none
//   u4         128 and multiples           2 or 4 bytes   points, bytes
//   e4m3       128 and multiples           2 or 4 bytes   none
//   e2m1       32                          e8m0           none
//   e2m1       16                          e4m3           none
//   u4, u5     32                          u8 x outer     minimums, so
//   u6b32      16                          i8 x outer     none
//   u4, u5     32                          f16            minimums, so
//
// Scales of 4 bytes come with groups of 128 columns and more. Outer factors, of GGUF's K-quants,
// are in f16, of multiples of 128 columns. The last line comes with multiples of 128 columns alone.
//
// CTAs stay on their multiprocessor, and each computes one task after another: some rows of a group
// and some tiles of w. One warp finds tasks and has the copy engine fetch codes, factors and rows
// of x, a stage of 128 columns at a time, so that the next task's first stages are in flight while
// this one's last are multiplied. The others multiply by mma.sync (codes_block.cuh). With a gating
// that takes all gates first, half of a task's tiles, and of a warp's, are gates, the others ups.
#pragma once
#include "src/activation/gating.cuh"
#include "src/matmul/cuda/factors.cuh"
#include "src/matmul/cuda/rows.cuh"
#include "src/matmul/cuda/sm90/codes_block.cuh"
#include "src/matmul/cuda/sm90/grouped_codes_stage.cuh"
#include "src/matmul/cuda/sm90/lane_factors.cuh"

namespace intarsia::matmul::sm90 {

// A warp that multiplies: each kWarps-th of a task's tiles.
template <class S>
class GroupedCodesConsumer {
 public:
  using T = typename S::T;
  using Stage = typename GroupedCodesShared<S>::Stage;
  using Block = CodesBlock<S::kFormat, S::kType, S::kRows, S::kEach>;
  static constexpr int kSums = S::kRows / 2;
  using Sums = float[S::kEach][kSums];  // of a lane: C fragments of its tiles

  __device__ __forceinline__ GroupedCodesConsumer(const QuantizedGroupsParams& p,
                                                  const GroupedCodesCut& cut,
                                                  GroupedCodesShared<S>& shared, int warp)
      : p_(p),
        cut_(cut),
        shared_(shared),
        block_(OpaqueZero(p.each), static_cast<int>(threadIdx.x % 4)),
        warp_(warp) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    r_ = lane / 4, c_ = lane % 4;
    x_at_ = Block::Lane::XAt(lane);
  }

  __device__ __forceinline__ void Run() {
    ForEachTask(shared_, [&](const Task<S>& task) {
      if (task.kind == Task<S>::kZeros) return ClearUnit(task.unit);
      Multiply();
      Store(task);
    });
  }

 private:
  // Of those in shared memory.
  __device__ __forceinline__ int TileOf(int i) const { return i * S::kWarps + warp_; }
  __device__ __forceinline__ int Columns() const {
    return static_cast<int>(p_.each.n()) / cut_.parts;
  }
  __device__ __forceinline__ void ClearUnit(const Unit& unit) const {
    if (p_.await == Await::kRows) cuda::AwaitPrevious();  // which may read what lies there
    const int columns = S::kTiles * static_cast<int>(kTileRows) / cut_.parts;
    ClearRows(p_.each.out, p_.each.out_dtype, Columns(), unit, unit.column_tile * columns, columns,
              32 * S::kWarps);
  }

  __device__ __forceinline__ void Multiply() {
    Clear(all_);
    if constexpr (S::kIsGguf) {
      static_assert(S::kWarps == 4);  // tiles of a warp are as far apart
      const LaneFactors<S> factors(p_.each, 0, warp_, r_);
      ForEachStage([&](const Stage& stage, int) { AddGgufStage(stage, factors); });
    } else {
      ForEachStage([&](const Stage& stage, int blocks) {
        if (blocks == S::kBlocks && ArePlain(stage))
          AddStage<true>(stage, blocks);
        else
          AddStage<false>(stage, blocks);
      });
    }
  }
  // add(stage, blocks that are there).
  template <class Add>
  __device__ __forceinline__ void ForEachStage(Add add) {
    const int blocks = static_cast<int>(p_.each.k / kBlockColumns);
#pragma unroll 1
    for (int i = 0; i < cut_.stages; ++i, place_.Next()) {
      shared_.of_stages.full[place_.index].Wait(place_.parity);
      add(shared_.stages[place_.index], min(blocks - i * S::kBlocks, S::kBlocks));
      __syncwarp();
      shared_.of_stages.empty[place_.index].Arrive();
    }
  }
  __device__ __forceinline__ void LoadX(const Stage& stage, int block, typename Block::X& x) const {
    block_.LoadX([&](int n) { return stage.x[8 * n + x_at_.x] + block * 64 + x_at_.y * 16; }, x);
  }
  // The lane's codes of a block of a tile.
  __device__ __forceinline__ auto CodesOf(const Stage& stage, int block) const {
    return [this, &stage, block](int i) {
      return stage.codes[block / S::kBoxBlocks][TileOf(i)] +
             block % S::kBoxBlocks * kBlockBytes<S::kFormat> + Block::Lane::CodesAt(r_, c_);
    };
  }

  // Sums of each group are scaled in f32, and its minimums multiply sums of x. Stages are
  // whole.
  __device__ __forceinline__ void AddGgufStage(const Stage& stage, const LaneFactors<S>& factors) {
    const auto load_x = [&](int block, typename Block::X& x) { LoadX(stage, block, x); };
    const auto codes = [&](int block) { return CodesOf(stage, block); };
    const auto scale = [&](int i, int group) {
      return factors.template Scale<S::kFactor>(stage.factors, i, group);
    };
    if constexpr (S::kMinimums)
      block_.template AddScaledStage<S::kOfSteps>(
          load_x, codes, all_, scale, [&](int i, int group) {
            return factors.template MinimumsOf<S::kFactor>(stage.factors, i, group);
          });
    else
      block_.template AddScaledStage<S::kOfSteps>(load_x, codes, all_, scale);
  }

  // kPlain: whether all blocks are there and scales can be factors of codes (ArePlain).
  template <bool kPlain>
  __device__ __forceinline__ void AddStage(const Stage& stage, int blocks) {
    constexpr bool kScalesCodes = S::kIsNvFp4 || (kPlain && S::kFormat == Format::kE2M1);
    Sums group;
    if constexpr (S::kWide) Clear(group);
    uint2 biases[S::kEach];
    if constexpr (S::kPoints)
#pragma unroll
      for (int i = 0; i < S::kEach; ++i) biases[i] = BiasesOf(stage, i);
#pragma unroll(kPlain ? S::kBlocks : 1)
    for (int b = 0; b < (kPlain ? S::kBlocks : blocks); ++b) {
      if constexpr (!S::kWide && !kScalesCodes) Clear(group);
      const auto codes = CodesOf(stage, b);
      typename Block::X x;
      LoadX(stage, b, x);
      if constexpr (S::kIsNvFp4)
        block_.MultiplyAdd(codes, x, all_, [&](int i) {
          return NvFp4Scales<S::kType>(NvFp4ScalesOf(stage, i, b));
        });
      else if constexpr (kScalesCodes)
        block_.MultiplyAdd(codes, x, all_,
                           [&](int i) { return E2M1Scales<S::kType>(CodedScales(stage, i, b)); });
      else if constexpr (S::kPoints)
        block_.MultiplyAdd(codes, x, group, [&](int i) { return biases[i]; });
      else
        block_.MultiplyAdd(codes, x, group);
      if constexpr (!S::kWide && !kScalesCodes) AddGroup(stage, b, group);
    }
    if constexpr (S::kWide) AddGroup(stage, 0, group);
  }
  // Scales of a tile and the group that a block is of.
  __device__ __forceinline__ const char* ScalesOf(const Stage& stage, int i, int block) const {
    return stage.factors + TileOf(i) * cut_.stage_scale_bytes +
           (block >> cut_.group_shift) * cut_.group_scale_bytes;
  }
  // The exponents, plus 127, of rows 2r and 2r + 1, a byte each.
  __device__ __forceinline__ uint32_t CodedScales(const Stage& stage, int i, int block) const {
    return reinterpret_cast<const uint16_t*>(ScalesOf(stage, i, block))[r_];
  }
  // nvfp4's, of the step that the lane's eight columns of a block are of.
  __device__ __forceinline__ uint32_t NvFp4ScalesOf(const Stage& stage, int i, int block) const {
    const char* const scales = stage.factors + TileOf(i) * cut_.stage_scale_bytes +
                               (2 * block + c_ / 2) * static_cast<int>(kTileRows);
    return reinterpret_cast<const uint16_t*>(scales)[r_];
  }
  __device__ __forceinline__ void AddGroup(const Stage& stage, int block, const Sums& group) {
#pragma unroll
    for (int i = 0; i < S::kEach; ++i) {
      float2 scale;
      if constexpr (S::kFormat == Format::kE2M1) {
        scale = PowersOf(CodedScales(stage, i, block));
      } else {
        scale = ScalePair(ScalesOf(stage, i, block), p_.each.scales.dtype, r_);
        scale = make_float2(scale.x / Block::kUnit, scale.y / Block::kUnit);
      }
      AddScaled(scale, group[i], all_[i]);
    }
  }
  // Of rows 2r and 2r + 1 of a tile.
  __device__ __forceinline__ uint2 BiasesOf(const Stage& stage, int i) const {
    const int box = i / (S::kEach / 2), tile = TileOf(i) - box * S::kBoxTiles;
    return PointBiases<S::kType>(
        stage.factors + S::kZerosAt + box * S::kZeroBoxBytes + tile * static_cast<int>(kTileRows),
        r_);
  }
  // Whether the scales of e2m1 are such that E2M1Scale is exact: at most 1, and for f16 at least
  // 2^-23. Lanes look at a word of two tiles each.
  __device__ __forceinline__ bool ArePlain(const Stage& stage) const {
    if constexpr (S::kFormat != Format::kE2M1 || S::kIsNvFp4) return true;
    constexpr uint32_t kHigh = 0x80808080u;
    const int lane = static_cast<int>(threadIdx.x % 32);
    uint32_t odd = 0;
#pragma unroll
    for (int i = 0; i < S::kEach; i += 2) {
      const uint32_t codes =
          reinterpret_cast<const uint32_t*>(stage.factors)[16 * TileOf(i + lane / 16) + lane % 16];
      odd |= codes;
      if constexpr (S::kType == DType::kF16) odd |= ~((codes | kHigh) - 104 * 0x01010101u);
    }
    return !__any_sync(0xffffffffu, (odd & kHigh) != 0);
  }
  static __device__ __forceinline__ void Clear(Sums& sums) {
#pragma unroll
    for (auto& of_tile : sums)
#pragma unroll
      for (float& sum : of_tile) sum = 0.0f;
  }

  // A lane's sums are of columns 2r and 2r + 1 of a tile.
  __device__ __forceinline__ void Store(const Task<S>& task) const {
    const int tiles = cut_.pairs ? S::kBoxTiles : S::kTiles;
#pragma unroll
    for (int i = 0; i < S::kEach; ++i) {
      if (cut_.pairs && i >= S::kEach / 2) break;
      const int tile = task.unit.column_tile * tiles + TileOf(i);
      if (tile * static_cast<int>(kTileRows) >= (cut_.pairs ? Columns() : p_.each.n())) continue;
      const auto &sums = all_[i], &ups = all_[(i + S::kEach / 2) % S::kEach];
      const float2 scale = ScaleOf(task, tile), of_ups = ScaleOf(task, tile + p_.each.tiles / 2);
#pragma unroll
      for (int at = 0; at < kSums; at += 4) {
#pragma unroll
        for (int e = at; e < at + 2; ++e) {
          const int row = 2 * e + 2 * c_ - e % 2;
          if (row < task.unit.rows)
            StoreOfRow(task, row, tile, {sums[e] * scale.x, sums[e + 2] * scale.y},
                       {ups[e] * of_ups.x, ups[e + 2] * of_ups.y});
        }
      }
    }
  }
  // What sums of columns 2r and 2r + 1 of a tile are multiplied by at the end.
  __device__ __forceinline__ float2 ScaleOf(const Task<S>& task, int64_t tile) const {
    if constexpr (S::kIsGguf) return {1.0f / Block::kUnit, 1.0f / Block::kUnit};
    if constexpr (!S::kIsNvFp4) return {1.0f, 1.0f};
    const float2 outer = NvFp4OuterOf(p_.each, task.unit.group, tile, 2 * r_);
    return {outer.x / kNvFp4Unit, outer.y / kNvFp4Unit};
  }
  __device__ __forceinline__ void StoreOfRow(const Task<S>& task, int row, int tile, float2 sums,
                                             float2 ups) const {
    const QuantizedParams& each = p_.each;
    const int column = tile * static_cast<int>(kTileRows) + 2 * r_, n = Columns();
    const int64_t to = int64_t{task.unit.row + row} * n;
    const bool taken = task.taken[row] >= 0;
    sums = WithBias(sums, task.unit.group, column, taken);
    if (cut_.pairs) {
      ups = WithBias(ups, task.unit.group, n + column, taken);
      StorePair(each.out, S::kType, to + column, 2, Gated(sums.x, ups.x), Gated(sums.y, ups.y));
    } else if (cut_.parts == 2) {
      StorePair(each.out, S::kType, to + column / 2, 1, Gated(sums.x, sums.y), 0.0f);
    } else {
      StorePair(each.out, each.out_dtype, to + column, 2, sums.x, sums.y);
    }
  }
  // A row that takes none of x gives zeros.
  __device__ __forceinline__ float2 WithBias(float2 sums, int group, int column, bool taken) const {
    if (!taken) return {0.0f, 0.0f};
    if (!p_.each.bias) return sums;
    const T* const bias = static_cast<const T*>(p_.each.bias) + group * p_.each.n() + column;
    return {sums.x + cuda::ToFloat(bias[0]), sums.y + cuda::ToFloat(bias[1])};
  }
  __device__ __forceinline__ float Gated(float gate, float up) const {
    return cuda::Gate<T>(p_.each.gating, cuda::RoundTo<T>(gate), cuda::RoundTo<T>(up));
  }

  const QuantizedGroupsParams& p_;
  const GroupedCodesCut& cut_;
  GroupedCodesShared<S>& shared_;
  const Block block_;
  const int warp_;
  int r_, c_;
  int2 x_at_;
  Sums all_;
  cuda::RingPlace<S::kStages> place_;
};

}  // namespace intarsia::matmul::sm90
