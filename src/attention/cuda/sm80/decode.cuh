// The kernel of split-KV decode for sm_80 and newer, which computes attention.h's out and lse:
// mma.sync on tiles of 16 packed query rows. It has two forms, for plain calls (decode_plain.cuh)
// and for all.
//
// What bounds it is how many bytes are on their way from memory (Little's law: 30 KB for each
// multiprocessor of an H200), not arithmetic. So inside a piece no warp waits for another one. Warp
// w takes every kWarps-th chunk of keys, as a flash-attention of its own: the chunks of K and V
// wait in a ring in shared memory that only this warp fills and reads, by cp.async, and page
// numbers are asked for two chunks earlier still. In the end the warps' results are combined in
// shared memory; if other CTAs have pieces of the same item, CombineKernel does the rest
// (decode_combine.cuh has the formula). Plain calls of few rows have a kernel of their own
// (decode_cluster.cuh).
#pragma once
#include <bit>

#include "src/attention/cuda/decode_combine.cuh"
#include "src/attention/cuda/fragments.cuh"
#include "src/attention/cuda/scores.cuh"
#include "src/attention/cuda/sm80/decode_cluster.cuh"
#include "src/attention/cuda/sm80/decode_query.cuh"
#include "src/core/cuda/launch.h"
#include "src/core/round.h"

