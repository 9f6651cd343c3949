// How the portable kernels cut their work: the sizes of their tiles, and what these take of shared
// memory. Pure numbers, so that the host chooses by them what the kernels are built with, and tests
// check them for GPUs that they do not have.
//
// kLarge tiles want the 164 KB of shared memory per multiprocessor that A100 has (decode's: the 228
// KB of H100, H200 and B200); kSmall ones live with the 100 KB of the others (99 KB per block):
// compute capabilities 8.6, 8.9 and 12.x. Where both fit, choose.cc says which pay.
#pragma once
#include <algorithm>

#include "src/attention/decode_plan.h"
#include "src/core/dispatch.h"

namespace intarsia::attention {

enum class TileSize { kLarge, kSmall };

// Static shared memory of a block of the forward pass's kernels that have tiles of these sizes, and
// of the gradient's: none has more (ptxas -v).
inline constexpr int kForwardStaticBytes = 384, kBackwardStaticBytes = 128;

// The head dims that a kernel is built for; each covers those below it.
template <int... kDims>
struct HeadDims {
  static constexpr int Covering(int64_t d) {
    int covering = 0;
    ((covering = covering == 0 && d <= kDims ? kDims : covering), ...);
    return covering;
  }
  template <class Fn>
  static Status Dispatch(int64_t d, Fn&& fn) {
    return DispatchInt<kDims...>("d", d, fn);
  }
};

// launch.operator()<Config>() with small tiles, where they are asked for and others than the large
// ones. Only such kernels are instantiated.
template <template <DType, int, TileSize> class Config, DType kType, int kDim, class Launch>
Status DispatchTiles(TileSize size, Launch&& launch) {
  using Large = Config<kType, kDim, TileSize::kLarge>;
  using Small = Config<kType, kDim, TileSize::kSmall>;
  if constexpr (Small::kTiles != Large::kTiles)
    if (size == TileSize::kSmall) return launch.template operator()<Small>();
  return launch.template operator()<Large>();
}

// Of an element of Q as it is multiplied: fp8 K and V are multiplied in f16.
constexpr int QueryBytes(DType key_type) { return key_type == kF32 ? 4 : 2; }

// ---------------------------------------------------------------------------- prefill

using PrefillDims16 = HeadDims<64, 96, 128, 192, 256>;
using PrefillDims = HeadDims<64, 128, 256>;  // of f32 and fp8
constexpr int PrefillDim(DType key_type, int64_t d) {
  return Bytes(key_type) == 2 ? PrefillDims16::Covering(d) : PrefillDims::Covering(d);
}

struct PrefillTiles {
  int warps;
  int row_blocks;   // of 16 rows, per warp
  int keys;         // of K, or of V, per tile
  int ctas_per_sm;  // resident ones that the kernel is built for
  int places = 3;   // in shared memory, for a tile of K or of V: 3 or 4
  bool operator==(const PrefillTiles&) const = default;

