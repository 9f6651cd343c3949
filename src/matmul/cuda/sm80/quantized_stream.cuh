// Products with weights in codes that come from memory right into registers, each once:
//   out[row, column] = sum_i x[row, i] w[column, i] + bias[column]      (matmul/quantized.h)
// for groups of 32 columns and multiples of it. As in quantized.cuh codes are the A operand of
// m16n8k16, [columns of the result, sum], and rows of x are B. A warp has two tiles of w. With r =
// lane / 4 and c = lane % 4 a lane has four neighboring rows of tile r / 4 and, of 32 columns, 8c
// ... 8c + 7: 16 bytes for 4-bit codes. The first two of its rows are A's rows r and r + 8 of one
// product, the others those of a second.
//
// What else a warp needs is in shared memory, put there once for all warps of a CTA: rows of x, and
// scales and zeros as f32.
//
// Decoding is what a warp does most. With 8 rows at most, x follows the order of SpreadCodes. With
// 16, bf16's integers keep the 128 that put them into the mantissa: sum x (q + 128) less 128 sum x,
// and sum x is the product with a matrix of ones.
//
// Rows of x that there are not are copies of the last one: nobody reads their results.
#pragma once
#include "src/core/cuda/mma.cuh"
#include "src/core/round.h"
#include "src/matmul/cuda/codes.cuh"
#include "src/matmul/cuda/factors.cuh"
#include "src/matmul/cuda/quantized_plan.h"

namespace intarsia::matmul {

// kWide: a group ends with a stage of the sum, where it may otherwise end with each block of it.
template <DType kX, Format kCodes, bool kWideGroups, int kRowsOfX>
struct StreamCodesConfig {
  using T = cuda::DeviceT<kX>;
  static constexpr DType kType = kX;
  using M = cuda::Mma<kX>;
  static constexpr Format kFormat = kCodes;
  static constexpr int kRows = kRowsOfX, kRowBlocks = kRows / 8;
  static constexpr bool kSpread = BitsOf(kFormat) == 4 && kRows == 8;
  static constexpr int kWords = BitsOf(kFormat) == 4 ? 1 : 2;  // of a lane, a row and a block
  static constexpr int kStageColumns = StreamStageColumns(kFormat);
  static constexpr int kBlocks = kStageColumns / static_cast<int>(kBlockColumns);
  static constexpr int kGroupBlocks = kWideGroups ? kBlocks : 1;
  static constexpr int kGroups = kBlocks / kGroupBlocks;  // of a stage
  static constexpr int kGroupColumns = kGroupBlocks * static_cast<int>(kBlockColumns);
  static constexpr int kStages = StreamStages(kRows);  // in registers
  static constexpr int kBlockBytes = static_cast<int>(BitsOf(kFormat) * kLineBytes);
  static constexpr bool kBiased = kX == DType::kBF16 && kWideGroups && kRows == 16 &&
                                  (kFormat == Format::kU4 || kFormat == Format::kU4B8);
  static constexpr bool kZeros = StreamsZeros(kFormat);
  static constexpr float kBias = kFormat == Format::kU4B8 ? 136.0f : 128.0f;
  // Whether registers have no room for two CTAs of most warps.
  static constexpr bool kTight =
      (!kWideGroups && (kRows > 8 || kFormat == Format::kU4 || kFormat == Format::kU4B8)) ||
      (kRows > 8 && StreamsZeros(kFormat));
  static constexpr int kMinBlocks = kRows <= 16 && !kTight ? 2 : 1;
  // Chains of products that wait for each other, and row blocks that are multiplied together.
  static constexpr int kChains = kRows == 8 && kWideGroups ? 2 : 1;
  static constexpr int kTogether = kRowBlocks < 2 ? 1 : kRowBlocks < 4 || !kWideGroups ? 2 : 4;
};

// One matrix, and what a CTA multiplies it with: columns of stages [begin, end).
struct CodesTask {
  const uint8_t* packed;
  Factors scales, zeros;
  int64_t first_tile;
  int rows;  // of x
  int begin, end;
  // From a tile of gates to that of their ups, which are neighbors in a CTA; 0: tiles as they lie.
  int64_t up_tiles = 0;

  // Tile `i` of the CTA, or the last one of `tiles`.
  __device__ __forceinline__ int64_t Tile(int i, int64_t tiles) const {
    const int64_t at = first_tile + i;
    return min(up_tiles ? at / 2 + at % 2 * up_tiles : at, tiles - 1);
  }
};

// Where shared memory has what of a chunk of stages: x [rows, pitch], then scales and zeros as f32
// [groups, columns of the CTA].
template <class S>
struct StagedCodes {
  __device__ __forceinline__ StagedCodes(char* shared, const QuantizedPlan& plan, int rows)
      : x(shared),
        pitch(plan.chunk_stages * S::kStageColumns * 2 + 64),
        columns(static_cast<int>(plan.cta_tiles() * kTileRows)),
        scales(reinterpret_cast<float*>(shared + rows * pitch)),
        zeros(scales + plan.chunk_stages * S::kGroups * columns) {}

