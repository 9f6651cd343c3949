// A product with weights in codes (matmul/quantized.h), decoded in registers:
//   out[row, column] = sum_i x[row, i] w[column, i] + bias[column],
//   w[column, i] = s q[column, i] + z, s and z of the column's group that i is in.
//
// Weights are the A operand of m16n8k16: [columns of the result, sum]; rows of x are B. With r =
// lane / 4 and c = lane % 4 a lane has rows 2r and 2r + 1 of a tile of w in the place of A's rows r
// and r + 8. Which columns a lane's places along the sum stand for is free, as long as A and B
// agree (PTX ISA, "Matrix Fragments for mma.m16n8k16"): those of one word of codes, so that no code
// moves between lanes.
//   coarse: of 32 columns a lane has 8c ... 8c + 7, a word; two products take four each.
//   fine:   of each 16 columns a lane has 4c ... 4c + 3, so that groups of 16 are kept apart.
// The tensor cores multiply codes. Where a group ends, f32 arithmetic scales its sum, and adds z
// times the sum of x, which is the product with a matrix of ones.
//
// f32: x is the sum of three bf16 numbers, each with 8 of its 24 bits, and so are its products.
//
// Warps that share rows of x (tile_warps) share a ring of stages of 128 columns: x, codes and
// factors as they lie in memory, by cp.async. k_warps such rings, of each CTA of a cluster, take
// stages in turn. Sums are added in a fixed order.
#pragma once
#include "src/core/cuda/mma.cuh"
#include "src/matmul/cuda/codes.cuh"
#include "src/matmul/cuda/factors.cuh"
#include "src/matmul/cuda/quantized_store.cuh"

namespace intarsia::matmul {

template <DType kX, Format kCodes, bool kFineLanes, int kRowsOfX, int kTilesOfWarp>
struct QuantizedConfig {
  using T = cuda::DeviceT<kX>;
  static constexpr DType kType = CodeType(kX);
  using M = cuda::Mma<kType>;
  static constexpr Format kFormat = kCodes;
  static constexpr bool kFine = kFineLanes;
  static constexpr int kRows = kRowsOfX, kRowBlocks = kRows / 8, kTiles = kTilesOfWarp;
  static constexpr int kParts = kX == DType::kF32 ? 3 : 1;  // of x
  static constexpr int kStages = QuantizedShape{kRows, kTiles}.stages();
  static constexpr int kRowBytes = kStageColumns * static_cast<int>(sizeof(T));
  static constexpr int kBlockBytes = static_cast<int>(BitsOf(kFormat) * kLineBytes);
  static constexpr int kCodeBytes = kStageColumns / static_cast<int>(kBlockColumns) * kBlockBytes;
  static constexpr int kMinBlocks = kRows == 8 && kX != DType::kF32 ? 3 : kRows <= 16 ? 2 : 1;
  using Fragment = float[4];
};

// 16 bytes to shared memory, those from `bytes` on as zeros.
__device__ __forceinline__ void CopySome16(char* target, const char* source, int bytes,
                                           bool aligned) {
  if (aligned) {
    cuda::CpAsync16(cuda::SharedAddress(target), source, bytes > 0);
    return;
  }
#pragma unroll 1
  for (int i = 0; i < 16; ++i) target[i] = i < bytes ? source[i] : char{0};
}

// Where 16 bytes `unit` of a row of x lie in a stage: rows that lanes read together are in
// different banks.
__device__ __forceinline__ int RowUnit(int row, int unit) {
  return unit ^ ((row & 1) << 2 | (row & 2));
}

// The ring of the warps that share rows of x: what each of them copies. row_of(row): the row of x;
// null: zeros.
template <class S, class RowOf>
class CodeStream {
 public:
  __device__ __forceinline__ CodeStream(const QuantizedParams& p, const QuantizedPlan& plan,
                                        int rows, int64_t first_tile, int warp, RowOf row_of)
      : p_(p), plan_(plan), rows_(rows), warp_(warp), first_tile_(first_tile), row_of_(row_of) {}

