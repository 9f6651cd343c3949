// How split-KV decode cuts a ragged batch into equal slices of work, but for calls of one tile of
// rows on GPUs with clusters (cuda/sm80/decode_cluster.cuh). Pure functions: the host sizes
// grid and workspace with them, the kernel computes its schedule with them, tests run them
// anywhere.
//
// An item is a tile of 16 packed query rows of one sequence (cuda/ragged.cuh says what packed is).
// Its keys count in granules. All items of the batch, laid end to end and each followed by
// kItemOverhead empty granules (what it costs to begin and to end an item, in granules' time), form
// the work line; slice i of the line is [i * payload, (i + 1) * payload). Every KV head has the
// same line, and a CTA computes one slice for one head: so all CTAs have the same amount to do,
// however skewed the lengths are, and those of neighboring heads read the same pages at the same
// time. Where a plain call (cuda/sm80/decode_plain.cuh) has few items of about one length, they are
// padded to one cost, a multiple of the slices' payload (EvenPieces). What a CTA computes of an
// item is a piece: final if the item lies in one slice, else a partial result that a second kernel
// combines.
//
// Sources: "Flash-Decoding for long-context inference" (Dao et al. 2023) for the split over keys,
// FlashMLA's tile scheduler (DeepSeek 2025) for slices that cross sequences.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

#include "src/core/checked.h"
#include "src/core/round.h"
#include "src/core/status.h"

