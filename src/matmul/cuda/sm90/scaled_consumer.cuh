// A consumer: a warpgroup that computes some rows of each tile of its CTA.
#pragma once
#include "src/core/cuda/cluster.cuh"
#include "src/core/cuda/ptx.cuh"
#include "src/core/cuda/swizzle.cuh"
#include "src/core/cuda/tma.cuh"
#include "src/core/cuda/wgmma_e4m3.cuh"
#include "src/core/cuda/wgmma_s8.cuh"
#include "src/matmul/cuda/rows.cuh"
#include "src/matmul/cuda/scaled_choice.h"
#include "src/matmul/cuda/scaled_factors.cuh"
#include "src/matmul/cuda/sm90/scaled_shape.h"

namespace intarsia::matmul::sm90 {

template <class S>
struct alignas(cuda::kSwizzleAtomBytes) ScaledShared {
  alignas(cuda::kSwizzleAtomBytes) char x[S::kStages][S::kBytesX];
  alignas(cuda::kSwizzleAtomBytes) char w[S::kStages][S::kBytesW];
  alignas(cuda::kSwizzleAtomBytes) char staged[S::kConsumers][S::kStagedBytes];
  cuda::Barrier full[S::kStages], empty[S::kStages];
};

// What a CTA computes: its tiles, and of each sum blocks begin to end.
template <class S>
struct ScaledWork {
  ScaledTiles tiles;
  int64_t first, stride;
  int begin, end;

  __device__ __forceinline__ ScaledWork(const ScaledParams& p, int splits)
      : tiles(TilesOf<S>(p)), first(blockIdx.x / splits), stride(gridDim.x / splits) {
    const int blocks = static_cast<int>(p.blocks()), rank = static_cast<int>(blockIdx.x) % splits;
    begin = blocks * rank / splits;
    end = blocks * (rank + 1) / splits;
  }
  // Calls work(row, column) with the first ones of each tile.
  template <class Work>
  __device__ __forceinline__ void ForEachTile(Work work) const {
    for (int64_t index = first; index < tiles.count(); index += stride) {
      const ScaledTiles::Place at = tiles.At(index);
      work(static_cast<int>(at.row_tile) * S::kRows,
           static_cast<int>(at.column_tile) * S::kColumns);
    }
  }
};

// kScaled: x's scales multiply sums of blocks, and so do those of w's blocks. Otherwise no scale
// differs from block to block, and all of them multiply the whole sum.
template <class S, DType kType, bool kScaled>
class ScaledConsumer {
 public:
  __device__ __forceinline__ ScaledConsumer(const ScaledParams& p, const ScaledWork<S>& work,
                                            ScaledShared<S>& shared, int number, int splits)
      : p_(p), work_(work), shared_(shared), number_(number), splits_(splits) {}

  // All tiles of the CTA.
  __device__ __forceinline__ void Run() {
    work_.ForEachTile([&](int row, int column) {
      first_row_ = row + number_ * 64 * S::kHalves;
      first_column_ = column;
      if (splits_ == 1) LoadScales();
      Sums<float> sums;
      if constexpr (kExact) {
        Sums<int32_t> exact = {};
        MultiplyBlocks(exact);
#pragma unroll
        for (int i = 0; i < S::kHalves * kCount; ++i)
          sums[i / kCount][i % kCount] = static_cast<float>(exact[i / kCount][i % kCount]);
      } else {
        AddBlocks(sums);
      }
      if (splits_ > 1) {
        FinishCluster(sums[0]);
        return;
      }
      Scale(sums);
#pragma unroll
      for (int half = 0; half < S::kHalves; ++half) Store(half, sums[half]);
    });
  }

 private:
  static constexpr bool kExact = kType == DType::kI8 && !kScaled;
  static constexpr int kCount = S::kColumns / 2;  // of results of 64 rows, a thread's
  template <class T>
  using Sums = T[S::kHalves][kCount];
  using Part = std::conditional_t<kType == DType::kI8, int32_t, float>;

