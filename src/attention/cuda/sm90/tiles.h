// The arithmetic of the Hopper kernel's tiles: which rows, keys and boxes belong to which. Host and
// device, so that tests check it on a CPU.
#pragma once
#include <algorithm>
#include <cstdint>

#include "src/attention/prefill_line.h"
#include "src/core/cuda/device.h"

namespace intarsia::attention::sm90 {

inline constexpr int kMinBoxRows = 4;
// Of a task of few rows: at most so many, by so many consumers.
inline constexpr int kMostFewRows = 64, kFewConsumers = 2;
inline constexpr int kFewSlots = 2;  // for weights of tiles of keys

// What q, K and V are.
enum class Operands {
  k16Bits,  // all bf16, or all f16
  kE4M3,    // all e4m3, as they are multiplied; V comes raw, and is transposed (transpose.cuh)
  kCodes,   // q of 16 bits; K and V come as codes of fp8, and are widened to f16 (widen.cuh)
};

// How a kernel for head dims up to kHeadDim (q, K) and kValueDim (V, out) cuts its work. K and V
// lie in shared memory as panels (wgmma_layout.h), and head dims are filled up to whole panels.
template <int kHeadDim, int kValueDim, int kKeys, int kWarpgroups,
          Operands kOperands = Operands::k16Bits>
struct Shape {
  static constexpr int kD = kHeadDim, kDv = kValueDim;
  static constexpr bool kE4M3 = kOperands == Operands::kE4M3;
  static constexpr bool kCodes = kOperands == Operands::kCodes;
  static constexpr bool kScaled = kE4M3 || kCodes;  // K and V have scales
  // Of an element as it is multiplied, and of K and V as they are copied.
  static constexpr int kBytes = kE4M3 ? 1 : 2, kCopiedBytes = kScaled ? 1 : 2;
  static constexpr int kPanelColumns = 128 / kBytes, kCopiedColumns = 128 / kCopiedBytes;
  static constexpr int kTileKeys = kKeys;
  static constexpr int kConsumers = kWarpgroups;  // warpgroups of 64 rows each
  static constexpr int kTileRows = 64 * kConsumers;
  // Products of long rows of 16 bits take longer than their weights do: consumers need no turns.
  static constexpr bool kTakesTurns = kD <= 128 || kOperands != Operands::k16Bits;
  // Warps that widen codes: a warpgroup behind the consumers, or, where three of these leave it no
  // registers, two warps of the producers'.
  static constexpr bool kWidensApart = kCodes && kConsumers == 2;
  static constexpr int kWideners = kWidensApart ? 4 : kCodes ? 2 : 0;
  static constexpr int kWarpgroupsInAll = 1 + kConsumers + (kWidensApart ? 1 : 0);
  static constexpr int kThreads = 128 * kWarpgroupsInAll;
  static constexpr int kPanels = (kD * kBytes + 127) / 128;
  static constexpr int kValuePanels = (kDv * kBytes + 127) / 128;
  static constexpr int kQueryBytes = kTileRows * kPanels * 128;
  static constexpr int kKeyBytes = kTileKeys * kPanels * 128;
  static constexpr int kCopiedKeyPanels = (kD * kCopiedBytes + 127) / 128;
  static constexpr int kCopiedValuePanels = (kDv * kCopiedBytes + 127) / 128;
  static constexpr int kCopiedValueBytes = kTileKeys * kCopiedValuePanels * 128;
  // Transposed, a tile of V has a panel of kDv rows.
  static constexpr int kValueBytes = kE4M3 ? kDv * 128 : kTileKeys * kValuePanels * 128;
  // What tasks of few rows keep: the weights of kFewSlots tiles, of 128 bytes a key, and then sums.
  static constexpr int kFewWeightBytes = kE4M3 ? 0 : kFewSlots * kTileKeys * 128;
  static constexpr int kMostFewSumBytes = kMostFewRows * ((kDv + 63) / 64 * 64) * 4;
  static constexpr int kFewBytes = std::max(kFewWeightBytes, kMostFewSumBytes);
  static constexpr int kMaxSharedBytes = cuda::MostSharedBytes(cuda::kHopper);
  static constexpr int kControlBytes = 3072;
  // Tiles of V, and of K, in shared memory. Raw tiles are V's, of codes both K's and V's; two of
  // them suffice, and codes have up to four where there is room.
  static constexpr int kValueStages = 2, kMinRawStages = kScaled ? 2 : 0;
  static constexpr int kRawBytes = kCodes ? kTileKeys * kCopiedKeyPanels * 128 : kCopiedValueBytes;
  // Sums of o over many tiles of keys, in f32 (OutSums in fp8.cuh).
  static constexpr int kSumBytes = kE4M3 ? kTileRows * kDv * 4 : 0;
  static constexpr int kFp8Bytes = kMinRawStages * kRawBytes + kSumBytes;
  static constexpr int kKeyStages = kQueryBytes + kFewBytes + 3 * kKeyBytes +
                                                kValueStages * kValueBytes + kFp8Bytes +
                                                kControlBytes <=
                                            kMaxSharedBytes
                                        ? 3
                                        : 2;
  static constexpr int kFewestBytes =
      kQueryBytes + kKeyStages * kKeyBytes + kValueStages * kValueBytes + kFp8Bytes + kControlBytes;
  // Whether tasks of few rows have a place of their own. Else Q's has what they keep, and the next
  // Q comes later.
  static constexpr bool kFewApart = kFewestBytes + kFewBytes <= kMaxSharedBytes;
  static constexpr int kFewApartBytes = kFewApart ? kFewBytes : 0;
  static constexpr int kMoreRaw = (kMaxSharedBytes - kFewestBytes - kFewApartBytes) / kRawBytes;
  static constexpr int kRawStages = kMinRawStages + (!kCodes ? 0 : kMoreRaw < 2 ? kMoreRaw : 2);
  static constexpr int kSharedBytes =
      kFewestBytes + kFewApartBytes + (kRawStages - kMinRawStages) * kRawBytes;
  static_assert(!kE4M3 || (kFewApart && kDv * 256 <= kFewBytes && kTileKeys == 128 &&
                           kConsumers == 2 && kPanels == 1));
  // Weights lie in the rows of Q that such a task does not have, if not apart.
  static constexpr bool kFewFit =
      kFewApart || (kTileRows - kMostFewRows) * kPanels * 128 >= kFewWeightBytes;
  // Large head dims leave a consumer no registers for the sums of that many rows: ptxas would put
  // its products one after the other (C7512).
  static constexpr int kFewRows = kDv <= 128 && kFewFit   ? kMostFewRows
                                  : kDv <= 192 || !kCodes ? 32
                                                          : 8;
  static_assert(kFewRows * kValuePanels * 256 <= (kFewApart ? kFewBytes : kQueryBytes) &&
                kFewConsumers <= kConsumers);
  static_assert(kFewApart || kFewWeightBytes <= (kTileRows - kFewRows) * kPanels * 128);
  static_assert(kSharedBytes <= kMaxSharedBytes && kTileKeys % 16 == 0 && kD % 16 == 0);
  // Registers a thread, of 65536: multiples of 8. Producers have what their code needs.
  static constexpr int kProducerRegisters = kE4M3 || kConsumers == 3 ? 56 : kCodes ? 48 : 40;
  static constexpr int kWidenerRegisters = kWidensApart ? 48 : 0;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 152
                                            : kE4M3         ? 224
                                            : kCodes        ? 208
                                                            : 232;
  // What __launch_bounds__(kThreads, 1) gives a thread at the start. If consumers take more than
  // the others release, they wait forever.
  static constexpr int kRegistersAtStart = 65536 / kThreads / 8 * 8;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters + kWidenerRegisters <=
                kWarpgroupsInAll * kRegistersAtStart);
  static_assert(kProducerRegisters % 8 == 0 && kWidenerRegisters % 8 == 0 &&
                kConsumerRegisters % 8 == 0 && kConsumerRegisters <= 256);
  // Columns of o come from so many products: ptxas refuses one whose result alone needs more
  // registers than a thread has at the start.
  static constexpr int kOutParts = kDv / 2 < kRegistersAtStart ? 1 : 2;
  // A phase of a barrier counts fewer than 2^20 bytes, and a box has at most 256 rows.
  static_assert(kTileKeys <= 32 * kMinBoxRows);  // a lane of a warp copies a box
  static_assert(kTileKeys <= 128);               // OwnColumnsBelow has a bit for each
  static_assert(kQueryBytes < 1 << 20 && kKeyBytes < 1 << 20 && kTileKeys <= 256 &&
                kTileRows <= 256);
};

