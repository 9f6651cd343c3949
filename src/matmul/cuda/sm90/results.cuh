// What a consumer does with the sums of a task: bias, gating, and the way to memory. A consumer is
// a warpgroup; its sums are wgmma's results, of which rows are columns of w and columns rows of x.
#pragma once
#include "src/activation/gating.cuh"
#include "src/core/cuda/ptx.cuh"
#include "src/core/cuda/swizzle.cuh"
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

// kGated: each consumer has its gates and then their ups, or both in turn, as they lie in w.
template <class S, class T, bool kGated>
class Results {
 public:
  static constexpr int kStepRows = S::Tiles::kStepRows;
  // Of each block of 64 columns: its products with kSteps steps of rows.
  template <int kSteps>
  using Sums = float[S::kBlocks][kSteps * kStepRows / 2];

  // `number`: the consumer's.
  __device__ __forceinline__ Results(const GroupedParams& p, Shared<S>& shared, int number)
      : p_(p), shared_(shared), number_(number) {}

  template <int kSteps>
  __device__ __forceinline__ void Finish(const Task<S>& task, Sums<kSteps>& sums) const {
    if (p_.rows.data) ClearMissing<kSteps>(task, sums);
    if (p_.bias) AddBias<kSteps>(task, sums);
    if constexpr (kGated)
      StoreGated<kSteps>(task.unit, sums);
    else if (p_.out_dtype == DType::kF32)
      StoreFloats<kSteps>(task.unit, sums);
    else
      Store<kSteps>(task.unit, sums);
  }

  // Zeros in rows of no group, by all consumers, 16 bytes a thread.
  __device__ __forceinline__ void ClearRows(const Unit& unit) const {
    if (p_.await == Await::kRows) cuda::AwaitPrevious();  // which may read what lies there
    constexpr int kResults = kGated ? S::kColumns / 2 : S::kColumns;
    const int each = p_.out_dtype == DType::kF32 ? 4 : 8, parts = kResults / each;
    const int64_t n = p_.columns();
    for (int i = static_cast<int>(threadIdx.x) - cuda::kWarpgroupThreads; i < unit.rows * parts;
         i += S::kConsumers * cuda::kWarpgroupThreads) {
      const int column = unit.column_tile * kResults + i % parts * each;
      const int64_t row = unit.RowOfNoGroup(unit.row + i / parts);
      if (column < n) static_cast<uint4*>(p_.out)[(row * n + column) / each] = {};
    }
  }

 private:
  __device__ __forceinline__ int Thread() const {
    return static_cast<int>(threadIdx.x % cuda::kWarpgroupThreads);
  }
  // Which of 64 columns a thread's sums are of: the first one, and how far behind it the second is.
  static constexpr int kToSecondRow = S::kPairs ? 1 : 8;
  __device__ __forceinline__ int FirstRow() const {
    const int row = cuda::AccumulatorRow(Thread(), 0);
    return S::kPairs ? row + row % 8 : row;
  }
  // The consumer's first column of a tile, among all.
  __device__ __forceinline__ int FirstColumn(const Unit& unit) const {
    return unit.column_tile * S::kColumns + number_ * S::kBlocks * 64;
  }

  // Rows that take no row of x are 0, whatever the weights are: zeros times infinity are not.
  template <int kSteps>
  __device__ __forceinline__ void ClearMissing(const Task<S>& task, Sums<kSteps>& sums) const {
#pragma unroll
    for (int i = 0; i < kSteps * kStepRows / 2; ++i) {
      if (task.taken[cuda::AccumulatorColumn(Thread(), i)] >= 0) continue;
#pragma unroll
      for (int block = 0; block < S::kBlocks; ++block) sums[block][i] = 0.0f;
    }
  }

