// How the gradient's kernel (backward.cuh) cuts its work: sizes and places of tiles, and which
// tiles meet.
#pragma once
#include "src/attention/backward.h"
#include "src/attention/cuda/ragged.cuh"
#include "src/attention/cuda/sm80/tiles.h"
#include "src/core/cuda/mma.cuh"
#include "src/core/cuda/swizzle.cuh"
#include "src/core/round.h"

namespace intarsia::attention::backward {

// How a kernel for head dims up to kDim cuts its work.
template <DType kDType, int kDim, TileSize kSize>
struct TileConfig {
  static constexpr BackwardTiles kTiles = BackwardTilesOf(kDType, kDim, kSize);
  static constexpr DType kType = kDType;
  using T = cuda::DeviceT<kType>;
  using M = cuda::Mma<kType>;
  using Rows = cuda::SwizzledRows<static_cast<int>(sizeof(T)) * kDim>;
  static constexpr int kD = kDim;
  static constexpr bool kF32 = kType == DType::kF32;
  static constexpr int kKeyBlocks = kTiles.key_blocks;
  static constexpr int kWarpKeys = 16 * kKeyBlocks;
  static constexpr int kKeyWarps = kTiles.key_warps;
  static constexpr int kTileKeys = kWarpKeys * kKeyWarps;
  static constexpr int kTileRows = kTiles.rows;
  static_assert(kTileRows >= BackwardWorkspace::kMinTileRows);
  static constexpr int kWarps = 2 * kKeyWarps;  // half of them for P and dV, half for dS and dK
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kCopiedRows = kTileRows / kKeyWarps;  // by a warp
  static constexpr int kSteps = Rows::kRowBytes / 32;

  // dS lies in shared memory as [keys, rows].
  using ScoreRows = cuda::SwizzledRows<kTileRows* static_cast<int>(sizeof(T))>;
  // dQ of a tile is cut into row_warps x column_warps.
  static constexpr bool kTwoBlocks = kTileRows >= 32 && kD * (kTileRows / 32) % (16 * kWarps) == 0;
  static constexpr int kQueryBlocks = kTwoBlocks ? 2 : 1;  // of 16 rows, a warp
  static constexpr int kRowWarps = kTileRows / 16 / kQueryBlocks;
  static constexpr int kQueryColumns = kD / (kWarps / kRowWarps);
  static_assert(kQueryColumns % 16 == 0);

  // In shared memory: K, V, two stages of Q and dO, of dS and of RowInfo, three of its `row`.
  static constexpr int kKeyBytes = kTileKeys * Rows::kRowBytes;
  static constexpr int kRowBytes = kTileRows * Rows::kRowBytes;
  static constexpr int kStagesAt = 2 * kKeyBytes;
  static constexpr int kScoresAt = kStagesAt + 4 * kRowBytes;
  static constexpr int kScoreBytes = kTileKeys * ScoreRows::kRowBytes;
  static constexpr int kInfoAt = kScoresAt + 2 * kScoreBytes;

