// A consumer: a warpgroup that computes half of the columns of each task of its CTA.
#pragma once
#include <utility>

#include "src/activation/gating.cuh"
#include "src/core/cuda/ptx.cuh"
#include "src/core/cuda/swizzle.cuh"
#include "src/core/cuda/wgmma.cuh"
#include "src/matmul/cuda/rows.cuh"
#include "src/matmul/cuda/sm90/shared.cuh"

namespace intarsia::matmul::sm90 {

// Neighbors rounded to a pair of T.
template <class T>
__device__ __forceinline__ uint32_t ToPair(float low, float high) {
  const auto pair = cuda::FromFloats<T>(cuda::Pack<float, 2>{{low, high}});
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

template <class S, class T, bool kTransposed, bool kGated>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const GroupedParams& p, Shared<S>& shared, int number)
      : p_(p), shared_(shared), number_(number) {}

  // All tasks of the CTA.
  __device__ __forceinline__ void Run() {
    ForEachTask(shared_, [&](const Task<S>& task) {
      if (task.kind == Task<S>::kProduct)
        RunSteps(task, std::make_integer_sequence<int, S::kSteps>());
      else
        ClearRows(task.unit);
    });
  }

 private:
  static constexpr int kStepRows = S::Tiles::kStepRows;
  // From a block of 64 columns to the next: rows of a panel, or a panel.
  static constexpr int kBlockBytes = (kTransposed ? 64 : S::kDepth) * cuda::kPanelRowBytes;
  // Of one block of 64 columns: its products with kSteps steps of rows.
  template <int kSteps>
  using Sums = float[S::kBlocks][kSteps * kStepRows / 2];

  // wgmma's N is a constant: a loop for each number of steps.
  template <int... kSteps>
  __device__ __forceinline__ void RunSteps(const Task<S>& task,
                                           std::integer_sequence<int, kSteps...>) {
    const int steps = S::Tiles::Steps(task.unit.rows);
    ((steps == kSteps + 1 ? Compute<kSteps + 1>(task) : void()), ...);
  }