  constexpr int rows() const { return 16 * row_blocks * warps; }
};

// Two blocks of rows a warp halve what it reads from shared memory for each product, while their O,
// S and P still fit into its registers. Eight warps share the small tile of K, where two CTAs of
// four would not both be resident. Four places save the only CTA one barrier of two.
constexpr PrefillTiles PrefillTilesOf(DType key_type, int d, TileSize size) {
  const bool f32 = key_type == kF32, wide = d * QueryBytes(key_type) > 512;
  const int row_blocks = !f32 && d <= 128 ? 2 : 1;
  const PrefillTiles large = !f32 && !IsFp8(key_type) && d > 128
                                 ? PrefillTiles{8, row_blocks, 64, 1}
                                 : PrefillTiles{4, row_blocks, f32 ? 32 : 64, wide ? 1 : 2};
  if (size == TileSize::kLarge || d <= 64) return large;
  if (d == 128 && f32) return {8, row_blocks, 16, 1, 4};
  if (d <= 128 && IsFp8(key_type)) return {4, row_blocks, 32, 2};
  if (d <= 128) return {8, row_blocks, d == 96 ? 64 : 32, 1, 4};
  return {f32 ? 2 : 4, row_blocks, f32 ? 16 : 32, 1};
}

// Of a tile of K or V and of the bits that say which of its keys exist.
constexpr int PrefillPlaceBytes(DType key_type, int d, const PrefillTiles& tiles) {
  return tiles.keys * d * Bytes(key_type) + 128;
}
// Q, then the places for a tile of K or V.
constexpr int PrefillSharedBytes(DType key_type, int d, const PrefillTiles& tiles) {
  return tiles.rows() * d * QueryBytes(key_type) +
         tiles.places * PrefillPlaceBytes(key_type, d, tiles);
}

// ---------------------------------------------------------------------------- decode

using DecodeDims = HeadDims<64, 128, 256>;

struct DecodeTiles {
  int warps;
  int chunk_keys;   // that a warp loads and multiplies at a time
  int chunks;       // of K, and of V, in flight per warp
  int ctas_per_sm;  // resident ones that the kernel is built for
  bool operator==(const DecodeTiles&) const = default;
};

constexpr int DecodeQueryBytes(DType key_type, int d) {
  return decode::kTileRows * d * QueryBytes(key_type);
}

// As many chunks in flight as the share of a CTA has room for, with 1 KB for the system and 1 KB of
// static shared memory. Two CTAs, so that one reads while the other begins or merges an item; one
// where the multiprocessor has no room for two.
constexpr DecodeTiles DecodeTilesOf(DType key_type, int d, TileSize size) {
  const int sm_bytes = (size == TileSize::kLarge ? 228 : 100) * 1024;
  DecodeTiles tiles{.warps = d * Bytes(key_type) <= 512 ? 4 : 2,
                    .chunk_keys = IsFp8(key_type) ? 32 : 16,
                    .chunks = 0,
                    .ctas_per_sm = decode::kCtasPerSm};
  const int chunk_bytes = tiles.warps * 2 * tiles.chunk_keys * d * Bytes(key_type);
  for (;; --tiles.ctas_per_sm) {
    const int free_bytes = sm_bytes / tiles.ctas_per_sm - 2048 - DecodeQueryBytes(key_type, d);
    tiles.chunks = std::min(free_bytes / chunk_bytes, 4);
    if (tiles.chunks > 0) return tiles;
  }
}

// Q, then a ring of chunks of K and V for each warp.
constexpr int DecodeSharedBytes(DType key_type, int d, const DecodeTiles& tiles) {
  return DecodeQueryBytes(key_type, d) +
         tiles.warps * tiles.chunks * 2 * tiles.chunk_keys * d * Bytes(key_type);
}

// ---------------------------------------------------------------------------- gradient

using BackwardDims = HeadDims<32, 64, 96, 128, 192, 256>;

struct BackwardTiles {
  int key_warps;   // half of the warps: for P and dV; the others for dS and dK
  int key_blocks;  // of 16 keys, per warp
  int rows;        // of Q and dO
  int ctas_per_sm;
  bool operator==(const BackwardTiles&) const = default;

  constexpr int keys() const { return 16 * key_blocks * key_warps; }
};

// A warp has so many keys that dK or dV of them, 128 numbers per lane, and S or dP fit into its
// registers. Rows are as many as shared memory has room for twice, and such that dQ can be cut
// evenly.
constexpr BackwardTiles BackwardTilesOf(DType dtype, int d, TileSize size) {
  const bool f32 = dtype == kF32, small = size == TileSize::kSmall && d >= (f32 ? 128 : 96);
  const int key_blocks = !f32 && d <= 128 ? 2 : 1;
  if (!f32) {
    if (small) return {d == 256 ? 1 : 2, key_blocks, 32, 1};
    return {4, key_blocks, d == 256 ? 32 : 64, d == 32 ? 2 : 1};
  }
  if (small) return {d == 128 ? 2 : 1, 1, 16, 1};
  return {d > 128 || d == 96 ? 2 : 4, 1, d == 256 ? 16 : d == 32 ? 64 : 32, 1};
}

// K and V; two stages of Q and dO, of dS, and of 16 bytes per row; three of 4 bytes per row.
constexpr int BackwardSharedBytes(DType dtype, int d, const BackwardTiles& tiles) {
  const int bytes = Bytes(dtype);
  return (2 * tiles.keys() + 4 * tiles.rows) * d * bytes + 2 * tiles.keys() * tiles.rows * bytes +
         (2 * 16 + 3 * 4) * tiles.rows;
}

}  // namespace intarsia::attention
