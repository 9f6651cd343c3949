// What CTAs of resident.cuh have in shared memory: rows of x, and rings of codes and factors.
#pragma once
#include "src/core/cuda/mma.cuh"
#include "src/core/cuda/vec.cuh"
#include "src/matmul/cuda/codes.cuh"
#include "src/matmul/cuda/quantized_plan.h"

namespace intarsia::matmul::sm90 {

// kWide: a group ends with a piece, where it may otherwise end with each block of it.
template <DType kX, Format kCodes, bool kWideGroups, int kRowsOfX>
struct ResidentConfig {
  using T = cuda::DeviceT<kX>;
  static constexpr DType kType = kX;
  using M = cuda::Mma<kX>;
  static constexpr Format kFormat = kCodes;
  static constexpr int kRows = kRowsOfX, kRowBlocks = kRows / 8;
  static constexpr int kBits = static_cast<int>(BitsOf(kFormat));
  static constexpr bool kSpread = kBits == 4;
  static constexpr int kBlocks = kStageColumns / static_cast<int>(kBlockColumns);  // of a piece
  static constexpr int kBlockBytes = kBits * static_cast<int>(kLineBytes);
  static constexpr int kPieceBytes = kBlocks * kBlockBytes;
  static constexpr int kGroupBlocks = kWideGroups ? kBlocks : 1;
  static constexpr int kGroups = kBlocks / kGroupBlocks;  // of a piece
  static constexpr int kDepth = ResidentDepth(kFormat, kRows);
  static constexpr bool kZeros = StreamsZeros(kFormat);
  static constexpr int kChains = kRows == 8 ? 2 : 1;  // of products that wait for each other
};

// What a CTA multiplies: tiles of one matrix, and the pieces [begin, end) of the sum.
struct ResidentTask {
  const uint8_t* packed;
  Factors scales, zeros;
  int first_tile, tiles;
  int rows;  // of x
  int begin, end;

  __device__ __forceinline__ int64_t Tile(int i) const { return first_tile + i; }
  __device__ __forceinline__ int pieces() const { return end - begin; }
};

// A thread's place among the warps.
struct ResidentTeam {
  __device__ __forceinline__ explicit ResidentTeam(const QuantizedPlan& plan)
      : warp(static_cast<int>(threadIdx.x / 32)),
        lane(static_cast<int>(threadIdx.x % 32)),
        team(warp % plan.tile_warps),
        teams(plan.tile_warps),
        place(warp / plan.tile_warps),
        warps(plan.k_warps) {}
  __device__ __forceinline__ void Sync() const {
    if (warps == 1)
      __syncwarp();
    else if (teams == 1)
      __syncthreads();
    else
      cuda::BarrierSync(1 + team, 32 * warps);
  }
  const int warp, lane, team, teams, place, warps;
};

// Where shared memory has what.
template <class S>
struct ResidentMemory {
  __device__ __forceinline__ ResidentMemory(char* shared, const QuantizedPlan& plan,
                                            const ResidentTask& task)
      : pitch(plan.slice_pieces * 2 * kStageColumns + kResidentPad), slot_bytes(plan.slot_bytes) {
    const int warps = static_cast<int>(blockDim.x) / 32;
    ring = shared;
    x = ring + warps * S::kDepth * slot_bytes;
    sums_of_x = reinterpret_cast<float*>(x + task.rows * pitch);
    parts = sums_of_x + (S::kZeros ? plan.slice_pieces * S::kGroups * S::kRows : 0);
    results = parts + 2 * warps * S::kRows * kResidentPitch;
  }
  int pitch, slot_bytes;
  char *ring, *x;
  float* sums_of_x;  // [groups of the slice, kRows]
  float* parts;      // [teams, 2 in turn, warps of a team, kRows, kResidentPitch]
  float* results;    // [tiles, rows, 16]
};

// x in shared memory: columns of the slice, and zeros behind the last one.
template <class S, class RowOf>
class ResidentRows {
 public:
  // row_of(row): the row of x; null: zeros.
  __device__ __forceinline__ ResidentRows(const QuantizedParams& p, const ResidentTask& task,
                                          const ResidentMemory<S>& memory, RowOf row_of)
      : p_(p), task_(task), memory_(memory), row_of_(row_of) {}