  // Columns 128 i on.
  __device__ __forceinline__ void Load(char* stage, int i) const {
    LoadRows(stage, i);
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
      const int64_t tile = min(first_tile_ + t, p_.tiles - 1);
      LoadCodes(CodesAt(stage, t), tile, i);
      LoadFactors(ScalesAt(stage, t), p_.scales, plan_.scale_bytes, tile, i);
      if (plan_.zero_bytes) LoadFactors(ZerosAt(stage, t), p_.zeros, plan_.zero_bytes, tile, i);
    }
  }

  __device__ __forceinline__ int rows() const { return rows_; }
  __device__ __forceinline__ char* CodesAt(char* stage, int t) const {
    const int tile_bytes =
        S::kCodeBytes + plan_.stage_groups * (plan_.scale_bytes + plan_.zero_bytes);
    return stage + rows_ * S::kRowBytes + (warp_ * S::kTiles + t) * tile_bytes;
  }
  __device__ __forceinline__ char* ScalesAt(char* stage, int t, int group = 0) const {
    return CodesAt(stage, t) + S::kCodeBytes + group * plan_.scale_bytes;
  }
  __device__ __forceinline__ char* ZerosAt(char* stage, int t, int group = 0) const {
    return ScalesAt(stage, t, plan_.stage_groups) + group * plan_.zero_bytes;
  }

 private:
  static __device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x % 32); }

  __device__ __forceinline__ void LoadRows(char* stage, int i) const {
    constexpr int kUnits = S::kRowBytes / 16, kBytes = static_cast<int>(sizeof(typename S::T));
    const int threads = 32 * plan_.tile_warps;
    const int first = i * kStageColumns, row_bytes = (static_cast<int>(p_.k) - first) * kBytes;
    for (int at = 32 * warp_ + Lane(); at < rows_ * kUnits; at += threads) {
      const int row = at / kUnits, unit = at % kUnits, bytes = min(row_bytes - 16 * unit, 16);
      const auto* const from = reinterpret_cast<const char*>(row_of_(row));
      const bool exists = from && bytes > 0;
      CopySome16(stage + row * S::kRowBytes + 16 * RowUnit(row, unit),
                 exists ? from + first * kBytes + 16 * unit : static_cast<const char*>(p_.x),
                 exists ? bytes : 0, plan_.aligned);
    }
  }
  __device__ __forceinline__ void LoadCodes(char* codes, int64_t tile, int i) const {
    const int64_t tile_bytes = p_.tile_bytes();
    const char* const from =
        reinterpret_cast<const char*>(p_.packed) + tile * tile_bytes + int64_t{i} * S::kCodeBytes;
    const int left = static_cast<int>(
        min(tile_bytes - int64_t{i} * S::kCodeBytes, static_cast<int64_t>(S::kCodeBytes)));
#pragma unroll
    for (int j = 0; j < (S::kCodeBytes + 511) / 512; ++j) {
      const int at = 16 * (32 * j + Lane());
      if (S::kCodeBytes % 512 && at >= S::kCodeBytes) break;
      CopySome16(codes + at, at < left ? from + at : from, at < left ? 16 : 0, plan_.aligned);
    }
  }
  __device__ __forceinline__ void LoadFactors(char* target, const Factors& factors, int bytes,
                                              int64_t tile, int i) const {
    const int first = i * kStageColumns / static_cast<int>(p_.group);
    const int groups = min(plan_.stage_groups, static_cast<int>(p_.groups) - first);
    const char* const from =
        static_cast<const char*>(factors.data) + (tile * p_.groups + first) * bytes;
    for (int at = 16 * Lane(); at < plan_.stage_groups * bytes; at += 512)
      CopySome16(target + at, at < groups * bytes ? from + at : from, at < groups * bytes ? 16 : 0,
                 plan_.aligned);
  }

  const QuantizedParams& p_;
  const QuantizedPlan& plan_;
  const int rows_, warp_;
  const int64_t first_tile_;
  const RowOf row_of_;
};

// x as B operands: four columns of a lane's row, in each of its parts.
template <class S>
struct RowsOfX {
  typename S::M::B at[S::kRowBlocks][S::kParts];

