// What the warps of a CTA share: tiles, the barriers around them, and the tasks.
#pragma once
#include "src/attention/cuda/paging.cuh"
#include "src/attention/cuda/sm90/combine.cuh"
#include "src/attention/cuda/sm90/tiles.h"
#include "src/core/cuda/tma.cuh"
#include "src/core/cuda/vec.cuh"
#include "src/core/cuda/wgmma_layout.h"

namespace intarsia::attention::sm90 {

struct Task {
  enum Kind { kEnd, kRows, kPadding };
  Kind kind = kEnd;
  Sequence sequence;
  int first_token = 0;  // of the row tile, within the sequence
  int kv_head = 0;
  KeyTiles keys;
  ClearTiles clear;
  int first_visible = 0;  // key, of some row
  bool alone = false;     // whether no other task of its sequence reads these keys
  // At most S::kFewRows rows, which the first kFewConsumers consumers compute together (few.cuh).
  bool few = false;
  int piece_place = -1;  // of this CTA, where a partial result goes; -1: the result is whole
  // kPadding: rows outside of all sequences, of which this task fills every step-th from first on.
  Padding padding;
  int first = 0, step = 1;
};

// Two warps find tasks from the kernel's begin on: one supposes that they are whole, and one finds
// whether they are (FindSlice). Until barriers in shared memory are there, they wait for each other
// and for the warp that makes them, and all others likewise, by named barriers.
inline constexpr int kTaskWarp = 2, kSliceWarp = 3;
inline constexpr int kStartBarrier = 0, kTaskBarrier = 8, kTaskBarrierThreads = 96;
// Named barriers of consumers: of one and the one before it, of the warps of one, and, for a task
// of few rows, of all at its end, and of the two then and at a slot for weights.
__device__ constexpr int TurnBarrier(int consumer) { return 1 + consumer; }
template <class S>
__device__ constexpr int OwnBarrier(int consumer) {
  return TurnBarrier(S::kConsumers) + consumer;
}
template <class S>
inline constexpr int kFewBarrier = 1 + 2 * S::kConsumers;
inline constexpr int kFewLeaveBarrier = 9, kFewFullBarrier = 10, kFewEmptyBarrier = 12;
inline constexpr int kEndBarrier = 14;
inline constexpr int kFewThreads = kFewConsumers * 128;

// What is left of the CTA's slice of the line of tasks, while there is one (prefill_line.h).
struct OwnSlice {
  Line line;
  int kv_head = 0, at = 0;  // where it goes on, in the line of that head
  int left = 0;             // of its cost
  int skipped = 0;          // by what it is shorter than others, as the last one is

  OwnSlice() = default;
  __device__ __forceinline__ OwnSlice(const Line& whole, int number) : line(whole) {
    if (line.slices == 0) return;
    kv_head = line.HeadOf(number);
    at = static_cast<int>(line.BeginOf(number) - int64_t{kv_head} * line.head);
    left = line.SizeOf(number);
    skipped = line.payload - left;
  }

  // The warp together, with what all lanes have read.
  __device__ __forceinline__ void Advance(int from, int rest, int head, int by) {
    const bool ends = from + by >= line.head;
    kv_head = ends ? head + 1 : head;
    at = ends ? 0 : from + by;
    left = rest - by;
  }
};

// What the warp that finds tasks keeps from one to the next; kSliceWarp finds the slice.
struct FinderState {
  OwnSlice slice;
  RoundOrder order;
};

// Passed to the kernel by value.
struct Maps {
  CUtensorMap q;  // panel, head, token
  CUtensorMap k;  // panel, slot, head, page, layer
  CUtensorMap v;  // likewise
};

struct LaunchPlan {
  Schedule schedule;          // one section, unless has_sections
  bool has_sections = false;  // section_heads is found on the device, from the lengths
  float section_bytes = 0;    // of K and V, at most
  int group = 1;              // G
  int tokens_per_tile = 1;    // of rows
  int few_rows = 0;           // as Shape::kFewRows
  int window_left = kOpenWindow, window_right = kOpenWindow;
  int box_rows = 1;   // of K and V
  int box_shift = 0;  // log2(box_rows), where a page may be missing
  int64_t min_packed_rows = 1;
  Sharing sharing;
  bool fill_padding = true;
  Pieces pieces;          // no data: no task is cut
  Divisor token_tile{1};  // tokens_per_tile
  Divisor page_size{1};
};

__device__ __forceinline__ Band BandOf(const Sequence& sequence, const LaunchPlan& plan) {
  return BandOf(sequence.tokens.size(), sequence.len_k, plan.window_left, plan.window_right);
}

// What e4m3 takes beyond the others: tiles of V as they are copied, and sums of o.
template <class S, bool kE4M3 = S::kE4M3>
struct Fp8Shared {};
template <class S>
struct alignas(cuda::kSwizzleAtomBytes) Fp8Shared<S, true> {
  char raw[S::kRawStages][S::kCopiedValueBytes];
  float4 sums[S::kConsumers][S::kDv / 8][128];  // by thread
};

// Whether q becomes f16 for products with codes (widen.cuh). T is that of q and results.
template <class S, class T>
inline constexpr bool kNarrowsQuery = S::kCodes && std::is_same_v<T, __nv_bfloat16>;

// What K and V in codes take: tiles as they are copied, and what is known of them and of Q.
template <class S, bool kCodes = S::kCodes>
struct RawTiles {};
template <class S>
struct RawTiles<S, true> {
  alignas(cuda::kSwizzleAtomBytes) char tiles[S::kRawStages][S::kRawBytes];
};
template <class S, bool kCodes = S::kCodes>
struct CodesShared {};
template <class S>
struct CodesShared<S, true> {
  cuda::Barrier q_landed;                 // Q in bf16, before it is full
  uint32_t boxes[S::kRawStages];          // of raw tiles of K, as in Shared
  float query_factor[4 * S::kConsumers];  // of scores of a consumer's warp, for what Q in f16 lacks
};

template <class S>
struct alignas(cuda::kSwizzleAtomBytes) Shared {
  alignas(cuda::kSwizzleAtomBytes) char q[S::kQueryBytes];
  alignas(cuda::kSwizzleAtomBytes) char k[S::kKeyStages][S::kKeyBytes];
  alignas(cuda::kSwizzleAtomBytes) char v[S::kValueStages][S::kValueBytes];
  [[no_unique_address]] RawTiles<S> raw;
  alignas(cuda::kSwizzleAtomBytes) char few[S::kFewApart ? S::kFewBytes : 16];
  [[no_unique_address]] Fp8Shared<S> fp8;