  char* x;
  int pitch, columns;
  float *scales, *zeros;
};

// Puts a chunk into shared memory. Each thread widens the factors that it copied, so one barrier is
// enough, behind Finish.
template <class S, class RowOf>
class CodesStager {
 public:
  // row_of(row): the row of x; null: zeros.
  __device__ __forceinline__ CodesStager(const QuantizedParams& p, const QuantizedPlan& plan,
                                         const CodesTask& task, RowOf row_of)
      : p_(p),
        plan_(plan),
        task_(task),
        row_of_(row_of),
        thread_(static_cast<int>(threadIdx.x)),
        threads_(static_cast<int>(blockDim.x)),
        unit_(thread_ % kUnits),
        row_(thread_ / kUnits & ((1 << plan.row_shift) - 1)),
        stage_(thread_ / kUnits >> plan.row_shift) {}

  // Copies of stages [first, end).
  __device__ __forceinline__ void Issue(const StagedCodes<S>& to, int first, int end) const {
    const int k = static_cast<int>(p_.k), step = StageStep();
    ForRows([&](int row) {
      const auto* const from = static_cast<const typename S::T*>(row_of_(row));
      int column = (first + stage_) * S::kStageColumns + 8 * unit_;
      uint32_t at = cuda::SharedAddress(UnitAt(to, row, stage_));
      for (int stage = stage_; stage < end - first; stage += step) {
        const bool valid = from && column < k;
        cuda::CpAsync16(at, valid ? from + column : p_.x, valid);
        column += step * S::kStageColumns, at += step * S::kStageColumns * 2;
      }
    });
    ForGroups(end - first, [&](int in_cta, int i) {
      const int64_t inner = InnerOf(in_cta, first, i);
      Copy(to.scales + PlaceOf(to, in_cta, i), task_.scales, inner, plan_.scale_bytes);
      if (S::kZeros && task_.zeros.data)
        Copy(to.zeros + PlaceOf(to, in_cta, i), task_.zeros, inner, plan_.zero_bytes);
    });
    cuda::CpAsyncCommit();
  }

  // Makes the factors that Issue copied, which have arrived, f32: sixteen at a time in their place,
  // the last ones first.
  __device__ __forceinline__ void Finish(const StagedCodes<S>& to, int first, int end) const {
    if (!S::kZeros && task_.scales.dtype == DType::kF32 && !task_.scales.outer) return;
    ForGroups(end - first, [&](int in_cta, int i) {
      float* const scales = to.scales + PlaceOf(to, in_cta, i);
      float* const zeros = to.zeros + PlaceOf(to, in_cta, i);
      const auto group = static_cast<int>(InnerOf(in_cta, first, i) % p_.groups);
#pragma unroll 1
      for (int row = static_cast<int>(kTileRows) - 4; row >= 0; row -= 4) {
        const float4 scale = Widened(scales, task_.scales, in_cta, group, row);
        if constexpr (S::kZeros) {
          float4 zero = {0.0f, 0.0f, 0.0f, 0.0f};
          if (task_.zeros.data) zero = Widened(zeros, task_.zeros, in_cta, group, row);
          if (p_.points)
            zero = {-scale.x * zero.x, -scale.y * zero.y, -scale.z * zero.z, -scale.w * zero.w};
          *reinterpret_cast<float4*>(zeros + row) = zero;
        }
        *reinterpret_cast<float4*>(scales + row) = scale;
      }
    });
  }

 private:
  static constexpr int kUnits = S::kStageColumns / 8;