// A row tile holds whole tokens, each with the G query heads of a KV head: packed row
// token * G + g.
INTARSIA_HOST_DEVICE constexpr int TokensPerTile(int tile_rows, int group) {
  return tile_rows / group;
}

// Of transposed V in e4m3 (transpose.cuh): the row of a column, of 16. Even columns come first, so
// that the eight rows that a matrix of stmatrix has lie in different banks, and in an order such
// that a thread's columns of o are those that it has in 16-bit types (SortColumns in fp8.cuh).
INTARSIA_HOST_DEVICE constexpr int TransposedRow(int column) {
  return column % 2 * 8 + column / 2 % 4 * 2 + column / 8;
}

// Codes are widened eight rows at a time, in steps of a warp: as many as these rows have panels of
// f16. Each lane takes 16 codes, a unit of a raw panel, to two units of f16. The two steps of a
// pair of panels have four rows each: 8 lanes take a row of a raw panel, which becomes one of
// either panel. The step of the last one of an odd number of panels has all eight rows, of which 8
// lanes take the first 4 units of two, four rows apart.
//
// So that no two lanes want the same banks at once, some take the second half of their codes
// first: of two that are written together, in panels or rows, one does, and of two rows that are
// read together.
struct WideningLane {
  uint32_t read, write;  // bytes behind the panel's first of the eight rows; of the first half
  int panel;             // of a pair, that is written to
};
inline constexpr uint32_t kOtherHalfRead = 8, kOtherHalfWrite = 16;  // by ^
INTARSIA_HOST_DEVICE constexpr WideningLane WideningLaneOf(int lane, bool pair, int step) {
  const int part = lane / 4 % 2, half = part ^ (lane / 8 % 2);
  const int row = lane / 8 + 4 * (pair ? step : part), unit = lane % 4 + (pair ? 4 * part : 0);
  return {static_cast<uint32_t>(row * 128 + ((unit ^ row) << 4)) + half * kOtherHalfRead,
          static_cast<uint32_t>(row * 128 + (((lane % 4 * 2 + half) ^ row) << 4)), pair ? part : 0};
}
// How many times eight rows, of `own`, a lane loads ahead of its stores: as many as divide them,
// and take up to 16 registers, four a step.
INTARSIA_HOST_DEVICE constexpr int EightsAtOnce(int own, int steps) {
  int at_once = 1;
  for (int more = 2; more * steps <= 4; ++more)
    if (own % more == 0) at_once = more;
  return at_once;
}