  // From the lane's four elements of T of row block `n`.
  __device__ __forceinline__ void Set(int n, const uint32_t* four) {
    if constexpr (S::kParts == 1) {
      at[n][0] = {{four[0], four[1]}};
    } else {
      uint32_t x[4] = {four[0], four[1], four[2], four[3]};
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) {
        // The upper half of an f32 is a bf16: no rounding, and so no number becomes infinite.
        at[n][part] = {{__byte_perm(x[0], x[1], 0x7632), __byte_perm(x[2], x[3], 0x7632)}};
#pragma unroll
        for (int i = 0; i < 4; ++i)
          x[i] = __float_as_uint(__uint_as_float(x[i]) - __uint_as_float(x[i] & 0xffff0000u));
      }
    }
  }
};

// A warp's sums: those of its tiles, those of the group at hand before they are scaled, and the
// sums of x of that group.
template <class S>
struct QuantizedSums {
  typename S::Fragment all[S::kTiles][S::kRowBlocks] = {}, group[S::kTiles][S::kRowBlocks] = {},
                       x[S::kRowBlocks] = {};
};

template <class S, class Stream>
class CodeProduct {
 public:
  using M = typename S::M;

  __device__ __forceinline__ CodeProduct(const QuantizedParams& p, const Stream& stream,
                                         int64_t first_tile)
      : p_(p),
        stream_(stream),
        first_tile_(first_tile),
        r_(static_cast<int>(threadIdx.x % 32) / 4),
        c_(static_cast<int>(threadIdx.x % 4)) {}