namespace intarsia::attention::decode {

// The scores as those of one block of 16 rows.
template <class S>
__device__ __forceinline__ auto& OneBlock(typename S::Scores& s) {
  return reinterpret_cast<float(&)[1][S::kChunkKeys / 8][4]>(s);
}

// This warp's result over its chunks of the piece. Round n multiplies chunk n and asks for another
// one; the first kChunks rounds only ask. All warps have the same number of rounds.
template <class S>
__device__ __forceinline__ void Attend(const Params& p, const Cut& cut, const Divisor& page_size,
                                       const Sequence& sequence, const PieceTile& tile, int kv_head,
                                       char* shared, bool aligned, RowState<S>& state) {
  using Rows = typename S::Rows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int cache_head = S::kPlain ? kv_head : kv_head / cut.head_parts;
  const uint32_t query = cuda::SharedAddress(shared), rings = query + S::kQueryBytes;
  PieceKeys keys(p, page_size, sequence, tile.keys.end);
  Ring<S, PieceKeys> ring(p, keys, cache_head, tile.keys.begin + warp * S::kChunkKeys,
                          S::kRoundKeys, aligned, rings + warp * S::kRingBytes);
  StartQuery<S>(p, sequence, tile, kv_head, query, aligned);
  cuda::CpAsyncCommit();

  Logit<S::kType> logit(p, S::kScaled ? ScoreScale(p, sequence.index, cache_head) : p.scale);
  const uint32_t q = query + cuda::LaneOffsetA<typename S::QueryRows>(lane);
  const int rounds = CeilDiv(tile.keys.size(), S::kRoundKeys);
  int key = tile.keys.begin + warp * S::kChunkKeys;
#pragma unroll 1
  for (int round = -S::kChunks; round < rounds; ++round) {
    typename S::Scores s;
    uint32_t existing = 0;
    if (round == 0) {
      cuda::CpAsyncWait<2 * S::kChunks>();
      __syncthreads();  // Q is here
      if constexpr (S::kFp8) {
        const int64_t offset = QueryOffset(p, sequence, tile, kv_head, lane % kTileRows);
        logit.Scale(ConvertQuery<S>(p, offset, (1u << tile.rows) - 1, shared, aligned));
        __syncthreads();
      }
      state.SetFactor(logit.factor());
    }
    if (round >= 0) {
      ring.Wait();
      existing = ring.existing();
      MultiplyKeys<S>(s, q, ring.keys() + S::M::template LaneOffsetKeys<Rows>(lane));
      __syncwarp();  // all lanes have read them
    }
    ring.AskForKeys();
    if (round >= 0) {
      if (!logit.folds()) {
#pragma unroll
        for (auto& block : s) logit.Apply(block);
        if (p.alibi_slopes.data)
          SubtractAlibi(OneBlock<S>(s), p, sequence, kv_head, tile.first_row, key);
      }
      const bool all_seen =
          key >= tile.seen_by_all.begin && key + S::kChunkKeys <= tile.seen_by_all.end;
      if (!all_seen || existing != ring.kAllExist)
        Mask(OneBlock<S>(s), p, sequence, tile.first_row, key, existing);
      state.Include(s);
      ring.Wait();
      MultiplyValues<S>(state.o, s,
                        ring.values() + S::M::template LaneOffsetTransposed<Rows>(lane));
      __syncwarp();
      key += S::kRoundKeys;
    }
    ring.AskForValues();
  }
  cuda::CpAsyncWait<0>();
  state.Finish(S::kScaled ? p.v_scale.At(sequence.index, cache_head) : 1.0f);
}

// Combines the results of the warps, and writes the tile's rows, or a partial result if the item
// has more pieces.
template <class S>
__device__ __forceinline__ void WritePiece(const Params& p, const PieceLayout& layout,
                                           const Sequence& sequence, const PieceTile& tile,
                                           const Piece& piece, int kv_head, int slice,
                                           const RowState<S>& state, char* shared, bool aligned) {
  auto& warp_lse = WarpNumbers<S>();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int dv = static_cast<int>(p.cache.v_head_dim);
  float* const rows = reinterpret_cast<float*>(shared);
  __syncthreads();  // nobody reads Q or the ring any more
  StoreRows<S>(state, {0, tile.rows}, rows, warp_lse);
  __syncthreads();

  const int position = piece.first_slice == slice ? 1 : 0;
  float* const partial = piece.count > 1 ? PartialAt(p, layout, slice, kv_head, position) : nullptr;
  for (int row = warp; row < tile.rows; row += S::kWarps) {
    const RowPlace to = PlaceOf(p, sequence, kv_head, tile.first_row + row);
    const float sink = partial ? -INFINITY : SinkOf(p, to.head);  // the last to combine counts it
    float reference = sink, weight[S::kWarps];
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) reference = fmaxf(reference, warp_lse[w][row]);
    float weights = Weight(sink, reference);
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) weights += weight[w] = Weight(warp_lse[w][row], reference);
    const int64_t out = (to.token * p.num_heads + to.head) * dv;
#pragma unroll 1
    for (int column = lane * 4; column < dv; column += 128) {
      float o[4] = {};
#pragma unroll
      for (int w = 0; w < S::kWarps; ++w) {
        const auto part = *reinterpret_cast<const cuda::Vec<float>*>(
            rows + (w * kTileRows + row) * S::kPitch + column);
#pragma unroll
        for (int i = 0; i < 4; ++i) o[i] += weight[w] * part.at[i];
      }
      if (partial)
        StoreColumnsAs<float>(partial, row * dv + column, o, Inverse(weights), true);
      else
        StoreColumns(p.out, p.out_dtype, out + column, o, Inverse(weights), aligned);
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

// Grid (hk, slices).
template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kTiles.ctas_per_sm)
    DecodeKernel(const __grid_constant__ Params call, const __grid_constant__ PieceLayout layout,
                 Cut cut, const __grid_constant__ Divisor page_size, bool fill_padding,
                 bool rows_aligned) {
  extern __shared__ __align__(128) char shared[];
  const CallOf<S> seen(call);
  const Params& p = seen.params();
  const bool aligned = S::kPlain || rows_aligned;
  cuda::AwaitPrevious();
  cuda::LetNextBegin();
  const int kv_head = blockIdx.x, slice_index = blockIdx.y, num_slices = gridDim.y;
  if (num_slices > 1 && threadIdx.x < PieceLayout::kPiecesPerCta)
    RecordOf(PartialAt(p, layout, slice_index, kv_head, threadIdx.x), layout) = {};

  // With 16-bit keys alone, as the prefill kernel that shares: others would spill registers.
  if constexpr (!S::kScaled && !S::kPlain)
    if (cut.sharing.ctas) cut.taken_keys = TakenKeys(p, LaneSequences(p), cut.sharing);
  // In other kernels both ways would make registers spill.
  const Slice slice = S::kPlain && p.num_seqs <= kFewSeqs
                          ? FindSliceOfFew(p, cut, slice_index, num_slices)
                          : FindSlice<S::kThreads>(p, cut, slice_index, num_slices);
  Sequence sequence = slice.sequence;
  SequenceWork work = slice.work;
  int sequence_begin = slice.sequence_begin;
  for (int position = slice.begin; position < slice.end;) {
    if (position >= sequence_begin + work.cost()) {
      sequence_begin += work.cost();
      sequence = SequenceAt(p, sequence.index + 1, sequence.tokens.end, sequence.key_end);
      work = WorkOf(p, sequence, cut);
      if (slice.even_cost > 0) work.item_cost = slice.even_cost;
      continue;  // it may have no work
    }
    const Piece piece = PieceAt(work, sequence_begin, position, slice.end, slice.payload);
    position = piece.end;
    // An item without keys has rows to write nevertheless.
    if (piece.granule_begin == piece.granule_end && work.granules > 0) continue;
    const PieceTile tile = TileOf(p, sequence, piece, cut);
    RowState<S> state;
    Attend<S>(p, cut, page_size, sequence, tile, kv_head, shared, aligned, state);
    WritePiece<S>(p, layout, sequence, tile, piece, kv_head, slice_index, state, shared, aligned);
  }
  if (fill_padding)
    FillPadding(p, slice.padding, slice_index * gridDim.x + kv_head, num_slices * gridDim.x);
}

template <class S>
inline const cuda::Kernel kKernel("DecodeKernel", reinterpret_cast<const void*>(&DecodeKernel<S>),
                                  S::kSharedBytes);

template <class S>
Status LaunchShape(Params p, const CudaContext& context, const DecodeRows& which) {
  const cuda::Device& device = *context.device;
  const int resident =  // A100 has room for one CTA
      std::min(cuda::ResidentBlocks(device, S::kSharedBytes + kForwardStaticBytes),
               S::kTiles.ctas_per_sm);
  const StaticShape shape = SplitHeads(ShapeOf(p));
  INTARSIA_RETURN_IF_ERROR(FitLine(shape));
  const int64_t head_parts = shape.num_kv_heads / p.num_kv_heads();
  p.cache.num_kv_heads = shape.num_kv_heads;
  p.SetGroup();
  const PieceLayout layout = LayoutOfPieces(shape);
  const Cut cut{static_cast<int>(std::min(which.max_packed_rows, kMaxCount) / head_parts),
                std::countr_zero(static_cast<unsigned>(GranuleKeys(shape))),
                static_cast<int>(head_parts), which.sharing};
  const int64_t ctas = std::min<int64_t>(p.workspace ? p.max_splits : 1, device.sms * resident);
  const int64_t heads = shape.num_kv_heads, num_slices = NumSlices(heads, ctas);
  const int64_t needed = PieceLayout::kPiecesPerCta * layout.floats();
  if (num_slices > 1 &&
      (p.workspace_floats < needed || reinterpret_cast<uintptr_t>(p.workspace) % 16 != 0))
    return InvalidArgument(Text("workspace has ", p.workspace_floats,
                                " floats a split, expected at least ", needed,
                                " at a multiple of 16 bytes"));
  const bool aligned = RowsAligned(p);
  const cuda::LaunchConfig config{.grid = {heads, num_slices},
                                  .block = dim3(S::kThreads),
                                  .shared_bytes = S::kSharedBytes,
                                  .overlaps_previous = true};
  INTARSIA_RETURN_IF_ERROR(cuda::Launch(context, kKernel<S>, config, p, layout, cut,
                                        Divisor(std::max<int64_t>(p.cache.page_size, 1)),
                                        which.fill_padding, aligned));
  if (num_slices == 1) return {};
  return LaunchCombine(p, layout, num_slices, aligned, context);
}

}  // namespace intarsia::attention::decode