  // A thread has unit `unit_` of 8 columns in rows and stages that are equally far apart: kUnits
  // lanes side by side have the same ones.
  __device__ __forceinline__ int StageStep() const {
    return max(threads_ / kUnits >> plan_.row_shift, 1);
  }
  template <class Fn>
  __device__ __forceinline__ void ForRows(Fn fn) const {
    for (int row = row_; row < task_.rows; row += threads_ / kUnits) fn(row);
  }
  __device__ __forceinline__ char* UnitAt(const StagedCodes<S>& to, int row, int stage) const {
    return to.x + row * to.pitch + (stage * S::kStageColumns + 8 * unit_) * 2;
  }
  // fn(tile of the CTA, group of the chunk) for the thread's ones.
  template <class Fn>
  __device__ __forceinline__ void ForGroups(int stages, Fn fn) const {
    const int groups = stages * S::kGroups, tiles = static_cast<int>(plan_.cta_tiles());
    for (int i = thread_; i < groups * tiles; i += threads_) fn(i / groups, i % groups);
  }
  __device__ __forceinline__ int64_t TileOf(int in_cta) const {
    return task_.Tile(in_cta, p_.tiles);
  }
  // Which of all groups of all tiles.
  __device__ __forceinline__ int64_t InnerOf(int in_cta, int first, int i) const {
    const int column = (first * S::kGroups + i) * S::kGroupColumns;
    const int group = column / static_cast<int>(p_.group);
    return TileOf(in_cta) * p_.groups + min(group, static_cast<int>(p_.groups) - 1);
  }
  static __device__ __forceinline__ int PlaceOf(const StagedCodes<S>& to, int in_cta, int i) {
    return i * to.columns + in_cta * static_cast<int>(kTileRows);
  }
  static __device__ __forceinline__ void Copy(float* to, const Factors& factors, int64_t inner,
                                              int bytes) {
    const char* const from = static_cast<const char*>(factors.data) + inner * bytes;
    for (int at = 0; at < bytes; at += 16)
      cuda::CpAsync16(cuda::SharedAddress(to) + at, from + at, true);
  }
  // Four of the sixteen factors that lie at `from`.
  __device__ __forceinline__ float4 Widened(const float* from, const Factors& factors, int in_cta,
                                            int group, int row) const {
    const float2 low = LoadPair<true>(from, factors.dtype, row);
    const float2 high = LoadPair<true>(from, factors.dtype, row + 2);
    if (!factors.outer) return {low.x, low.y, high.x, high.y};
    const int groups = static_cast<int>(p_.groups);
    const int64_t tile = TileOf(in_cta);
    const float2 low_outer = OuterOf(factors, tile, group, groups, row);
    const float2 high_outer = OuterOf(factors, tile, group, groups, row + 2);
    return {low.x * low_outer.x, low.y * low_outer.y, high.x * high_outer.x, high.y * high_outer.y};
  }

  const QuantizedParams& p_;
  const QuantizedPlan& plan_;
  const CodesTask& task_;
  const RowOf row_of_;
  const int thread_, threads_, unit_, row_, stage_;
};

// 16 bytes that are read once, behind AwaitPrevious.
__device__ __forceinline__ uint4 LoadCodes16(const char* from) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from)
               : "memory");
  return x;
}

// What a lane has of a stage.
template <class S>
struct StreamCodesPart {
  uint4 w[S::kBlocks][S::kWords];
};

// A warp's codes.
template <class S>
class StreamOfCodes {
 public:
  __device__ __forceinline__ StreamOfCodes(const QuantizedParams& p, const CodesTask& task,
                                           int tile_warp)
      : blocks_(static_cast<int>(p.blocks())) {
    const int lane = static_cast<int>(threadIdx.x % 32), r = lane / 4, c = lane % 4;
    const int64_t tile = task.Tile(2 * tile_warp + r / 4, p.tiles);
    w_ = reinterpret_cast<const char*>(task.packed) + tile * p.tile_bytes() +
         S::kWords * c * kLineBytes + r % 4 * 16;
  }

  __device__ __forceinline__ void Load(StreamCodesPart<S>& part, int stage) const {
    constexpr uint4 kZeros = {0, 0, 0, 0};
    const char* const w = w_ + int64_t{stage} * (S::kBlocks * S::kBlockBytes);
    const int blocks = blocks_ - stage * S::kBlocks;
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b) {
#pragma unroll
      for (int j = 0; j < S::kWords; ++j)
        part.w[b][j] = b < blocks
                           ? LoadCodes16(w + b * S::kBlockBytes + j * static_cast<int>(kLineBytes))
                           : kZeros;
    }
  }

 private:
  const int blocks_;
  const char* w_;
};

template <class S>
class StreamedProduct {
 public:
  using M = typename S::M;
  using Fragment = float[4];
  // Of codes that are not spread there is no more than kUnit.
  using Spread = std::conditional_t<S::kSpread, SpreadCodes<S::kFormat, S::kType>,
                                    SpreadCodes<Format::kI8, S::kType>>;

  __device__ __forceinline__ StreamedProduct(int rows, int pitch, int tile_warp,
                                             uint32_t opaque_zero)
      : spread_(opaque_zero) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    r_ = lane / 4, c_ = lane % 4;
    column_ = tile_warp * 2 * static_cast<int>(kTileRows) + 4 * r_;
#pragma unroll
    for (int n = 0; n < S::kRowBlocks; ++n) x_[n] = min(8 * n + r_, rows - 1) * pitch + 16 * c_;
  }

  // `stage`: of those of the chunk.
  __device__ __forceinline__ void Add(const StagedCodes<S>& staged, const StreamCodesPart<S>& part,
                                      int stage) {
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b) {
      const int group = stage * S::kGroups + b / S::kGroupBlocks;
      if (b % S::kGroupBlocks == 0) BeginGroup();
      typename M::A a[2][2];  // [half of the lane's rows][step]
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t low[4], high[4];
        Eight(part.w[b], 2 * half, low);
        Eight(part.w[b], 2 * half + 1, high);
#pragma unroll
        for (int step = 0; step < 2; ++step)
          a[half][step] = {{low[2 * step], high[2 * step], low[2 * step + 1], high[2 * step + 1]}};
      }
      const char* const block = staged.x + (stage * S::kBlocks + b) * 64;