  __device__ __forceinline__ void Issue() const {
    const int first = task_.begin * kStageColumns, k = static_cast<int>(p_.k);
    ForUnits([&](int row, int unit, bool there) {
      if (!there) return;
      const auto* const from = static_cast<const typename S::T*>(row_of_(row));
      const int column = first + 8 * unit;
      const bool valid = from && column < k;
      cuda::CpAsync16(cuda::SharedAddress(At(row, unit)), valid ? from + column : p_.x, valid);
    });
    cuda::CpAsyncCommit();
  }

  // Of what this thread copied, which has come: the order of a lane's columns, and sums of groups.
  __device__ __forceinline__ void Finish() const {
    if constexpr (S::kSpread) {
      ForUnits([&](int row, int unit, bool there) {
        uint4 x = {0, 0, 0, 0};
        if (there) x = *reinterpret_cast<const uint4*>(At(row, unit));
        if constexpr (S::kZeros) {
          float sum = (Sum(x.x) + Sum(x.y)) + (Sum(x.z) + Sum(x.w));
          constexpr int kUnits = 4 * S::kGroupBlocks;  // of a group: lanes side by side
#pragma unroll
          for (int step = 1; step < kUnits; step *= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
          if (there && unit % kUnits == 0) memory_.sums_of_x[unit / kUnits * S::kRows + row] = sum;
        }
        if (there)
          *reinterpret_cast<uint4*>(At(row, unit)) = SpreadCodes<S::kFormat, S::kType>::InOrder(x);
      });
    }
  }

 private:
  static __device__ __forceinline__ float Sum(uint32_t pair) {
    const auto both = *reinterpret_cast<const cuda::Pack<typename S::T, 2>*>(&pair);
    return cuda::ToFloat(both.at[0]) + cuda::ToFloat(both.at[1]);
  }
  __device__ __forceinline__ char* At(int row, int unit) const {
    return memory_.x + row * memory_.pitch + 16 * unit;
  }
  // fn(row, unit of 8 columns, whether there is one), for whole warps; a piece has 16 units.
  template <class Fn>
  __device__ __forceinline__ void ForUnits(Fn fn) const {
    const int units = task_.pieces() * 16, threads = static_cast<int>(blockDim.x);
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int rows_together = max(threads / units, 1);
    if (rows_together > 1) {
      // Short rows side by side.
      const int row_in = static_cast<int>(threadIdx.x) / units;
      const int unit = static_cast<int>(threadIdx.x) % units;
      for (int row = 0; row < task_.rows; row += rows_together)
        fn(row + row_in, unit, row_in < rows_together && row + row_in < task_.rows);
      return;
    }
    for (int row = 0; row < task_.rows; ++row)
      for (int at = static_cast<int>(threadIdx.x) - lane; at < units; at += threads)
        fn(row, at + lane, at + lane < units);
  }

  const QuantizedParams& p_;
  const ResidentTask& task_;
  const ResidentMemory<S>& memory_;
  const RowOf row_of_;
};

// A warp's ring of pieces: codes as they lie in memory but for the order of 16 bytes in a block,
// which keeps lanes in different banks, then the factors of each of its groups.
template <class S>
class PieceRing {
 public:
  __device__ __forceinline__ PieceRing(const QuantizedParams& p, const QuantizedPlan& plan,
                                       const ResidentTask& task, const ResidentTeam& team,
                                       char* ring)
      : p_(p),
        plan_(plan),
        task_(task),
        team_(team),
        ring_(cuda::SharedAddress(ring) + team.warp * S::kDepth * plan.slot_bytes),
        piece_(team.place),
        tile_(team.team),
        tile_bytes_(int64_t{static_cast<int>(p.blocks())} * S::kBlockBytes) {
    const int swap = team.lane >> 2 & (S::kBits == 4 ? 2 : 6);
    codes_to_ = (team.lane ^ swap) * 16;
    // Lanes that copy factors: `shift` has the 16 bytes of a group.
    const auto lanes = [&](int bytes, int& part, int& in_piece) {
      const int shift = bytes == 64 ? 2 : bytes == 32 ? 1 : 0;
      in_piece = team.lane >> shift, part = (team.lane & ((1 << shift) - 1)) * 16;
    };
    lanes(plan.scale_bytes, scale_part_, scale_group_);
    if constexpr (S::kZeros) lanes(plan.zero_bytes, zero_part_, zero_group_);
    Seek();
  }