  // Adds the products of a stage: columns 128 i on.
  __device__ __forceinline__ void AddStage(char* stage, int i) {
    const int group = static_cast<int>(p_.group), first = i * kStageColumns;
    int at = first / group;
    if constexpr (S::kFine) {
      int left = group - first % group;  // columns of the group from here on
      const int first_group = at;
#pragma unroll 1
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          AddStep(stage, block, step);
          left -= 16;
          if (left > 0 && block * 2 + step < 2 * kBlocks - 1) continue;
          EndGroup(stage, at, at - first_group);
          left = group, ++at;
        }
      }
    } else if (group >= kStageColumns) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) AddBlock(stage, block);
      EndGroup(stage, at, 0);
    } else {
      const int blocks = group / static_cast<int>(kBlockColumns);  // 1 or 2
#pragma unroll 1
      for (int block = 0; block < kBlocks; block += blocks) {
        for (int j = 0; j < blocks; ++j) AddBlock(stage, block + j);
        EndGroup(stage, at + block / blocks, block / blocks);
      }
    }
  }

  const QuantizedSums<S>& sums() const { return sums_; }
  __device__ __forceinline__ const typename S::Fragment& Sums(int tile, int n) const {
    return sums_.all[tile][n];
  }

 private:
  static constexpr int kBlocks = kStageColumns / static_cast<int>(kBlockColumns);

  // sums += w's fragment times x
  __device__ __forceinline__ void Multiply(typename S::Fragment (&sums)[S::kRowBlocks],
                                           const typename M::A& a, const RowsOfX<S>& x) {
#pragma unroll
    for (int n = 0; n < S::kRowBlocks; ++n) {
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) M::MultiplyAdd(sums[n], a, x.at[n][part]);
    }
  }
  __device__ __forceinline__ void SumX(const RowsOfX<S>& x) {
    if (!p_.zeros.data) return;
    constexpr uint32_t kOnes = S::kType == DType::kF16 ? 0x3c003c00u : 0x3f803f80u;
    Multiply(sums_.x, {{kOnes, kOnes, kOnes, kOnes}}, x);
  }

  // 16 columns of a block.
  __device__ __forceinline__ void AddStep(char* stage, int block, int step) {
    constexpr int kUnitElements = 16 / static_cast<int>(sizeof(typename S::T));
    RowsOfX<S> x;
#pragma unroll
    for (int n = 0; n < S::kRowBlocks; ++n) {
      const int row = 8 * n + r_, column = 32 * block + 16 * step + 4 * c_;
      uint4 four = {0, 0, 0, 0};
      if (row < stream_.rows()) {
        const char* const from = stage + row * S::kRowBytes +
                                 16 * RowUnit(row, column / kUnitElements) +
                                 column % kUnitElements * static_cast<int>(sizeof(typename S::T));
        if constexpr (S::kParts == 1) {
          const uint2 two = *reinterpret_cast<const uint2*>(from);
          four.x = two.x, four.y = two.y;
        } else {
          four = *reinterpret_cast<const uint4*>(from);
        }
      }
      const uint32_t words[4] = {four.x, four.y, four.z, four.w};
      x.Set(n, words);
    }
    SumX(x);
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
      const char* const codes = stream_.CodesAt(stage, t) + block * S::kBlockBytes;
      uint32_t low[2], high[2];
      Decode<S::kFormat, S::kType>(LoadFour<S::kFormat>(codes, 2 * r_, step, c_), low);
      Decode<S::kFormat, S::kType>(LoadFour<S::kFormat>(codes, 2 * r_ + 1, step, c_), high);
      Multiply(sums_.group[t], {{low[0], high[0], low[1], high[1]}}, x);
    }
  }

  // 32 columns, eight of them a lane's.
  __device__ __forceinline__ void AddBlock(char* stage, int block) {
    RowsOfX<S> x[2];
#pragma unroll
    for (int n = 0; n < S::kRowBlocks; ++n) {
      const int row = 8 * n + r_;
      uint4 eight = {0, 0, 0, 0};
      if (row < stream_.rows())
        eight = *reinterpret_cast<const uint4*>(stage + row * S::kRowBytes +
                                                16 * RowUnit(row, 4 * block + c_));
      const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
      x[0].Set(n, words);
      x[1].Set(n, words + 2);
    }
    SumX(x[0]);
    SumX(x[1]);
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
      const uint2 words = *reinterpret_cast<const uint2*>(
          stream_.CodesAt(stage, t) + block * S::kBlockBytes + c_ * kLineBytes + 8 * r_);
      uint32_t low[2], high[2];
      Decode<S::kFormat, S::kType, 0>({words.x, 0}, low);
      Decode<S::kFormat, S::kType, 0>({words.y, 0}, high);
      Multiply(sums_.group[t], {{low[0], high[0], low[1], high[1]}}, x[0]);
      Decode<S::kFormat, S::kType, 2>({words.x, 0}, low);
      Decode<S::kFormat, S::kType, 2>({words.y, 0}, high);
      Multiply(sums_.group[t], {{low[0], high[0], low[1], high[1]}}, x[1]);
    }
  }

  // Scales the sums of a group, the stage's number `in_stage`.
  __device__ __forceinline__ void EndGroup(char* stage, int group, int in_stage) {
    const int groups = static_cast<int>(p_.groups);
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
      const int64_t tile = min(first_tile_ + t, p_.tiles - 1);
      const char* const scales = stream_.ScalesAt(stage, t, in_stage);
      const float2 scale = FactorsOf(p_.scales, scales, tile, group, groups, 2 * r_);
#pragma unroll
      for (int n = 0; n < S::kRowBlocks; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sums_.all[t][n][e] += (e < 2 ? scale.x : scale.y) * sums_.group[t][n][e];
          sums_.group[t][n][e] = 0.0f;
        }
      }
      if (!p_.zeros.data) continue;
      const char* const zeros = stream_.ZerosAt(stage, t, in_stage);
      float2 zero = FactorsOf(p_.zeros, zeros, tile, group, groups, 2 * r_);
      if (p_.points) zero = make_float2(-scale.x * zero.x, -scale.y * zero.y);
#pragma unroll
      for (int n = 0; n < S::kRowBlocks; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          sums_.all[t][n][e] += (e < 2 ? zero.x : zero.y) * sums_.x[n][e % 2];
      }
    }
#pragma unroll
    for (int n = 0; n < S::kRowBlocks; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums_.x[n][e] = 0.0f;
    }
  }

  const QuantizedParams& p_;
  const Stream& stream_;
  const int64_t first_tile_;
  const int r_, c_;
  QuantizedSums<S> sums_;
};

}  // namespace intarsia::matmul