#pragma unroll
      for (int first = 0; first < S::kRowBlocks; first += S::kTogether) {
        uint4 x[S::kTogether];
#pragma unroll
        for (int n = 0; n < S::kTogether; ++n) {
          x[n] = *reinterpret_cast<const uint4*>(block + x_[first + n]);
          if constexpr (S::kSpread) x[n] = Spread::InOrder(x[n]);
        }
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
          for (int n = 0; n < S::kTogether; ++n) {
            const typename M::B of_x = {
                {cuda::WordOf(x[n], 2 * step), cuda::WordOf(x[n], 2 * step + 1)}};
#pragma unroll
            for (int half = 0; half < 2; ++half)
              M::MultiplyAdd(group_[step % S::kChains][half][first + n], a[half][step], of_x);
            if constexpr (S::kBiased || S::kZeros) {
              constexpr uint32_t kOnes = S::kType == DType::kF16 ? 0x3c003c00u : 0x3f803f80u;
              M::MultiplyAdd(sums_of_x_[first + n], {{kOnes, kOnes, kOnes, kOnes}}, of_x);
            }
          }
        }
      }
      if (b % S::kGroupBlocks == S::kGroupBlocks - 1) EndGroup(staged, group);
    }
  }

  // Of rows 2 half and 2 half + 1 of the lane's four.
  __device__ __forceinline__ const Fragment& Sums(int half, int n) const { return all_[half][n]; }

 private:
  // Eight codes of a row, as B has them: two pairs a step.
  __device__ __forceinline__ void Eight(const uint4 (&w)[S::kWords], int row,
                                        uint32_t (&pairs)[4]) const {
    if constexpr (S::kSpread) {
      spread_.Decode(cuda::WordOf(w[0], row), pairs);
    } else {
      uint32_t low[2], high[2];
      if constexpr (S::kWords == 2) {
        Decode<S::kFormat, S::kType>({cuda::WordOf(w[0], row), 0}, low);
        Decode<S::kFormat, S::kType>({cuda::WordOf(w[1], row), 0}, high);
      } else {
        Decode<S::kFormat, S::kType, 0, S::kBiased>({cuda::WordOf(w[0], row), 0}, low);
        Decode<S::kFormat, S::kType, 2, S::kBiased>({cuda::WordOf(w[0], row), 0}, high);
      }
      pairs[0] = low[0], pairs[1] = low[1], pairs[2] = high[0], pairs[3] = high[1];
    }
  }
  __device__ __forceinline__ void BeginGroup() {
#pragma unroll
    for (int n = 0; n < S::kRowBlocks; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int chain = 0; chain < S::kChains; ++chain)
          group_[chain][0][n][e] = group_[chain][1][n][e] = 0.0f;
        sums_of_x_[n][e] = 0.0f;
      }
    }
  }
  // Scales a group's sums. A lane's results are of columns 2 half + e / 2 of its four, and of rows
  // e % 2 of its two.
  __device__ __forceinline__ void EndGroup(const StagedCodes<S>& staged, int group) {
    const int at = group * staged.columns + column_;
    const float4 four = *reinterpret_cast<const float4*>(staged.scales + at);
    const float scale[4] = {four.x, four.y, four.z, four.w};
    float zero[4] = {};
    if constexpr (S::kZeros) {
      const float4 zeros = *reinterpret_cast<const float4*>(staged.zeros + at);
      zero[0] = zeros.x, zero[1] = zeros.y, zero[2] = zeros.z, zero[3] = zeros.w;
    }
#pragma unroll
    for (int n = 0; n < S::kRowBlocks; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int column = 2 * half + e / 2;
          float sum = group_[0][half][n][e];
          if constexpr (S::kChains > 1) sum += group_[1][half][n][e];
          if constexpr (S::kBiased) sum -= S::kBias * sums_of_x_[n][e % 2];
          all_[half][n][e] += scale[column] / Spread::kUnit * sum;
          if constexpr (S::kZeros) all_[half][n][e] += zero[column] * sums_of_x_[n][e % 2];
        }
      }
    }
  }

  const Spread spread_;
  int r_, c_, column_, x_[S::kRowBlocks];
  Fragment all_[2][S::kRowBlocks] = {}, group_[S::kChains][2][S::kRowBlocks],
           sums_of_x_[S::kRowBlocks];
};

}  // namespace intarsia::matmul