  template <int kSteps>
  __device__ __forceinline__ void Compute(const Task<S>& task) {
    Sums<kSteps> sums;
#pragma unroll
    for (auto& of_block : sums) {
#pragma unroll
      for (float& sum : of_block) sum = 0.0f;
    }
    const int stages = StagesOf<S>(p_);
    auto before = place_;
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
      shared_.stages.full[place_.index].Wait(place_.parity);
      Multiply<kSteps>(sums);
      cuda::WgmmaWait<1>();
      if (i > 0) shared_.stages.Release(before.index);
      before = place_;
      place_.Next();
    }
    cuda::WgmmaWait<0>();
    shared_.stages.Release(before.index);
    if (p_.bias) AddBias<kSteps>(task, sums);
    if constexpr (kGated)
      StoreGated<kSteps>(task.unit, sums);
    else if (p_.out_dtype == DType::kF32)
      StoreFloats<kSteps>(task.unit, sums);
    else
      Store<kSteps>(task.unit, sums);
  }

  // The stage at place_, in flight afterwards.
  template <int kSteps>
  __device__ __forceinline__ void Multiply(Sums<kSteps>& sums) const {
    const uint32_t w =
        cuda::SharedAddress(shared_.w[place_.index]) + number_ * S::kBlocks * kBlockBytes;
    const uint32_t x = cuda::SharedAddress(shared_.x[place_.index]);
    cuda::WgmmaFence();
#pragma unroll
    for (int step = 0; step < S::kDepth / cuda::kWgmmaStep; ++step) {
      const uint64_t rows = cuda::ColumnsSummed(x + cuda::ColumnStepBytes(S::kRows, step));
#pragma unroll
      for (int block = 0; block < S::kBlocks; ++block) {
        const uint32_t panel = w + block * kBlockBytes;
        const uint64_t columns =
            kTransposed ? cuda::ColumnsSummed(panel + cuda::ColumnStepBytes(S::kColumns, step))
                        : cuda::RowsSummed(panel + cuda::RowStepBytes(step), S::kDepth);
        cuda::Wgmma<kSteps * kStepRows>::template Shared<T, true, !kTransposed>(sums[block],
                                                                                columns, rows);
      }
    }
    cuda::WgmmaCommit();
  }

  __device__ __forceinline__ int Thread() const {
    return static_cast<int>(threadIdx.x % cuda::kWarpgroupThreads);
  }
  // The consumer's first column of a tile, among all.
  __device__ __forceinline__ int FirstColumn(const Unit& unit) const {
    return unit.column_tile * S::kColumns + number_ * S::kBlocks * 64;
  }

  template <int kSteps>
  __device__ __forceinline__ void AddBias(const Task<S>& task, Sums<kSteps>& sums) const {
    const T* const bias = static_cast<const T*>(p_.bias) + task.unit.group * p_.n;
    const int first = cuda::AccumulatorRow(Thread(), 0);
    float of_column[S::kBlocks][2];
#pragma unroll
    for (int i = 0; i < 2 * S::kBlocks; ++i) {
      const int column = ColumnOf(task.unit, first + i / 2 * 64 + i % 2 * 8);
      of_column[i / 2][i % 2] = column < p_.n ? cuda::ToFloat(bias[column]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kSteps * kStepRows / 2; ++i) {
      const bool exists = !p_.rows.data || task.taken[cuda::AccumulatorColumn(Thread(), i)] >= 0;
#pragma unroll
      for (int block = 0; block < S::kBlocks; ++block)
        sums[block][i] += exists ? of_column[block][i / 2 % 2] : 0.0f;
    }
  }

  // The column of w, of n, that row i of the consumer's part of a tile is; n and more: none.
  __device__ __forceinline__ int ColumnOf(const Unit& unit, int i) const {
    if (!kGated || p_.gating.in_turn) return FirstColumn(unit) + i;
    constexpr int kGates = 32 * S::kBlocks;
    const int n = static_cast<int>(p_.columns());
    const int result = FirstColumn(unit) / 2 + i % kGates;
    return result < n ? result + i / kGates * n : 2 * n;
  }

  // A step of rows to shared memory, where columns of a row follow each other.
  using Rows = cuda::SwizzledRows<64 * S::kBlocks * 2>;
  template <int kSteps>
  __device__ __forceinline__ char* StageRows(const Sums<kSteps>& sums, int step) const {
    const int warp = Thread() / 32, lane = Thread() % 32;
    char* const staged = shared_.staged[number_][step % 2];
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) {
      const float* const of_step = sums[block] + step * 8;
      const uint32_t pairs[4] = {
          ToPair<T>(of_step[0], of_step[1]), ToPair<T>(of_step[2], of_step[3]),
          ToPair<T>(of_step[4], of_step[5]), ToPair<T>(of_step[6], of_step[7])};
      const int row = lane / 16 * 8 + lane % 8, at = block * 8 + warp * 2 + lane / 8 % 2;
      cuda::StMatrix4Transposed(cuda::SharedAddress(staged) + Rows::Offset(row, at), pairs);
    }
    cuda::BarrierSync(1 + number_, cuda::kWarpgroupThreads);
    return staged;
  }

  // Eight results of eight gates and as many ups, or of pairs in turn.
  __device__ __forceinline__ uint4 Gated(const uint4& first, const uint4& second) const {
    cuda::Pack<T, 8> x, y, results;
    memcpy(&x, &first, 16);
    memcpy(&y, &second, 16);
    const bool in_turn = p_.gating.in_turn;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const cuda::Pack<T, 8>& of_pair = i < 4 ? x : y;
      const T gate = in_turn ? of_pair.at[i % 4 * 2] : x.at[i];
      const T up = in_turn ? of_pair.at[i % 4 * 2 + 1] : y.at[i];
      results.at[i] =
          cuda::FromFloat<T>(cuda::Gate<T>(p_.gating, cuda::ToFloat(gate), cuda::ToFloat(up)));
    }
    uint4 bits;
    memcpy(&bits, &results, 16);
    return bits;
  }

  // Gates and ups are rounded to T before they meet, as the contract of `gating` says.
  template <int kSteps>
  __device__ __forceinline__ void StoreGated(const Unit& unit, const Sums<kSteps>& sums) const {
    constexpr int kUnits = Rows::kUnits / 2;  // of results, 8 each
    const int n = static_cast<int>(p_.columns()), row = Thread() / kUnits, at = Thread() % kUnits;
    const int column = FirstColumn(unit) / 2 + at * 8;
    const bool in_turn = p_.gating.in_turn;
    uint4* const out =
        reinterpret_cast<uint4*>(static_cast<T*>(p_.out) + int64_t{unit.row} * n + column);
    cuda::BarrierSync(1 + number_, cuda::kWarpgroupThreads);  // the last task's rows are read
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const char* const staged = StageRows<kSteps>(sums, step);
      const int of_tile = step * kStepRows + row;
      if (row < kStepRows && of_tile < unit.rows && column < n) {
        const int first = in_turn ? 2 * at : at, second = in_turn ? 2 * at + 1 : at + kUnits;
        out[of_tile * (n / 8)] =
            Gated(*reinterpret_cast<const uint4*>(staged + Rows::Offset(row, first)),
                  *reinterpret_cast<const uint4*>(staged + Rows::Offset(row, second)));
      }
      __syncwarp();  // for the barrier ahead, which wants whole warps
    }
  }

  // Rows of results by way of shared memory, where they are transposed: a step at a time.
  template <int kSteps>
  __device__ __forceinline__ void Store(const Unit& unit, const Sums<kSteps>& sums) const {
    constexpr int kPassRows = cuda::kWarpgroupThreads / Rows::kUnits;
    const int thread = Thread();
    const int n = static_cast<int>(p_.n), first_column = FirstColumn(unit);
    const int unit_of_row = thread % Rows::kUnits, row_of_pass = thread / Rows::kUnits;
    const bool has_column = first_column + unit_of_row * 8 < n;
    T* const out = static_cast<T*>(p_.out) + (int64_t{unit.row} + row_of_pass) * p_.n +
                   first_column + unit_of_row * 8;
    cuda::BarrierSync(1 + number_, cuda::kWarpgroupThreads);  // the last task's rows are read
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const char* const staged = StageRows<kSteps>(sums, step);
#pragma unroll
      for (int pass = 0; pass < kStepRows / kPassRows; ++pass) {
        const int row = pass * kPassRows + row_of_pass, of_tile = step * kStepRows + row;
        if (of_tile < unit.rows && has_column)
          *reinterpret_cast<uint4*>(out + (step * kStepRows + pass * kPassRows) * p_.n) =
              *reinterpret_cast<const uint4*>(staged + Rows::Offset(row, unit_of_row));
      }
    }
  }

  template <int kSteps>
  __device__ __forceinline__ void StoreFloats(const Unit& unit, const Sums<kSteps>& sums) const {
    const int first = FirstColumn(unit) + cuda::AccumulatorRow(Thread(), 0);
    float* const out = static_cast<float*>(p_.out) + unit.row * p_.n + first;
#pragma unroll
    for (int i = 0; i < kSteps * kStepRows / 2; ++i) {
      const int row = cuda::AccumulatorColumn(Thread(), i);
#pragma unroll
      for (int block = 0; block < S::kBlocks; ++block) {
        const int column = block * 64 + i / 2 % 2 * 8;
        if (row < unit.rows && first + column < p_.n) out[row * p_.n + column] = sums[block][i];
      }
    }
  }

  // Zeros in rows of no group, by all consumers, 16 bytes a thread.
  __device__ __forceinline__ void ClearRows(const Unit& unit) const {
    if (p_.await == Await::kRows) cuda::AwaitPrevious();  // which may read what lies there
    constexpr int kResults = kGated ? S::kColumns / 2 : S::kColumns;
    const int each = p_.out_dtype == DType::kF32 ? 4 : 8, parts = kResults / each;
    const int64_t n = p_.columns();
    for (int i = static_cast<int>(threadIdx.x) - cuda::kWarpgroupThreads; i < unit.rows * parts;
         i += kConsumers * cuda::kWarpgroupThreads) {
      const int column = unit.column_tile * kResults + i % parts * each;
      const int64_t row = unit.RowOfNoGroup(unit.row + i / parts);
      if (column < n) static_cast<uint4*>(p_.out)[(row * n + column) / each] = {};
    }
  }

  const GroupedParams& p_;
  Shared<S>& shared_;
  const int number_;
  cuda::RingPlace<S::kStages> place_;
};

}  // namespace intarsia::matmul::sm90