// Rows of one box of K or V: the largest power of two that divides a page and a tile of keys, so
// that no box crosses either. Dense keys: the whole tile.
INTARSIA_HOST_DEVICE constexpr int BoxRows(bool paged, int64_t page_size, int tile_keys) {
  if (!paged) return tile_keys;
  const int64_t both = page_size | tile_keys;
  return static_cast<int>(both & -both);
}

// A token t of a sequence sees its keys [t + begin, t + end), as far as there are such. Windows are
// at most kOpenWindow, and tokens below len_q, so that nothing overflows.
struct Band {
  int begin = 0, end = 0;

  // Of token t, among len_k keys; may be empty, with end < begin.
  INTARSIA_HOST_DEVICE constexpr int BeginOf(int t) const { return t + begin > 0 ? t + begin : 0; }
  INTARSIA_HOST_DEVICE constexpr int EndOf(int t, int len_k) const {
    return t + end < len_k ? t + end : len_k;
  }
};
INTARSIA_HOST_DEVICE constexpr Band BandOf(int len_q, int len_k, int left, int right) {
  const int shift = len_k - len_q;
  return {shift - left, shift + 1 + (right < kOpenWindow ? right : kOpenWindow - 1)};
}

// Of a thread's columns of a tile of keys, 8 j and 8 j + 1 for each j, those below `column`: bit
// 2 j + e for column 8 j + e.
INTARSIA_HOST_DEVICE constexpr uint32_t OwnColumnsBelow(int column) {
  if (column <= 0) return 0;
  const int count = column / 8 * 2 + (column % 8 < 2 ? column % 8 : 2);
  return count < 32 ? (1u << count) - 1 : ~0u;
}

// The tiles of keys that a row tile computes, from the right to the left.
struct KeyTiles {
  int last_key = 0;  // the first key of the last tile
  int count = 0;
};
// Keys [begin, end) are visible. Tiles of a paged sequence begin at multiples of `tile_keys` of its
// slots, of which the first `lead` are no keys; so a tile's first key may be negative.
INTARSIA_HOST_DEVICE constexpr KeyTiles TilesOf(int begin, int end, int lead, int tile_keys) {
  if (end <= begin) return {};
  const int first = (begin + lead) / tile_keys, last = (end + lead - 1) / tile_keys;
  return {last * tile_keys - lead, last - first + 1};
}

// Tiles of keys that every row of a row tile sees whole: those with first keys in [begin, begin +
// span], of unsigned numbers so that one comparison says it.
struct ClearTiles {
  int begin = 0x7fffffff;  // of no tile
  uint32_t span = 0;

  INTARSIA_HOST_DEVICE constexpr bool Has(int first_key) const {
    return static_cast<uint32_t>(first_key) - static_cast<uint32_t>(begin) <= span;
  }
};
// All rows see keys [begin, end).
INTARSIA_HOST_DEVICE constexpr ClearTiles ClearTilesOf(int begin, int end, int tile_keys) {
  if (end - begin < tile_keys) return {};
  return {begin, static_cast<uint32_t>(end - begin - tile_keys)};
}

