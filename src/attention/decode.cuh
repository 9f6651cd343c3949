// The kernel of split-KV decode for sm_80 and newer: mma.sync on tiles of 16 packed query rows.
//
// What bounds it is how many bytes are on their way from memory (Little's law: 30 KB for each
// multiprocessor of an H200), not arithmetic. So inside a piece no warp waits for another one. Warp
// w takes every kWarps-th chunk of 16 keys, as a flash-attention of its own: the chunks of K and V
// wait in a ring in shared memory that only this warp fills and reads, by cp.async, and page
// numbers are asked for two chunks earlier still. In the end the warps' results are combined in
// shared memory; if other CTAs have pieces of the same item, CombineKernel does the rest
// (decode_combine.cuh has the formula).
#pragma once
#include "src/attention/decode_combine.cuh"
#include "src/attention/decode_schedule.cuh"
#include "src/attention/decode_tile.cuh"
#include "src/core/cuda/launch.h"

namespace intarsia::attention::decode {

// s = -inf where the row does not see the key, or the key does not exist.
template <class S>
__device__ __forceinline__ void Mask(typename S::Scores& s, const Params& p,
                                     const Sequence& sequence, int first_row, int first_key,
                                     uint32_t existing) {
  const int lane = threadIdx.x % 32, group = GroupSize(p), column = lane % 4 * 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const Range seen = VisibleKeys(p, sequence, (first_row + lane / 4 + 8 * r) / group);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int bit = column + 8 * n + i, key = first_key + bit;
        if (key < seen.begin || key >= seen.end || !(existing >> bit & 1))
          s[n][2 * r + i] = -INFINITY;
      }
    }
  }
}

// This warp's result over its chunks of the piece. Round n multiplies chunk n and asks for another
// one; the first kChunks rounds only ask. All warps have the same number of rounds.
template <class S>
__device__ __forceinline__ void Attend(const Params& p, const Cut& cut, const Divisor& page_size,
                                       const Sequence& sequence, const PieceTile& tile, int kv_head,
                                       char* shared, bool aligned, RowState<S>& state) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t query = cuda::SharedAddress(shared), rings = query + S::kQueryBytes;
  Ring<S> ring(p, page_size, sequence, kv_head / cut.head_parts, tile.keys, aligned,
               rings + warp * S::kRingBytes);
  if (warp == 0) {
    const int row = lane % kTileRows;
    const RowPlace place = PlaceOf(p, sequence, kv_head, tile.first_row + row);
    RowCopy<S>(row < tile.rows ? place.token * p.q_token_stride + place.head * p.q_head_stride : 0,
               (1u << tile.rows) - 1, 0)
        .Start(query, p.q, static_cast<int>(p.head_dim), aligned);
  }
  cuda::CpAsyncCommit();

  const Logit<S::kType> logit(p);
  const uint32_t q = query + LaneOffsetA<typename S::Rows>(lane);
  const int rounds = CeilDiv(tile.keys.size(), S::kRoundKeys);
  int key = tile.keys.begin + warp * kChunkKeys;
#pragma unroll 1
  for (int round = -S::kChunks; round < rounds; ++round) {
    typename S::Scores s;
    uint32_t existing = 0;
    if (round == 0) {
      cuda::CpAsyncWait<2 * S::kChunks>();
      __syncthreads();  // Q is here
    }
    if (round >= 0) {
      ring.Wait();
      existing = ring.existing();
      MultiplyKeys<S>(s, q, ring.keys() + LaneOffsetB<typename S::Rows>(lane));
      __syncwarp();  // all lanes have read them
    }
    ring.AskForKeys();
    if (round >= 0) {
      if (!logit.folds()) {
#pragma unroll
        for (auto& block : s) logit.Apply(block);
      }
      const bool all_seen =
          key >= tile.seen_by_all.begin && key + kChunkKeys <= tile.seen_by_all.end;
      if (!all_seen || existing != ring.kAllExist)
        Mask<S>(s, p, sequence, tile.first_row, key, existing);
      state.Include(s);
      ring.Wait();
      MultiplyValues<S>(
          state.o, s, ring.values() + S::M::template LaneOffsetTransposed<typename S::Rows>(lane));
      __syncwarp();
      key += S::kRoundKeys;
    }
    ring.AskForValues();
  }
  cuda::CpAsyncWait<0>();
  state.Finish();
}