  using Scores = float[kKeyBlocks][kTileRows / 8][4];  // keys x rows
  using Sums = float[kKeyBlocks][kD / 8][4];           // keys x columns
};

// What the weights of a tile's rows need.
template <class S>
struct RowInfo {
  RowStats stats[S::kTileRows];  // of rows that do not exist: lse = inf
  int position[S::kTileRows];
  float slope[S::kTileRows];  // of alibi, times log2(e)
};
// Where rows lie in [t, h], or -1.
template <class S>
using RowIndices = int[S::kTileRows];

template <class S>
inline constexpr int kIndicesAt = S::kInfoAt + 2 * static_cast<int>(sizeof(RowInfo<S>));
template <class S>
inline constexpr int kSharedBytes = kIndicesAt<S> + 3 * static_cast<int>(sizeof(RowIndices<S>));

// ---------------------------------------------------------------------------- tiles

// A tile of keys under one KV head.
struct KeyTile {
  Sequence sequence;
  int first_key = 0, kv_head = 0;
};

// Finds tile number `index`, the first of a sequence first, since under a causal mask it has the
// most rows. False: there are not so many.
template <int kTileKeys>
__device__ __forceinline__ bool FindKeyTile(const Params& p, int index, KeyTile& tile) {
  const OwnedItem found = FindItem(
      p, index, [](const Sequence& sequence) { return CeilDiv(sequence.len_k, kTileKeys); });
  tile.sequence = found.sequence;
  tile.first_key = found.number * kTileKeys;
  return found.exists;
}

// The tiles of packed rows, counted within the sequence, of which some row sees a key of the tile.
template <class S>
__device__ __forceinline__ Range RowTilesOf(const Params& p, const KeyTile& tile) {
  const Sequence& s = tile.sequence;
  const RangeOf<int64_t> tokens =
      TokensThatSee(p, s, tile.first_key, min(tile.first_key + S::kTileKeys, s.len_k) - 1);
  const int64_t group = GroupSize(p);
  if (tokens.begin >= tokens.end) return {};
  return {static_cast<int>(tokens.begin * group / S::kTileRows),
          static_cast<int>(CeilDiv<int64_t>(tokens.end * group, S::kTileRows))};
}

// Which of the key tiles that have a part in dQ of a tile of rows this one is, counted from 0.
template <class S>
__device__ __forceinline__ int TurnOf(const Params& p, const KeyTile& tile, int row_tile) {
  int first = 0;
  if (p.window_left >= 0) {
    const int token = TokenOfRow(p, row_tile * S::kTileRows);
    first = max(VisibleKeys(p, tile.sequence, token).begin, 0) / S::kTileKeys;
  }
  return tile.first_key / S::kTileKeys - first;
}

// The tiles among those of which every row sees every key of the tile.
template <class S>
__device__ __forceinline__ Range WholeRowTiles(const Params& p, const KeyTile& tile) {
  const Sequence& s = tile.sequence;
  if (tile.first_key + S::kTileKeys > s.len_k) return {};
  // Rows that see the first key and the last.
  const RangeOf<int64_t> first = TokensThatSee(p, s, tile.first_key, tile.first_key);
  const int last_key = tile.first_key + S::kTileKeys - 1;
  const RangeOf<int64_t> last = TokensThatSee(p, s, last_key, last_key);
  const int64_t group = GroupSize(p), begin = max(first.begin, last.begin),
                end = min(first.end, last.end);
  // A tile that reaches beyond the sequence has whole rows and rows that do not exist.
  const int64_t end_row = end == s.tokens.size() ? end * group + S::kTileRows - 1 : end * group;
  return {static_cast<int>(CeilDiv<int64_t>(begin * group, S::kTileRows)),
          static_cast<int>(end_row / S::kTileRows)};
}

// What a warp knows of its CTA's work. Number i of what it does goes to place i % 2 or i % 3.
template <class S>
struct Frame {
  const BackwardParams& b;
  const KeyTile& tile;
  char* shared;
  bool aligned;
  int warp, lane;

  __device__ bool makes_weights() const { return warp < S::kKeyWarps; }
  __device__ int pair() const { return warp % S::kKeyWarps; }
  // The first is of K or Q, the second of V or dO: of which the warp's own product takes.
  __device__ int own() const { return makes_weights() ? 0 : 1; }
  __device__ char* keys(int which) const { return shared + which * S::kKeyBytes; }
  __device__ char* rows(int i, int which) const {
    return shared + S::kStagesAt + (2 * (i % 2) + which) * S::kRowBytes;
  }
  // dS of all keys; and the pair's own part, which first holds P.
  __device__ char* scores(int i) const { return shared + S::kScoresAt + i % 2 * S::kScoreBytes; }
  __device__ char* pair_scores(int i) const {
    return scores(i) + pair() * S::kWarpKeys * S::ScoreRows::kRowBytes;
  }
  __device__ RowInfo<S>& info(int i) const {
    return reinterpret_cast<RowInfo<S>*>(shared + S::kInfoAt)[i % 2];
  }
  __device__ RowIndices<S>& indices(int i) const {
    return reinterpret_cast<RowIndices<S>*>(shared + kIndicesAt<S>)[i % 3];
  }
  __device__ int num_rows() const { return tile.sequence.tokens.size() * GroupSize(b.forward); }
};

}  // namespace intarsia::attention::backward