  __device__ __forceinline__ static int Thread() {
    return static_cast<int>(threadIdx.x % cuda::kWarpgroupThreads);
  }
  // A thread's row i in 64; the last one where there are fewer: its results go nowhere.
  __device__ __forceinline__ int RowOf(int half, int i) const {
    const int row = first_row_ + 64 * half + cuda::AccumulatorRow(Thread(), 2 * i);
    return min(row, static_cast<int>(p_.m) - 1);
  }

  // Scales of one block after another for a thread's rows, which are those of four lanes. So each
  // lane has those of every fourth block, and they are asked for four blocks ahead.
  class Factors {
   public:
    __device__ __forceinline__ explicit Factors(const ScaledConsumer& c)
        : lane_(Thread() % 4),
          blocks_(static_cast<int>(c.p_.blocks())),
          w_(c.p_.w_scales.block
                 ? c.p_.w_scales.data + c.first_column_ / kScaleBlock * c.p_.w_scales.row
                 : nullptr),
          x_step_(c.p_.x_scales.block) {
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i)
        x_[i] = c.p_.x_scales.data + c.RowOf(i / 2, i % 2) * c.p_.x_scales.row;
    }
    // Before the first of blocks b ... b + 3.
    __device__ __forceinline__ void Load(int b) {
      const int of_lane = min(b + lane_, blocks_ - 1);
      of_w_ = w_ ? w_[of_lane] : 1.0f;
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) of_x_[i] = x_[i][of_lane * x_step_];
    }
    // At it, and then Load may fetch those of the next four.
    __device__ __forceinline__ void Take() {
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) now_[i] = of_w_ * of_x_[i];
    }
    // Of block b + i.
    __device__ __forceinline__ float At(int i, int half, int row) const {
      return __shfl_sync(0xffffffffu, now_[2 * half + row], i, 4);
    }

   private:
    static constexpr int kRowsEach = 2 * S::kHalves;
    const int lane_, blocks_;
    const float *w_, *x_[kRowsEach];
    const int64_t x_step_;
    float of_w_, of_x_[kRowsEach], now_[kRowsEach];
  };

  // sums = those of all blocks, each made by itself.
  __device__ __forceinline__ void AddBlocks(Sums<float>& sums) {
#pragma unroll
    for (int i = 0; i < S::kHalves * kCount; ++i) sums[i / kCount][i % kCount] = 0.0f;
    std::conditional_t<kScaled, Factors, ScaledConsumer&> scales(*this);  // a reference: unused
    if constexpr (kScaled) scales.Load(work_.begin);
#pragma unroll 1
    for (int b = work_.begin; b < work_.end; ++b, place_.Next()) {
      [[maybe_unused]] float factors[S::kHalves][2];
      if constexpr (kScaled) {
        const int i = (b - work_.begin) % 4;
        if (i == 0) {
          scales.Take();
          scales.Load(b + 4);
        }
#pragma unroll
        for (int row = 0; row < 2 * S::kHalves; ++row)
          factors[row / 2][row % 2] = scales.At(i, row / 2, row % 2);
      }
      shared_.full[place_.index].Wait(place_.parity);
#pragma unroll
      for (int half = 0; half < S::kHalves; ++half) {
        Part part[kCount];
        cuda::WgmmaFence();
        Multiply<true>(half, part);
        cuda::WgmmaCommit();
        cuda::WgmmaWait<0>();
        if (half == S::kHalves - 1) Release(place_.index);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          const auto sum = static_cast<float>(part[i]);
          if constexpr (kScaled)
            sums[half][i] += factors[half][i / 2 % 2] * sum;
          else
            sums[half][i] += sum;
        }
      }
    }
  }

  // sums += the product of all blocks.
  __device__ __forceinline__ void MultiplyBlocks(Sums<int32_t>& sums) {
    int before = -1;
#pragma unroll 1
    for (int b = work_.begin; b < work_.end; ++b, place_.Next()) {
      shared_.full[place_.index].Wait(place_.parity);
      cuda::WgmmaFence();
#pragma unroll
      for (int half = 0; half < S::kHalves; ++half) Multiply<false>(half, sums[half]);
      cuda::WgmmaCommit();
      cuda::WgmmaWait<1>();
      if (before >= 0) Release(before);
      before = place_.index;
    }
    cuda::WgmmaWait<0>();
    if (before >= 0) Release(before);
  }

  __device__ __forceinline__ void Release(int index) {
    if (Thread() == 0) shared_.empty[index].Arrive();
  }

  // part (+)= the product of the block at place_, in flight afterwards.
  template <bool kReplace, class T>
  __device__ __forceinline__ void Multiply(int half, T (&part)[kCount]) const {
    const uint32_t x = cuda::SharedAddress(shared_.x[place_.index]) +
                       (number_ * S::kHalves + half) * 64 * cuda::kPanelRowBytes;
    const uint32_t w = cuda::SharedAddress(shared_.w[place_.index]);
#pragma unroll
    for (int step = 0; step < kScaleBlock / 32; ++step) {
      const uint32_t at = cuda::ColumnStepBytes(0, step);
      const uint64_t of_x = cuda::ColumnsSummed(x + at), of_w = cuda::ColumnsSummed(w + at);
      if (kReplace && step == 0)
        MultiplyStep<false>(part, of_x, of_w);
      else
        MultiplyStep<true>(part, of_x, of_w);
    }
  }
  template <bool kAdd, class T>
  __device__ __forceinline__ static void MultiplyStep(T (&part)[kCount], uint64_t x, uint64_t w) {
    if constexpr (kType == DType::kI8)
      cuda::WgmmaS8<kAdd>(part, x, w);
    else
      cuda::WgmmaE4M3<S::kColumns>::template Shared<__nv_fp8_e4m3, kAdd>(part, x, w);
  }

  // What the whole sum in a row is multiplied by: kScaled, x's scales were those of blocks.
  __device__ __forceinline__ float OfRow(int row) const {
    return kScaled ? 1.0f : p_.x_scales.At(row, 0);
  }

  // Sums of all CTAs of the cluster, in their order, meet where x was, of which nothing is left.
  // Each CTA finishes every splits-th eight columns.
  __device__ __forceinline__ void FinishCluster(const float (&sums)[kCount]) const {
    if constexpr (S::kHalves == 1 && S::kConsumers == 1) {
      static_assert(sizeof shared_.x >= kCount * cuda::kWarpgroupThreads * sizeof(float));
      auto* const all = reinterpret_cast<float*>(shared_.x) + Thread();
      cuda::BarrierSync(1, cuda::kWarpgroupThreads);
#pragma unroll
      for (int i = 0; i < kCount; ++i) all[i * cuda::kWarpgroupThreads] = sums[i];
      cuda::ClusterSync();
      const int n = static_cast<int>(p_.n);
#pragma unroll 2
      for (int i = cuda::ClusterRank() * 4; i < kCount; i += splits_ * 4) {
        float of_all[4] = {};
        for (int rank = 0; rank < splits_; ++rank) {
#pragma unroll
          for (int e = 0; e < 4; ++e)
            of_all[e] += cuda::LoadFromBlock(all + (i + e) * cuda::kWarpgroupThreads, rank);
        }
        const int column = first_column_ + cuda::AccumulatorColumn(Thread(), i);
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          const int row = first_row_ + cuda::AccumulatorRow(Thread(), i + e);
          if (row >= p_.m || column >= n) continue;  // n is a multiple of 8 (Supports)
          StorePair(
              p_.out, p_.out_dtype, int64_t{row} * n + column, n - column,
              of_all[e] * (OfRow(row) * OfAllBlocks(p_.w_scales, column)) + BiasAt(p_, column),
              of_all[e + 1] * (OfRow(row) * OfAllBlocks(p_.w_scales, column + 1)) +
                  BiasAt(p_, column + 1));
        }
      }
    }
  }

  // Asks for what Scale needs: a thread for one column, and for its rows.
  __device__ __forceinline__ void LoadScales() {
    const int column = min(first_column_ + Thread(), static_cast<int>(p_.n) - 1);
    of_column_ = {OfAllBlocks(p_.w_scales, column), BiasAt(p_, column)};
#pragma unroll
    for (int i = 0; i < 2 * S::kHalves; ++i) of_rows_[i] = OfRow(RowOf(i / 2, i % 2));
  }
  // Scales that all blocks have, and the bias.
  __device__ __forceinline__ void Scale(Sums<float>& sums) const {
    auto* const columns = reinterpret_cast<float2*>(shared_.staged[number_]);
    cuda::BarrierSync(1 + number_, cuda::kWarpgroupThreads);  // the last tile's rows are read
    columns[Thread()] = of_column_;
    cuda::BarrierSync(1 + number_, cuda::kWarpgroupThreads);
#pragma unroll
    for (int i = 0; i < kCount; i += i % 2 == 0 ? 1 : 3) {  // each column of a thread once
      const float2 of_column = columns[cuda::AccumulatorColumn(Thread(), i)];
#pragma unroll
      for (int row = 0; row < 2 * S::kHalves; ++row) {
        float& sum = sums[row / 2][i + row % 2 * 2];
        sum = sum * (of_rows_[row] * of_column.x) + of_column.y;
      }
    }
    cuda::BarrierSync(1 + number_, cuda::kWarpgroupThreads);
  }

  __device__ __forceinline__ void Store(int half, const float (&sums)[kCount]) const {
    if (p_.out_dtype == DType::kF32)
      StoreFloats(half, sums);
    else if (p_.out_dtype == DType::kF16)
      StoreRows<__half>(half, sums);
    else
      StoreRows<__nv_bfloat16>(half, sums);
  }

  __device__ __forceinline__ void StoreFloats(int half, const float (&sums)[kCount]) const {
    const int n = static_cast<int>(p_.n);
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const int row = first_row_ + 64 * half + cuda::AccumulatorRow(Thread(), i);
      const int column = first_column_ + cuda::AccumulatorColumn(Thread(), i);
      if (row < p_.m)
        StorePair(p_.out, DType::kF32, int64_t{row} * n + column, n - column, sums[i], sums[i + 1]);
    }
  }

  // A warp's 16 rows by way of shared memory, where columns of a row follow each other.
  template <class T>
  __device__ __forceinline__ void StoreRows(int half, const float (&sums)[kCount]) const {
    using Rows = cuda::SwizzledRows<S::kColumns * 2>;
    const int warp = Thread() / 32, lane = Thread() % 32;
    char* const staged = shared_.staged[number_] + warp * 16 * Rows::kRowBytes;
    __syncwarp();  // what lay there is read
#pragma unroll
    for (int unit = 0; unit < Rows::kUnits; unit += 2) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto pair = cuda::FromFloats<T>(
            cuda::Pack<float, 2>{{sums[4 * unit + 2 * i], sums[4 * unit + 2 * i + 1]}});
        memcpy(&pairs[i], &pair, sizeof pair);
      }
      cuda::StMatrix4(cuda::SharedAddress(staged) + Rows::Offset(lane % 16, unit + lane / 16),
                      pairs);
    }
    __syncwarp();
    const int first_row = first_row_ + 64 * half + 16 * warp, unit = lane % Rows::kUnits;
    const int column = first_column_ + unit * 8;
#pragma unroll
    for (int pass = 0; pass < 8; ++pass) {
      const int row = 2 * pass + lane / Rows::kUnits;
      if (first_row + row < p_.m && column < p_.n)
        *reinterpret_cast<uint4*>(static_cast<T*>(p_.out) + (int64_t{first_row} + row) * p_.n +
                                  column) =
            *reinterpret_cast<const uint4*>(staged + Rows::Offset(row, unit));
    }
  }

  const ScaledParams& p_;
  const ScaledWork<S>& work_;
  ScaledShared<S>& shared_;
  const int number_, splits_;
  int first_row_ = 0, first_column_ = 0;  // of a tile, the consumer's
  float2 of_column_;
  float of_rows_[2 * S::kHalves];
  cuda::RingPlace<S::kStages> place_;
};

}  // namespace intarsia::matmul::sm90