// Combines the results of the warps, and writes the tile's rows, or a partial result if the item
// has more pieces.
template <class S>
__device__ __forceinline__ void WritePiece(const Params& p, const PieceLayout& layout,
                                           const Sequence& sequence, const PieceTile& tile,
                                           const Piece& piece, int kv_head, int slice,
                                           const RowState<S>& state, char* shared, bool aligned) {
  using T = typename S::T;
  __shared__ float warp_lse[S::kWarps][kTileRows];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = static_cast<int>(p.head_dim);
  const auto row_of = [&](int w, int row) {
    return reinterpret_cast<float*>(shared) + (w * kTileRows + row) * S::kPitch;
  };
  __syncthreads();  // nobody reads Q or the ring any more
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r;
    if (row >= tile.rows) continue;
    if (lane % 4 == 0) warp_lse[warp][row] = state.lse(r);
#pragma unroll
    for (int n = 0; n < S::kD / 8; ++n) {
      float* const to = row_of(warp, row) + 8 * n + lane % 4 * 2;
      *reinterpret_cast<float2*>(to) = {state.o[n][2 * r], state.o[n][2 * r + 1]};
    }
  }
  __syncthreads();

  const int position = piece.first_slice == slice ? 1 : 0;
  float* const partial = piece.count > 1 ? PartialAt(p, layout, slice, kv_head, position) : nullptr;
  for (int row = warp; row < tile.rows; row += S::kWarps) {
    float reference = -INFINITY, weights = 0.0f, weight[S::kWarps];
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) reference = fmaxf(reference, warp_lse[w][row]);
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) weights += weight[w] = Weight(warp_lse[w][row], reference);
    const RowPlace to = PlaceOf(p, sequence, kv_head, tile.first_row + row);
    T* const out = static_cast<T*>(p.out) + (to.token * p.num_heads + to.head) * d;
#pragma unroll 1
    for (int column = lane * 4; column < d; column += 128) {
      float o[4] = {};
#pragma unroll
      for (int w = 0; w < S::kWarps; ++w) {
        const auto part = *reinterpret_cast<const cuda::Vec<float>*>(row_of(w, row) + column);
#pragma unroll
        for (int i = 0; i < 4; ++i) o[i] += weight[w] * part.at[i];
      }
      if (partial)
        StoreColumns(partial + row * d + column, o, Inverse(weights), true);
      else
        StoreColumns(out + column, o, Inverse(weights), aligned);
    }
    if (lane != 0) continue;
    const float lse = LseOf(weights, reference);
    if (partial)
      partial[layout.lse_offset() + row] = lse;
    else if (p.lse)
      p.lse[to.head * p.num_tokens + to.token] = lse * kLn2;
  }
  if (partial && threadIdx.x == 0) {
    RecordOf(partial, layout) = {.pieces = piece.count,
                                 .first_slice = piece.first_slice,
                                 .first_token = sequence.tokens.begin,
                                 .first_row = tile.first_row,
                                 .rows = tile.rows};
  }
  __syncthreads();  // shared memory is free again
}

// The rows outside of all sequences.
template <class T>
__device__ __forceinline__ void FillPadding(const Params& p, int cta, int num_ctas) {
  const Range tokens = PaddingTokens(p);
  const int width = static_cast<int>(p.num_heads * p.head_dim);
  for (int64_t token = tokens.begin + cta; token < tokens.end; token += num_ctas) {
    for (int i = threadIdx.x; i < width; i += blockDim.x)
      static_cast<T*>(p.out)[token * width + i] = cuda::FromFloat<T>(0.0f);
    if (!p.lse) continue;
    for (int64_t head = threadIdx.x; head < p.num_heads; head += blockDim.x)
      p.lse[head * p.num_tokens + token] = -INFINITY;
  }
}

// Grid (hk, slices).
template <class S>
__global__ void __launch_bounds__(S::kThreads, kCtasPerSm)
    DecodeKernel(const __grid_constant__ Params p, const __grid_constant__ PieceLayout layout,
                 const Cut cut, const __grid_constant__ Divisor page_size, bool fill_padding,
                 bool aligned) {
  extern __shared__ __align__(128) char shared[];
  const int kv_head = blockIdx.x, slice_index = blockIdx.y, num_slices = gridDim.y;
  if (num_slices > 1 && threadIdx.x < PieceLayout::kPiecesPerCta)
    RecordOf(PartialAt(p, layout, slice_index, kv_head, threadIdx.x), layout) = {};

  const Slice slice = FindSlice<S::kThreads>(p, cut, slice_index, num_slices);
  Sequence sequence = slice.sequence;
  SequenceWork work = slice.work;
  int sequence_begin = slice.sequence_begin;
  for (int position = slice.begin; position < slice.end;) {
    if (position >= sequence_begin + work.cost()) {
      sequence_begin += work.cost();
      sequence = SequenceAt(p, sequence.index + 1);
      work = WorkOf(p, sequence, cut);
      continue;  // it may have no work
    }
    const Piece piece = PieceAt(work, sequence_begin, position, slice.end, slice.payload);
    position = piece.end;
    // An item without keys has rows to write nevertheless.
    if (piece.granule_begin == piece.granule_end && work.granules > 0) continue;
    const PieceTile tile = TileOf(p, sequence, piece, cut);
    RowState<S> state(Logit<S::kType>(p).factor());
    Attend<S>(p, cut, page_size, sequence, tile, kv_head, shared, aligned, state);
    WritePiece<S>(p, layout, sequence, tile, piece, kv_head, slice_index, state, shared, aligned);
  }
  if (fill_padding)
    FillPadding<typename S::T>(p, slice_index * gridDim.x + kv_head, num_slices * gridDim.x);
}

