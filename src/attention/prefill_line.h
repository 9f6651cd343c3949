// How the tasks of a launch are cut into equal slices, where whole tasks would leave CTAs idle: few
// rows over many keys, say. Pure functions, so that tests check them on a CPU.
//
// A task is a row tile of a sequence and a KV head. Its cost counts keys, and what its ends cost as
// keys. All tasks laid end to end, head after head, form a line; slice i is
//   [i * payload, (i + 1) * payload),
// and a CTA computes one slice. The tiles of keys of a task that lie in a slice are a piece. A task
// of several pieces leaves partial results, which CombinePieces adds up (combine.cuh).
//
// Source: FlashMLA's tile scheduler (DeepSeek 2025), as for decode (decode_plan.h).
#pragma once
#include <cstdint>

#include "src/core/divisor.h"

namespace intarsia::attention::sm90 {

inline constexpr int kLineTileKeys = 128;
// Of a task's two ends, of one of few rows, and of a piece beside the others of its task:
// estimates.
inline constexpr int kEndCost = 3 * kLineTileKeys, kFewEndCost = 2 * kLineTileKeys;
inline constexpr int kPieceCost = 4 * kLineTileKeys;
// A slice that is shorter costs more to combine than it saves.
inline constexpr int kMinSlice = 6 * kLineTileKeys;
// A cut leaves so many tiles on both sides, or is moved to the task's end.
inline constexpr int kMinPieceTiles = 2;
// Of a head's tasks, so that kernels count them in 32 bits.
inline constexpr int64_t kMaxHeadLine = int64_t{1} << 30;
// A side of a window that is no limit: counts of tokens and keys are no larger (kMaxCount).
inline constexpr int kOpenWindow = 1 << 30;

// The tasks of a sequence and a head: number t costs first + step * t.
struct LineTasks {
  int count = 0, first = 0, step = 0;

  INTARSIA_HOST_DEVICE constexpr int CostOf(int t) const { return first + step * t; }
  // In 32 bits if total() is below kMaxHeadLine.
  template <class Int = uint32_t>
  INTARSIA_HOST_DEVICE constexpr Int Before(int t) const {
    const Int n = static_cast<Int>(t);
    return n * static_cast<Int>(first) + n * (n - 1) / 2 * static_cast<Int>(step);
  }
  INTARSIA_HOST_DEVICE constexpr int64_t total() const { return Before<int64_t>(count); }
  // How many cost at least so much. `token_tile` divides by `step`, if that is not 0.
  INTARSIA_HOST_DEVICE constexpr int CountFrom(int cost, const Divisor& token_tile) const {
    if (cost <= first) return count;
    if (step == 0) return 0;
    const auto fewer = static_cast<int>(token_tile.Divide(static_cast<uint32_t>(cost - first - 1)));
    return fewer + 1 < count ? count - fewer - 1 : 0;
  }
  // The task at a position below total(), and that below kMaxHeadLine.
  INTARSIA_HOST_DEVICE constexpr int At(int position) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (Before(middle) <= static_cast<uint32_t>(position))
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
};

// What is known of a sequence: its tokens and keys, and its window. `token_tile` divides by
// tokens_per_tile. An estimate where a mask is not causal; results do not depend on it.
INTARSIA_HOST_DEVICE constexpr LineTasks LineTasksOf(int tokens, int len_k, int left, int right,
                                                     int tokens_per_tile, const Divisor& token_tile,
                                                     bool few) {
  if (tokens <= 0) return {};
  LineTasks tasks;
  tasks.count = static_cast<int>(token_tile.Divide(static_cast<uint32_t>(tokens - 1))) + 1;
  if (left == kOpenWindow && right == 0) {
    const int first = len_k - tokens + (tokens < tokens_per_tile ? tokens : tokens_per_tile);
    tasks.first = first > 0 ? first : 0;
    tasks.step = tokens_per_tile;
  } else {
    const uint32_t span = static_cast<uint32_t>(left) + static_cast<uint32_t>(right) + 1 +
                          static_cast<uint32_t>(tokens_per_tile);
    tasks.first = span < static_cast<uint32_t>(len_k) ? static_cast<int>(span) : len_k;
  }
  if (few) tasks.first /= 2;  // its tiles take half the time
  tasks.first += few ? kFewEndCost : kEndCost;
  return tasks;
}

// All tasks of a launch.
struct Line {
  int head = 0;  // the cost of a head's tasks
  int num_heads = 1;
  int slices = 0, payload = 0;  // no slices: tasks are whole