  template <int kSteps>
  __device__ __forceinline__ void AddBias(const Task<S>& task, Sums<kSteps>& sums) const {
    const T* const bias = static_cast<const T*>(p_.bias) + task.unit.group * p_.n;
    const int first = FirstRow();
    float of_column[S::kBlocks][2];
#pragma unroll
    for (int i = 0; i < 2 * S::kBlocks; ++i) {
      const int column = ColumnOf(task.unit, first + i / 2 * 64 + i % 2 * kToSecondRow);
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

  // Steps of rows from `first` on to shared memory, where columns of a row follow each other.
  static constexpr int kStagedSteps = S::kStagedSteps, kStagedRows = kStagedSteps * kStepRows;
  using Rows = cuda::SwizzledRows<64 * S::kBlocks * 2>;
  template <int kSteps>
  __device__ __forceinline__ char* StageRows(const Sums<kSteps>& sums, int first) const {
    static_assert(kSteps % kStagedSteps == 0);
    const int warp = Thread() / 32, lane = Thread() % 32;
    char* const staged = shared_.staged[number_][first / kStagedSteps % 2];
#pragma unroll
    for (int step = 0; step < kStagedSteps; ++step)
#pragma unroll
      for (int block = 0; block < S::kBlocks; ++block) {
        const float* const of_step = sums[block] + (first + step) * 8;
        const uint32_t pairs[4] = {
            ToPair<T>(of_step[0], of_step[1]), ToPair<T>(of_step[2], of_step[3]),
            ToPair<T>(of_step[4], of_step[5]), ToPair<T>(of_step[6], of_step[7])};
        const int row = step * kStepRows + lane / 16 * 8 + lane % 8;
        const int at = block * 8 + warp * 2 + lane / 8 % 2;
        cuda::StMatrix4Transposed(cuda::SharedAddress(staged) + Rows::Offset(row, at), pairs);
      }
    cuda::BarrierSync(1 + number_, cuda::kWarpgroupThreads);
    return staged;
  }

  // Eight neighboring columns of a row. With kPairs even columns of 16 lie in front of odd ones.
  static __device__ __forceinline__ uint4 Staged(const char* staged, int row, int unit) {
    if constexpr (!S::kPairs)
      return *reinterpret_cast<const uint4*>(staged + Rows::Offset(row, unit));
    const auto half = [&](int odd) {
      const char* const of = staged + Rows::Offset(row, unit / 2 * 2 + odd);
      return *reinterpret_cast<const uint2*>(of + unit % 2 * 8);
    };
    const uint2 even = half(0), odd = half(1);
    return {__byte_perm(even.x, odd.x, 0x5410), __byte_perm(even.x, odd.x, 0x7632),
            __byte_perm(even.y, odd.y, 0x5410), __byte_perm(even.y, odd.y, 0x7632)};
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
    for (int step = 0; step < kSteps; step += kStagedSteps) {
      const char* const staged = StageRows<kSteps>(sums, step);
      const int of_tile = step * kStepRows + row;
      if (row < kStagedRows && of_tile < unit.rows && column < n) {
        const int first = in_turn ? 2 * at : at, second = in_turn ? 2 * at + 1 : at + kUnits;
        out[of_tile * (n / 8)] = Gated(Staged(staged, row, first), Staged(staged, row, second));
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
    for (int step = 0; step < kSteps; step += kStagedSteps) {
      const char* const staged = StageRows<kSteps>(sums, step);
#pragma unroll
      for (int pass = 0; pass < kStagedRows / kPassRows; ++pass) {
        const int row = pass * kPassRows + row_of_pass, of_tile = step * kStepRows + row;
        if (of_tile < unit.rows && has_column)
          *reinterpret_cast<uint4*>(out + (step * kStepRows + pass * kPassRows) * p_.n) =
              Staged(staged, row, unit_of_row);
      }
    }
  }

  template <int kSteps>
  __device__ __forceinline__ void StoreFloats(const Unit& unit, const Sums<kSteps>& sums) const {
    const int first = FirstColumn(unit) + FirstRow();
    float* const out = static_cast<float*>(p_.out) + unit.row * p_.n + first;
#pragma unroll
    for (int i = 0; i < kSteps * kStepRows / 2; ++i) {
      const int row = cuda::AccumulatorColumn(Thread(), i);
#pragma unroll
      for (int block = 0; block < S::kBlocks; ++block) {
        const int column = block * 64 + i / 2 % 2 * kToSecondRow;
        if (row < unit.rows && first + column < p_.n) out[row * p_.n + column] = sums[block][i];
      }
    }
  }

  const GroupedParams& p_;
  Shared<S>& shared_;
  const int number_;
};

}  // namespace intarsia::matmul::sm90