template <class S>
inline const cuda::Kernel kKernel("DecodeKernel", reinterpret_cast<const void*>(&DecodeKernel<S>),
                                  S::kSharedBytes);
template <DType kType>
inline const cuda::Kernel kCombineKernel("CombineKernel",
                                         reinterpret_cast<const void*>(&CombineKernel<kType>));

template <class S>
Status LaunchShape(Params p, const CudaContext& context, const DecodeRows& which) {
  INTARSIA_RETURN_IF_ERROR(cuda::LoadKernels());
  int resident = 0;  // sm_80 has room for one CTA
  INTARSIA_RETURN_IF_ERROR(
      cuda::ToStatus(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kKernel<S>.function(),
                                                                   S::kThreads, S::kSharedBytes),
                     kKernel<S>.name()));
  const StaticShape shape = SplitHeads(
      {p.num_tokens, p.num_seqs, p.num_heads, p.num_kv_heads(), p.head_dim, p.max_len_k});
  const int64_t head_parts = shape.num_kv_heads / p.num_kv_heads();
  p.cache.num_kv_heads = shape.num_kv_heads;
  const PieceLayout layout = LayoutOfPieces(shape);
  const Cut cut{static_cast<int>(std::min(which.max_packed_rows, kMaxCount) / head_parts),
                GranuleKeys(shape), static_cast<int>(head_parts)};
  const int64_t ctas = std::min<int64_t>(p.workspace ? p.max_splits : 1,
                                         cuda::NumSms() * std::min(resident, kCtasPerSm));
  const int64_t heads = shape.num_kv_heads, num_slices = NumSlices(heads, ctas);
  const int64_t needed = PieceLayout::kPiecesPerCta * layout.floats();
  if (num_slices > 1 &&
      (p.workspace_floats < needed || reinterpret_cast<uintptr_t>(p.workspace) % 16 != 0))
    return InvalidArgument(Text("workspace has ", p.workspace_floats,
                                " floats a split, expected at least ", needed,
                                " at a multiple of 16 bytes"));
  const bool aligned = RowsAligned<typename S::T>(p);
  INTARSIA_RETURN_IF_ERROR(cuda::Launch(
      context, kKernel<S>, {{heads, num_slices}, dim3(S::kThreads), S::kSharedBytes}, p, layout,
      cut, Divisor(std::max<int64_t>(p.cache.page_size, 1)), which.fill_padding, aligned));
  if (num_slices == 1) return {};
  return cuda::Launch(context, kCombineKernel<S::kType>,
                      {{heads, num_slices, 2}, dim3(kCombineThreads)}, p, layout, aligned);
}

}  // namespace intarsia::attention::decode

namespace intarsia::attention {

template <DType kType>
Status LaunchDecodeOf(const Params& params, const CudaContext& context, DecodeRows rows) {
  Params p = params;
  if (p.num_tokens == 0 || p.num_heads == 0) return {};
  if (p.cache.dtype != kType)
    return Unimplemented(
        Text("K and V have dtype ", Name(p.cache.dtype), "; built is that of q, ", Name(kType)));
  if (p.num_kv_heads() == 0 || p.num_heads % p.num_kv_heads() != 0)
    return InvalidArgument(
        Text("q has h=", p.num_heads, ", expected a multiple of hk=", p.num_kv_heads()));
  if (p.head_dim % 8 != 0)
    return Unimplemented(Text("d is ", p.head_dim, "; built are multiples of 8"));
  if (p.num_tokens * p.num_heads > kMaxCount || p.max_len_k > kMaxCount ||
      p.cache.page_size > kMaxCount || p.cache.num_pages > kMaxCount)
    return Unimplemented(Text("more than ", kMaxCount, " query rows, keys or pages"));
  // So that a position plus a window fits.
  p.window_left = std::min(p.window_left, 2 * kMaxCount);
  p.window_right = std::min(p.window_right, 2 * kMaxCount);
  return DispatchInt<32, 64, 96, 128, 192, 256>("d", p.head_dim, [&]<int kD>() {
    return decode::LaunchShape<decode::Shape<kType, kD>>(p, context, rows);
  });
}

}  // namespace intarsia::attention