  // Asks for the warp's next piece, if there is one.
  __device__ __forceinline__ void Load() {
    if (tile_ < task_.tiles) {
      const uint32_t to = ring_ + slot_;
#pragma unroll
      for (int j = 0; j < S::kPieceBytes / 512; ++j) {
        const bool valid = j * 512 + team_.lane * 16 < left_;
        cuda::CpAsync16Once(to + codes_to_ + j * 512, valid ? codes_ + j * 512 : codes_, valid);
      }
      LoadFactors(to + S::kPieceBytes, scales_, task_.scales, plan_.scale_bytes, scale_part_,
                  scale_group_);
      if constexpr (S::kZeros) {
        if (task_.zeros.data)
          LoadFactors(to + S::kPieceBytes + S::kGroups * plan_.scale_bytes, zeros_, task_.zeros,
                      plan_.zero_bytes, zero_part_, zero_group_);
      }
      piece_ += team_.warps;
      if (piece_ < task_.pieces()) {
        codes_ += team_.warps * S::kPieceBytes, left_ -= team_.warps * S::kPieceBytes;
        if (EachGroup()) {
          scales_ += team_.warps * S::kGroups * plan_.scale_bytes;
          if constexpr (S::kZeros) zeros_ += team_.warps * S::kGroups * plan_.zero_bytes;
        }
      } else {
        piece_ -= task_.pieces();
        tile_ += team_.teams;
        Seek();
      }
    }
    cuda::CpAsyncCommit();
    slot_ += plan_.slot_bytes;
    if (slot_ == S::kDepth * plan_.slot_bytes) slot_ = 0;
  }

 private:
  // Whether the groups of pieces side by side are side by side.
  __device__ __forceinline__ bool EachGroup() const {
    return p_.group == S::kGroupBlocks * kBlockColumns;
  }
  __device__ __forceinline__ void Seek() {
    const int64_t tile = min(task_.Tile(tile_), p_.tiles - 1);
    const int piece = task_.begin + piece_, groups = static_cast<int>(p_.groups);
    codes_ = reinterpret_cast<const char*>(task_.packed) + tile * tile_bytes_ +
             int64_t{piece} * S::kPieceBytes + team_.lane * 16;
    left_ = static_cast<int>(tile_bytes_) - piece * S::kPieceBytes;
    const int64_t first = tile * groups + (EachGroup() ? piece * S::kGroups : 0);
    scales_ = static_cast<const char*>(task_.scales.data) + first * plan_.scale_bytes + scale_part_;
    if constexpr (S::kZeros)
      zeros_ = static_cast<const char*>(task_.zeros.data) + first * plan_.zero_bytes + zero_part_;
  }
  __device__ __forceinline__ void LoadFactors(uint32_t to, const char* from, const Factors& factors,
                                              int bytes, int part, int in_piece) const {
    if (in_piece >= S::kGroups) return;
    const int piece = task_.begin + piece_, groups = static_cast<int>(p_.groups);
    int group = in_piece;
    if (EachGroup())
      group = min(group, groups - 1 - piece * S::kGroups);
    else
      group = min((piece * S::kBlocks + in_piece * S::kGroupBlocks) * int{kBlockColumns} /
                      static_cast<int>(p_.group),
                  groups - 1);
    cuda::CpAsync16Once(to + in_piece * bytes + part, from + group * bytes, true);
  }

  const QuantizedParams& p_;
  const QuantizedPlan& plan_;
  const ResidentTask& task_;
  const ResidentTeam& team_;
  const uint32_t ring_;
  int piece_, tile_, slot_ = 0, left_ = 0;
  const int64_t tile_bytes_;
  uint32_t codes_to_;
  int scale_part_, scale_group_, zero_part_ = 0, zero_group_ = 0;
  const char *codes_, *scales_, *zeros_ = nullptr;
};

}  // namespace intarsia::matmul::sm90