namespace intarsia::attention {

template <DType kKeyType>
Status LaunchDecodeOf(const Params& p, const CudaContext& context, TileSize size, DecodeRows rows) {
  return DecodeDims::Dispatch(std::max(p.head_dim, p.cache.v_head_dim), [&]<int kD>() -> Status {
    if constexpr (kKeyType != kF32) {
      if (size == TileSize::kLarge && decode::IsPlain(p, rows, ShapeOf(p))) {
        using One = decode::ClusterConfig<kKeyType, kD, true>;
        if (decode::FitsCluster<One>(p, context))
          return decode::LaunchCluster<One>(p, context, rows);
        if constexpr (!IsFp8(kKeyType)) {  // else sequences would share a factor for Q
          using Several = decode::ClusterConfig<kKeyType, kD, false>;
          if (decode::FitsCluster<Several>(p, context))
            return decode::LaunchCluster<Several>(p, context, rows);
        }
      }
    }
    return DispatchTiles<decode::TileConfig, kKeyType, kD>(size, [&]<class S>() {
      if constexpr (kKeyType != kF32)  // whose kernel would spill registers
        if (decode::IsPlain(p, rows, ShapeOf(p)))
          return decode::LaunchShape<decode::PlainConfig<S>>(p, context, rows);
      return decode::LaunchShape<S>(p, context, rows);
    });
  });
}

}  // namespace intarsia::attention