  // "full": written for the consumers; "empty": each consumer warp is done with Q or K, each
  // consumer warpgroup with V, each consumer warp and the producers of K and V with a task. In e4m3
  // all lanes of the warp that transposes V arrive: at "full" of V, and at "empty" of raw tiles. Of
  // codes each warp that widens them does, at "full" of K and V and at "empty" of raw tiles.
  cuda::Barrier q_full, q_empty;
  cuda::Barrier k_full[S::kKeyStages], k_empty[S::kKeyStages];
  cuda::Barrier v_full[S::kValueStages], v_empty[S::kValueStages];
  cuda::Barrier raw_full[S::kScaled ? S::kRawStages : 1], raw_empty[S::kScaled ? S::kRawStages : 1];
  cuda::Barrier v_landed;  // a tile of V that the producer has to clean before it is full
  static constexpr int kTasks = 2;
  cuda::Barrier task_full[kTasks], task_empty[kTasks];
  Task tasks[kTasks];
  FinderState finder;
  [[no_unique_address]] CodesShared<S> codes;
  uint32_t boxes[S::kKeyStages];  // bit i: whether box i of a tile of K exists
  // A task of few rows: of a slot's weights, whether bases rose with them, and what earlier sums
  // are to be multiplied by then; numbers of each warp and row; and bases, in the end. o lies in
  // few_sums(). In e4m3 few_of_warp[0] has l.
  bool few_raised[kFewSlots];
  float few_kept[kFewSlots][kMostFewRows], few_of_warp[4][kMostFewRows], few_base[kMostFewRows];
  __device__ __forceinline__ float* few_sums() {
    return reinterpret_cast<float*>(S::kFewApart ? few : q);
  }

  // By one thread, before any other uses them. `narrows_query`: as kNarrowsQuery.
  __device__ void InitBarriers(bool narrows_query) {
    const auto init = [](auto& full, auto& empty, int readers, int writers = 1) {
      for (int i = 0; i < static_cast<int>(sizeof full / sizeof full[0]); ++i) {
        full[i].Init(writers);
        empty[i].Init(readers);
      }
    };
    q_full.Init(narrows_query ? S::kWideners : 1);
    q_empty.Init(4 * S::kConsumers);
    v_landed.Init(1);
    init(k_full, k_empty, 4 * S::kConsumers, S::kCodes ? S::kWideners : 1);
    init(v_full, v_empty, S::kConsumers, S::kCodes ? S::kWideners : S::kE4M3 ? 32 : 1);
    if constexpr (S::kScaled) init(raw_full, raw_empty, S::kCodes ? S::kWideners : 32);
    if constexpr (S::kCodes) codes.q_landed.Init(1);
    for (int i = 0; i < kTasks; ++i) {
      task_full[i].Init(1);
      task_empty[i].Init(4 * S::kConsumers + (S::kCodes ? 1 + S::kWideners : S::kE4M3 ? 3 : 2));
    }
    cuda::PublishBarriers();
  }
};

// Rows of Q behind the last token of a tile, where G does not divide it: no copy writes them, and
// the tensor cores read them. By `threads`, of which this is number `thread`.
template <class S>
__device__ __forceinline__ void ClearSpareRows(Shared<S>& shared, const LaunchPlan& plan,
                                               int thread, int threads) {
  const int rows = plan.tokens_per_tile * plan.group;
  if (rows == S::kTileRows) return;
  constexpr int kUnits = cuda::kPanelRowBytes / 16;
  const int spare = (S::kTileRows - rows) * kUnits;
  for (int i = thread; i < S::kPanels * spare; i += threads) {
    const int panel = i / spare, unit = i - panel * spare;
    reinterpret_cast<uint4*>(shared.q)[(panel * S::kTileRows + rows) * kUnits + unit] = {};
  }
  cuda::FenceForAsyncReads();
}

}  // namespace intarsia::attention::sm90
