// Products with weights in codes and few rows of x, which stay in shared memory:
//   out[row, column] = sum_i x[row, i] w[column, i] + bias[column]      (matmul/quantized.h)
// for groups of 32 columns and multiples of it.
//
// A CTA has some tiles of w and a slice of the sum. tile_warps teams of k_warps warps take the
// tiles in turn, and the warps of a team pieces of 128 columns of its tile, each through a ring of
// its own, by cp.async: what is in flight does not depend on registers, and no warp waits for
// another but where a tile ends. There the sums of a team's warps are added in order.
//
// As in quantized.cuh codes are the A operand of m16n8k16 and rows of x are B. With r = lane / 4
// and c = lane % 4 a lane has rows 2r and 2r + 1 of a tile in the place of A's rows r and r + 8,
// and of 32 columns 8c ... 8c + 7: a word of 4-bit codes a row. x in shared memory lies in
// the order of their pairs (SpreadCodes). Sums of x over each group, for zeros, are made once a
// CTA.
#pragma once
#include "src/matmul/cuda/codes.cuh"
#include "src/matmul/cuda/factors.cuh"
#include "src/matmul/cuda/sm90/resident_stage.cuh"

namespace intarsia::matmul::sm90 {

// A warp's sums of a tile.
template <class S>
class ResidentProduct {
 public:
  using M = typename S::M;
  using Fragment = float[4];
  using Spread = SpreadCodes<S::kFormat, S::kType>;

  __device__ __forceinline__ ResidentProduct(const QuantizedParams& p, const QuantizedPlan& plan,
                                             const ResidentTask& task,
                                             const ResidentMemory<S>& memory)
      : p_(p), plan_(plan), task_(task), memory_(memory), spread_(OpaqueZero(p)) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    r_ = lane / 4, c_ = lane % 4;
    const int unit = S::kBits == 4 ? (4 * c_ + r_ / 2) ^ (c_ & 2) : 8 * c_ + (r_ / 2 ^ 2 * c_);
    codes_ = 16 * unit + r_ % 2 * 8;
    next_codes_ = codes_ ^ 64;
    // Rows that there are not are copies of the last one: nobody reads their results.
#pragma unroll
    for (int n = 0; n < S::kRowBlocks; ++n)
      x_[n] = min(8 * n + r_, task.rows - 1) * memory.pitch + 16 * c_;
  }

  __device__ __forceinline__ void Begin() {
#pragma unroll
    for (int n = 0; n < S::kRowBlocks; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) all_[n][e] = 0.0f;
  }