// Rows [0, head) and [tail, tail_end) of a tile of V hold what no row of the task sees, left of its
// window or outside of its sequence, and was copied.
struct StrayRows {
  int head = 0, tail = 0, tail_end = 0;
  INTARSIA_HOST_DEVICE constexpr bool any() const { return head > 0 || tail < tail_end; }
};
// `begin`: the first key that a row sees.
INTARSIA_HOST_DEVICE constexpr StrayRows StrayRowsOf(int first_key, int begin, int len_k,
                                                     int tile_keys, int box_rows) {
  StrayRows rows;
  if (first_key < begin) rows.head = begin - first_key;
  const int keys = len_k - first_key;  // boxes that begin behind them are not copied
  if (keys >= tile_keys) return rows;
  rows.tail = keys;
  rows.tail_end = (keys + box_rows - 1) / box_rows * box_rows;
  return rows;
}

// In which order a CTA computes the rounds of a section (Schedule): from a round on, and around.
// Memory bounds tasks of few rows, and the tensor cores the others. Where a batch has both, CTAs
// begin with different rounds, so that neither waits for the other.
struct RoundOrder {
  int rounds = 0, first = 0;

  RoundOrder() = default;  // that of the rounds
  INTARSIA_HOST_DEVICE constexpr RoundOrder(int count, int num_ctas, int cta)
      : rounds(count), first(cta * count / num_ctas) {}

  INTARSIA_HOST_DEVICE constexpr int At(int number) const {
    if (number >= rounds) return number;
    const int round = number + first;
    return round < rounds ? round : round - rounds;
  }
};

// The tasks of a launch, a row tile and a KV head each, and the order in which CTAs take them.
// Heads are cut into sections whose K and V stay in the L2 cache; in a section the heads of a row
// tile are neighbors, and row tiles get lighter. So every other round goes backward: what a CTA had
// too much of in one round, it has too little of in the next. A section ends with a round that may
// leave some CTAs idle, but its tasks are the lightest.
struct Schedule {
  int row_tiles = 0;                        // that the lengths may make, at most
  int num_kv_heads = 1, section_heads = 1;  // the latter divides the former
  int rounds = 0;                           // of a section; 0: no tasks
  Divisor kv_heads{1};                      // num_kv_heads
  static constexpr int kMinRounds = 8;      // of a section, if there are several

  Schedule() = default;
  // One section.
  constexpr Schedule(int tiles, int heads, int num_ctas)
      : row_tiles(tiles), num_kv_heads(heads), kv_heads(heads) {
    SetSections(heads, num_ctas);
  }
  INTARSIA_HOST_DEVICE constexpr void SetSections(int heads, int num_ctas) {
    section_heads = heads;
    rounds = (row_tiles * heads + num_ctas - 1) / num_ctas;
  }

  struct Task {
    enum Kind { kEnd, kNone, kTask } kind = kEnd;
    int row_tile = 0, kv_head = 0;
  };
  INTARSIA_HOST_DEVICE constexpr Task At(int round, int num_ctas, int cta,
                                         const RoundOrder& order = {}) const {
    if (rounds == 0) return {};
    const bool one = section_heads == num_kv_heads;  // section
    const int section = round < rounds ? 0 : one ? 1 : round / rounds;
    if (section * section_heads >= num_kv_heads) return {};
    const int within = order.At(round - section * rounds);
    const int index = within * num_ctas + (within % 2 ? num_ctas - 1 - cta : cta);
    if (index >= row_tiles * section_heads) return {Task::kNone};
    const int row_tile = one ? static_cast<int>(kv_heads.Divide(static_cast<uint32_t>(index)))
                             : index / section_heads;
    return {Task::kTask, row_tile, section * section_heads + index - row_tile * section_heads};
  }
};

// Heads of a section of that schedule: as many as have at most `bytes` of K and V, of `head_bytes`
// each, but enough for some rounds of tasks.
INTARSIA_HOST_DEVICE constexpr int SectionHeads(const Schedule& schedule, int num_ctas,
                                                float head_bytes, float bytes) {
  int heads = schedule.num_kv_heads;
  for (int fewer = heads - 1; fewer > 0 && static_cast<float>(heads) * head_bytes > bytes;
       --fewer) {
    if (schedule.num_kv_heads % fewer) continue;
    if (schedule.row_tiles * fewer < Schedule::kMinRounds * num_ctas) break;
    heads = fewer;
  }
  return heads;
}

}  // namespace intarsia::attention::sm90