  INTARSIA_HOST_DEVICE constexpr int64_t BeginOf(int slice) const {
    return int64_t{slice} * payload;
  }
  // How much of the line a slice has.
  INTARSIA_HOST_DEVICE constexpr int SizeOf(int slice) const {
    const int64_t rest = int64_t{head} * num_heads - BeginOf(slice);
    return rest <= 0 ? 0 : rest < payload ? static_cast<int>(rest) : payload;
  }
  // The head in whose tasks a slice begins. (No 64-bit division, which takes hundreds of
  // instructions; a float's quotient is at most one off.)
  INTARSIA_HOST_DEVICE constexpr int HeadOf(int slice) const {
    const int64_t begin = BeginOf(slice);
    const int near = static_cast<int>(static_cast<float>(begin) / static_cast<float>(head));
    const int64_t at = begin - int64_t{near} * head;
    return at < 0 ? near - 1 : at < head ? near : near + 1;
  }
};

// ceil(x / n), if that is at most kMaxHeadLine, by floats like HeadOf.
INTARSIA_HOST_DEVICE constexpr int CeilDivWide(int64_t x, int n) {
  const float less = static_cast<float>(x) / static_cast<float>(n) * (1.0f - 0x1p-20f);
  const int near = static_cast<int>(less);
  const auto rest = static_cast<int>(x - int64_t{near} * n);
  return near + (rest + n - 1) / n;
}

// The line, if slices of it are better than whole tasks, for so many CTAs. `head`: the cost of a
// head's tasks; `longest`: a task's; `long_tasks`: how many of a head cost nearly as much.
INTARSIA_HOST_DEVICE constexpr Line DrawLine(int64_t head, int num_heads, int longest,
                                             int long_tasks, int ctas) {
  if (head <= 0 || head >= kMaxHeadLine) return {};
  const int64_t total = head * num_heads;
  if (total >= kMaxHeadLine * ctas) return {};
  int slices = ctas;
  if (total < int64_t{kMinSlice} * ctas) slices = static_cast<int>(total) / kMinSlice;
  if (slices < 1) slices = 1;
  const int payload = CeilDivWide(total, slices);
  const int64_t whole = int64_t{(long_tasks * num_heads + ctas - 1) / ctas} * longest;
  if (whole * 10 <= (int64_t{payload} + kPieceCost) * 11) return {};
  return {static_cast<int>(head), num_heads, slices, payload};
}

// Where a task of so many tiles of keys is cut. (Floats rather than 64-bit division, for which the
// kernel has no registers; all CTAs compute the same.)
class Cuts {
 public:
  INTARSIA_HOST_DEVICE constexpr Cuts(int cost, int tiles)
      : cost_(cost),
        tiles_(tiles),
        per_cost_(static_cast<float>(tiles) / static_cast<float>(cost)) {}

  // `offset` behind the task's beginning on the line.
  INTARSIA_HOST_DEVICE constexpr int At(int offset) const {
    if (offset <= 0) return 0;
    if (offset >= cost_) return tiles_;
    const int cut = static_cast<int>(static_cast<float>(offset) * per_cost_);
    if (tiles_ < 2 * kMinPieceTiles) return 2 * cut < tiles_ ? 0 : tiles_;
    if (cut < kMinPieceTiles) return 0;
    return tiles_ - cut < kMinPieceTiles ? tiles_ : cut;
  }

 private:
  int cost_, tiles_;
  float per_cost_;
};

// What a slice has of a task: tiles [begin, end) of its keys, counted from the left; perhaps none.
struct LinePiece {
  int begin = 0, end = 0;
  int first_slice = 0, count = 1;  // of all the slices from the first piece to the last
};

// `passed`: how far behind the task's beginning the slice begins; negative if it begins before.
INTARSIA_HOST_DEVICE constexpr LinePiece PieceOf(int payload, int slice, int passed, int cost,
                                                 int tiles) {
  const Cuts cuts(cost, tiles);
  LinePiece piece;
  piece.begin = cuts.At(passed);
  piece.end = cuts.At(passed + payload);
  int first = slice, begin = passed;  // of slice `first`
  while (cuts.At(begin) > 0) begin -= payload, --first;
  int last = slice, end = passed + payload;
  while (cuts.At(end) < tiles) end += payload, ++last;
  piece.first_slice = first;
  piece.count = last - first + 1;
  return piece;
}

// Partial results in the workspace: each slice has room for two, of a task that an earlier slice
// began (place 0), and of one that later slices go on with (place 1).
struct PieceRecord {
  int pieces = 0;  // of the task; fewer than 2: nothing to add up
  int first_slice = 0, first_token = 0, rows = 0, kv_head = 0;
  int tiles = 0;  // of the piece; 0: no result, but its slice adds up its share of the rows
  int unused[2] = {};
};
struct PieceRoom {
  int rows = 0, columns = 0;
  static constexpr int kPlaces = 2;
  INTARSIA_HOST_DEVICE constexpr int64_t lse_offset() const { return int64_t{rows} * columns; }
  INTARSIA_HOST_DEVICE constexpr int64_t record_offset() const { return lse_offset() + rows; }
  INTARSIA_HOST_DEVICE constexpr int64_t floats() const {
    return record_offset() + static_cast<int64_t>(sizeof(PieceRecord) / sizeof(float));
  }
};
// The largest that the tiles for such head dims (prefill.cuh) leave.
constexpr PieceRoom LargestPiece(int64_t head_dim, int64_t v_head_dim) {
  const int64_t d = head_dim > v_head_dim ? head_dim : v_head_dim;
  if (d <= 64) return {192, 64};
  return {128, d <= 128 || (head_dim <= 192 && v_head_dim <= 128) ? 128 : d <= 192 ? 192 : 256};
}
// A workspace has room for the pieces of so many CTAs.
inline constexpr int64_t kMaxLineCtas = 160;
// The slice's place for a piece.
INTARSIA_HOST_DEVICE constexpr int PlaceOfPiece(bool first) { return first ? 1 : 0; }

}  // namespace intarsia::attention::sm90