  // Adds the piece in a slot of the ring; `piece`: of the slice.
  __device__ __forceinline__ void Add(const char* slot, int64_t tile, int piece) {
    Fragment group[S::kChains][S::kRowBlocks];
    const char* const x = memory_.x + piece * (2 * kStageColumns);
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b) {
      if (b % S::kGroupBlocks == 0) Clear(group);
      uint32_t low[4], high[4];
      Eight(slot + b * S::kBlockBytes, low, high);
      const typename M::A a[2] = {{{low[0], high[0], low[1], high[1]}},
                                  {{low[2], high[2], low[3], high[3]}}};
#pragma unroll
      for (int n = 0; n < S::kRowBlocks; ++n) {
        const uint4 of_x = *reinterpret_cast<const uint4*>(x + 64 * b + x_[n]);
        M::MultiplyAdd(group[0][n], a[0], {{of_x.x, of_x.y}});
        M::MultiplyAdd(group[S::kChains - 1][n], a[1], {{of_x.z, of_x.w}});
      }
      if (b % S::kGroupBlocks == S::kGroupBlocks - 1)
        EndGroup(slot + S::kPieceBytes, tile, piece, b / S::kGroupBlocks, group);
    }
  }

  // To [kRows, kResidentPitch].
  __device__ __forceinline__ void Store(float* to) const {
#pragma unroll
    for (int n = 0; n < S::kRowBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        *reinterpret_cast<float2*>(to + (8 * n + 2 * c_ + i) * kResidentPitch + 2 * r_) =
            make_float2(all_[n][i], all_[n][2 + i]);
    }
  }

 private:
  static __device__ __forceinline__ void Clear(Fragment (&group)[S::kChains][S::kRowBlocks]) {
#pragma unroll
    for (int chain = 0; chain < S::kChains; ++chain)
#pragma unroll
      for (int n = 0; n < S::kRowBlocks; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) group[chain][n][e] = 0.0f;
  }
  // Eight codes of two rows, as B has x: two pairs a step.
  __device__ __forceinline__ void Eight(const char* block, uint32_t (&low)[4],
                                        uint32_t (&high)[4]) const {
    const uint2 words = *reinterpret_cast<const uint2*>(block + codes_);
    if constexpr (S::kSpread) {
      spread_.Decode(words.x, low);
      spread_.Decode(words.y, high);
    } else {
      const uint2 next = *reinterpret_cast<const uint2*>(block + next_codes_);
      uint32_t pairs[2];
      const auto put = [&](uint32_t word, uint32_t(&to)[4], int at) {
        Decode<S::kFormat, S::kType>({word, 0}, pairs);
        to[at] = pairs[0], to[at + 1] = pairs[1];
      };
      put(words.x, low, 0), put(words.y, high, 0), put(next.x, low, 2), put(next.y, high, 2);
    }
  }
  // Scales a group's sums, of columns 2 r and 2 r + 1 and of rows 2 c and 2 c + 1 of each block.
  __device__ __forceinline__ void EndGroup(const char* factors, int64_t tile, int piece,
                                           int in_piece,
                                           const Fragment (&group)[S::kChains][S::kRowBlocks]) {
    const int column = (task_.begin + piece) * kStageColumns +
                       in_piece * S::kGroupBlocks * static_cast<int>(kBlockColumns);
    const auto factor = [&](const Factors& of, const char* inner) {
      float2 found;
      if (of.dtype == DType::kF16)  // as a rule: no need to look for the type
        found = __half22float2(*reinterpret_cast<const __half2*>(inner + 4 * r_));
      else
        found = LoadPair<true>(inner, of.dtype, 2 * r_);
      if (!of.outer) return found;
      const float2 outer = OuterOf(of, tile, column / static_cast<int>(p_.group),
                                   static_cast<int>(p_.groups), 2 * r_);
      return make_float2(found.x * outer.x, found.y * outer.y);
    };
    float2 scale = factor(task_.scales, factors + in_piece * plan_.scale_bytes);
    float2 zero = {0.0f, 0.0f};
    if constexpr (S::kZeros) {
      if (task_.zeros.data)
        zero = factor(task_.zeros,
                      factors + S::kGroups * plan_.scale_bytes + in_piece * plan_.zero_bytes);
      if (p_.points) zero = make_float2(-scale.x * zero.x, -scale.y * zero.y);
    }
    scale = make_float2(scale.x / Spread::kUnit, scale.y / Spread::kUnit);
    const float* const sums =
        memory_.sums_of_x + (piece * S::kGroups + in_piece) * S::kRows + 2 * c_;
#pragma unroll
    for (int n = 0; n < S::kRowBlocks; ++n) {
      float2 of_x = {0.0f, 0.0f};
      if constexpr (S::kZeros) of_x = *reinterpret_cast<const float2*>(sums + 8 * n);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float sum = group[0][n][e];
        if constexpr (S::kChains > 1) sum += group[1][n][e];
        all_[n][e] += (e < 2 ? scale.x : scale.y) * sum;
        if constexpr (S::kZeros)
          all_[n][e] += (e < 2 ? zero.x : zero.y) * (e % 2 ? of_x.y : of_x.x);
      }
    }
  }

  const QuantizedParams& p_;
  const QuantizedPlan& plan_;
  const ResidentTask& task_;
  const ResidentMemory<S>& memory_;
  const Spread spread_;
  int r_, c_, codes_, next_codes_, x_[S::kRowBlocks];
  Fragment all_[S::kRowBlocks];
};

// end(tile of the CTA, row, column, sum) for each result, by one thread.
template <class S, class RowOf, class End>
__device__ __forceinline__ void MultiplyResident(const QuantizedParams& p,
                                                 const QuantizedPlan& plan,
                                                 const ResidentTask& task,
                                                 const ResidentMemory<S>& memory, RowOf row_of,
                                                 End end) {
  const ResidentTeam team(plan);
  PieceRing<S> ring(p, plan, task, team, memory.ring);
  cuda::AwaitPrevious();
  cuda::LetNextBegin();
  const ResidentRows<S, RowOf> rows(p, task, memory, row_of);
  rows.Issue();  // what all warps wait for comes first
#pragma unroll 1
  for (int i = 0; i < S::kDepth - 1; ++i) ring.Load();
  cuda::CpAsyncWait<S::kDepth - 1>();
  rows.Finish();
  __syncthreads();
  ResidentProduct<S> product(p, plan, task, memory);
  constexpr int kPart = S::kRows * kResidentPitch;
  const char* const slots = memory.ring + team.warp * S::kDepth * memory.slot_bytes;
  int piece = team.place, slot = 0, turn = 0;
  for (int i = team.team; i < task.tiles; i += team.teams, turn ^= 1) {
    product.Begin();
#pragma unroll 1
    for (; piece < task.pieces(); piece += team.warps) {
      cuda::CpAsyncWait<S::kDepth - 2>();
      __syncwarp();  // the piece is here, and no lane reads the one before any more
      ring.Load();
      product.Add(slots + slot, task.Tile(i), piece);
      slot += memory.slot_bytes;
      if (slot == S::kDepth * memory.slot_bytes) slot = 0;
    }
    piece -= task.pieces();
    float* const parts = memory.parts + (2 * team.team + turn) * team.warps * kPart;
    product.Store(parts + team.place * kPart);
    team.Sync();  // the sums are here, and nobody adds those of the tile before last any more
    for (int at = 32 * team.place + team.lane; at < task.rows * static_cast<int>(kTileRows);
         at += 32 * team.warps) {
      const int row = at / static_cast<int>(kTileRows), column = at % static_cast<int>(kTileRows);
      const float* const first = parts + row * kResidentPitch + column;
      float sum = 0.0f;
#pragma unroll 4
      for (int from = 0; from < team.warps; ++from) sum += first[from * kPart];
      end(i, row, column, sum);
    }
  }
  cuda::CpAsyncWait<0>();
}

}  // namespace intarsia::matmul::sm90