namespace intarsia::attention::decode {

inline constexpr int kTileRows = 16;  // M of mma.sync
inline constexpr int kMinGranuleKeys = 16;
inline constexpr int kItemOverhead = 6;  // in granules
inline constexpr int kMinPayload = 4;  // in granules; below it, combining costs more than it saves
// The kernel counts granules in 32 bits.
inline constexpr int64_t kMaxLine = int64_t{1} << 30;
// CTAs on a multiprocessor: while one of them begins or merges an item, the other one still reads.
inline constexpr int kCtasPerSm = 2;
// Those of the largest GPU of today, all resident at once: a second wave would undo the balance.
inline constexpr int64_t kMaxCtas = 320;

// A sequence's share of the work line.
struct SequenceWork {
  int items = 0;      // of equal cost
  int granules = 0;   // of keys, of one item
  int item_cost = 0;  // at least granules + kItemOverhead
  constexpr int cost() const { return items * item_cost; }
};
constexpr SequenceWork WorkOfItems(int items, int granules) {
  return {items, granules, granules + kItemOverhead};
}

// Items of about the same cost are cut into as many pieces each, so that no slice has parts of two;
// no payload if they differ by too much.
struct EvenPieces {
  int payload = 0, pieces = 0;  // pieces: of an item
  constexpr int item_cost() const { return payload * pieces; }
};
// Of so many items in all, the largest of which costs `largest`.
constexpr EvenPieces EvenPiecesOf(int line, int items, int largest, int slices) {
  if (items == 0 || items > slices) return {};
  const unsigned pieces = static_cast<unsigned>(slices) / static_cast<unsigned>(items);
  const auto payload = static_cast<int>(CeilDiv(static_cast<unsigned>(largest), pieces));
  // Slices become longer by no more than an eighth, about what it takes to begin and to end one
  // more piece.
  const bool is_even = payload >= kMinPayload && int64_t{payload} * slices <= line + line / 8;
  return is_even ? EvenPieces{payload, static_cast<int>(pieces)} : EvenPieces{};
}

// Unsigned, since a device divides such numbers with fewer instructions.
constexpr int Payload(int line, int slices) {
  const int payload =
      static_cast<int>(CeilDiv(static_cast<unsigned>(line), static_cast<unsigned>(slices)));
  return payload < kMinPayload ? kMinPayload : payload;
}

// What a slice computes of one item.
struct Piece {
  int item = 0;  // of the sequence
  int granule_begin = 0, granule_end = 0;
  int end = 0;                     // where on the line the next piece begins
  int first_slice = 0, count = 1;  // all pieces of this item; none of them is empty if count > 1
};

// The piece at `position` of the line, in a sequence whose work begins at `sequence_begin`.
// Positions inside the empty granules behind an item give an empty piece.
constexpr Piece PieceAt(const SequenceWork& work, int sequence_begin, int position, int slice_end,
                        int payload) {
  const auto divide = [](int a, int b) {
    return static_cast<int>(static_cast<unsigned>(a) / static_cast<unsigned>(b));
  };
  Piece piece;
  if (work.items > 1) piece.item = divide(position - sequence_begin, work.item_cost);
  const int item_begin = sequence_begin + piece.item * work.item_cost;
  piece.end = std::min(item_begin + work.item_cost, slice_end);
  piece.granule_begin = std::min(position - item_begin, work.granules);
  piece.granule_end = std::min(piece.end - item_begin, work.granules);
  piece.first_slice = divide(item_begin, payload);
  piece.count =
      divide(item_begin + std::max(work.granules, 1) - 1, payload) - piece.first_slice + 1;
  return piece;
}

// What is known before a call: sizes of its arrays.
struct StaticShape {
  int64_t num_tokens = 0;    // t
  int64_t num_seqs = 0;      // b
  int64_t num_heads = 0;     // h
  int64_t num_kv_heads = 0;  // hk
  int64_t v_head_dim = 0;    // of V and out
  int64_t max_len_k = 0;
};

// A group of more than 16 heads makes several tiles of one token. They read the same keys, so they
// should do it at the same time: as if each tile had a KV head of its own. The number of such equal
// parts of a group, each of as many heads as a tile has rows or less. Parts of few heads would
// rather be tiles of several tokens.
constexpr int64_t HeadParts(int64_t group) {
  for (int64_t heads = kTileRows; heads >= kTileRows / 2; --heads)
    if (group > 0 && group % heads == 0) return group / heads;
  return 1;
}
constexpr StaticShape SplitHeads(StaticShape shape) {
  if (shape.num_kv_heads > 0) shape.num_kv_heads *= HeadParts(shape.num_heads / shape.num_kv_heads);
  return shape;
}

// What follows is for shapes whose heads are split.

// No lengths that fit into the shape make more items, or more granules.
constexpr int64_t MaxItems(const StaticShape& shape) {
  if (shape.num_kv_heads <= 0) return 0;
  // The sum of ceil(len_q * G / 16) over the sequences that have rows.
  return shape.num_tokens * (shape.num_heads / shape.num_kv_heads) / kTileRows +
         std::min(shape.num_seqs, shape.num_tokens);
}
constexpr int64_t MaxLine(const StaticShape& shape, int granule_keys) {
  return BoundedProduct(
      {MaxItems(shape), CeilDiv<int64_t>(shape.max_len_k, granule_keys) + kItemOverhead});
}

// Keys of a granule: few, so that slices are even, but more if the line could become too long.
constexpr int GranuleKeys(const StaticShape& shape) {
  int keys = kMinGranuleKeys;
  while (keys < kMaxLine / 2 && MaxLine(shape, keys) > kMaxLine) keys *= 2;
  return keys;
}

// Refuses what is too long a line even with the longest granules: each item costs kItemOverhead
// steps, whatever its keys.
inline Status FitLine(const StaticShape& shape) {
  // The last slice may end behind the line, by a granule for each slice of a grid.
  constexpr int64_t kLimit = 2 * kMaxLine - 65536;
  const int64_t line = MaxLine(shape, GranuleKeys(shape));
  if (line <= kLimit) return {};
  return Unimplemented(Text("cu_seqlens_q has ", shape.num_seqs, " sequences of ", shape.num_tokens,
                            " tokens in all, whose decoding may take ", line,
                            " steps, expected at most ", kLimit, " on GPUs"));
}

// Slices for each KV head if there may be as many CTAs.
constexpr int64_t NumSlices(int64_t num_kv_heads, int64_t ctas) {
  return std::max<int64_t>(ctas / std::max<int64_t>(num_kv_heads, 1), 1);
}

// How many CTAs are worth having; 1 means that nothing needs to be split.
constexpr int64_t MaxSplits(const StaticShape& shape) {
  const int64_t payloads = CeilDiv<int64_t>(MaxLine(shape, GranuleKeys(shape)), kMinPayload);
  const int64_t slices = std::min(payloads, NumSlices(shape.num_kv_heads, kMaxCtas));
  return slices <= 1 ? 1 : slices * shape.num_kv_heads;
}

// A piece in the workspace: its result [rows, dv], lse [rows] to base 2, and the record of its
// item.
struct PieceLayout {
  int64_t rows = 0;
  int64_t v_head_dim = 0;
  static constexpr int64_t kRecordFloats = 8;
  static constexpr int64_t kPiecesPerCta = 2;  // of an item begun earlier, and of one that goes on
  constexpr int64_t lse_offset() const { return rows * v_head_dim; }
  constexpr int64_t record_offset() const { return RoundUp<int64_t>(lse_offset() + rows, 4); }
  constexpr int64_t floats() const { return record_offset() + kRecordFloats; }
};

constexpr PieceLayout LayoutOfPieces(const StaticShape& shape) {
  const int64_t group = shape.num_kv_heads > 0 ? shape.num_heads / shape.num_kv_heads : 0;
  return {std::clamp<int64_t>(shape.num_tokens * group, 1, kTileRows), shape.v_head_dim};
}

// The f32 workspace of a call: [max_splits, floats of a CTA]. Splits the heads itself.
constexpr std::array<int64_t, 2> WorkspaceDims(const StaticShape& shape) {
  const StaticShape split = SplitHeads(shape);
  return {MaxSplits(split), PieceLayout::kPiecesPerCta * LayoutOfPieces(split).floats()};
}

}  // namespace intarsia::attention::decode
