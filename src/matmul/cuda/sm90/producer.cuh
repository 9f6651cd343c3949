// The producers: one warp finds the tasks of its CTA, one has the copy engine fetch w, and x where
// its rows follow each other, two copy the rows of x that an index gathers.
#pragma once
#include "src/core/cuda/ptx.cuh"
#include "src/matmul/cuda/rows.cuh"
#include "src/matmul/cuda/sm90/shared.cuh"

namespace intarsia::matmul::sm90 {

inline constexpr int kGatherWarps = 2, kGatherThreads = 32 * kGatherWarps;
// Row tiles of a group whose CTAs follow each other: they share columns of w in the L2 cache.
inline constexpr int kRowTilesTogether = 16;

// Passed to the kernel by value.
struct Maps {
  CUtensorMap x;  // panel, row
  CUtensorMap w;  // panel, row, group
};

template <class S>
__device__ __forceinline__ void FindTasks(const GroupedParams& p, Shared<S>& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int column_tiles = (static_cast<int>(p.n) + S::kColumns - 1) / S::kColumns;
  const UnitFinder<typename S::Tiles, kRowTilesTogether> finder(p.groups, column_tiles);
  int64_t index = blockIdx.x;
  ProduceTasks(shared, [&] {
    const Unit unit = finder.Find(index);
    index += gridDim.x;
    constexpr int kRounds = (S::kRows + 31) / 32;
    int taken[kRounds];
    const bool gathers = p.rows.data && unit.group >= 0;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int row = 32 * i + lane;
      taken[i] = gathers && row < unit.rows ? static_cast<int>(RowTaken(p, unit.row + row)) : -1;
    }
    return [=](Task<S>& task) {
      if (lane == 0) {
        task.unit = unit;
        task.kind = unit.rows == 0   ? Task<S>::kEnd
                    : unit.group < 0 ? Task<S>::kZeros
                                     : Task<S>::kProduct;
      }
      if (gathers) {
#pragma unroll
        for (int i = 0; i < kRounds; ++i)
          if (32 * i + lane < S::kRows) task.taken[32 * i + lane] = taken[i];
      }
      __syncwarp();
    };
  });
}

// Rows of w in a copy where it is transposed: with gates those of one consumer, or its ups.
template <class S, bool kGated>
inline constexpr int kBoxColumns = kGated ? S::kColumns / (2 * S::kConsumers) : S::kColumns;

// kTransposed: w is [group, n, k], a panel has rows of n; otherwise [group, k, n], and a tile has a
// panel for each 64 columns. kGated: each consumer has its gates and then their ups, or both in
// turn, as they lie in w.
template <class S, bool kTransposed, bool kGated>
__device__ __forceinline__ void CopyWeights(const GroupedParams& p, const Maps& maps, char* w,
                                            const Unit& unit, int row, cuda::Barrier& full) {
  const int first_column = unit.column_tile * S::kColumns;
  if constexpr (kGated) {
    constexpr int kBox = kBoxColumns<S, true>;
    const int to_up = static_cast<int>(p.columns());
#pragma unroll
    for (int panel = 0; panel < S::kPanels; ++panel) {
#pragma unroll
      for (int i = 0; i < 2 * S::kConsumers; ++i) {
        const int column = p.gating.in_turn ? first_column + i * kBox
                                            : first_column / 2 + i / 2 * kBox + i % 2 * to_up;
        const int32_t at[] = {row + 64 * panel, column, unit.group};
        cuda::CopyBox(w + (panel * S::kColumns + i * kBox) * cuda::kPanelRowBytes, maps.w, at,
                      full);
      }
    }
    return;
  }
  constexpr int kCount = kTransposed ? S::kPanels : S::kColumns / 64;
  constexpr int kBytes = (kTransposed ? S::kColumns : S::kDepth) * cuda::kPanelRowBytes;
#pragma unroll
  for (int panel = 0; panel < kCount; ++panel) {
    const int32_t at[] = {kTransposed ? row + 64 * panel : first_column + 64 * panel,
                          kTransposed ? first_column : row, unit.group};
    cuda::CopyBox(w + panel * kBytes, maps.w, at, full);
  }
}

// copy_weights(to, unit, stage, full): of a stage, `weight_bytes`. Where rows of x come later than
// the weights (Await::kRows), weights of the first stages are in flight meanwhile.
template <class S, class CopyWeights>
__device__ __forceinline__ void CopyOperands(const GroupedParams& p, const CUtensorMap& map_of_x,
                                             Shared<S>& shared, int weight_bytes,
                                             CopyWeights copy_weights) {
  const bool elected = threadIdx.x % 32 == 0, gathers = p.rows.data;
  const int stages = StagesOf<S>(p);
  cuda::RingPlace<S::kStages> place;
  int awaited = p.await == Await::kRows ? min(S::kStages, stages) : 0;  // stages without x
  ForEachTask(shared, [&](const Task<S>& task) {
    if (task.kind != Task<S>::kProduct) return;
    const Unit unit = task.unit;
    const int boxes = gathers ? 0 : (unit.rows + S::kBoxRows - 1) / S::kBoxRows;
    constexpr int kBoxBytes = S::kBoxRows * cuda::kPanelRowBytes;
    for (int i = 0; i < stages; ++i, place.Next()) {
      shared.stages.empty[place.index].Wait(place.parity ^ 1);
      if (!elected) continue;
      cuda::Barrier& full = shared.stages.full[place.index];
      full.ArriveExpecting(weight_bytes + boxes * S::kPanels * kBoxBytes);
      copy_weights(shared.w[place.index], unit, i, full);
      if (i + 1 < awaited) continue;
      if (awaited > 0) cuda::AwaitPrevious();
      // The first task's stages are those of the ring, in order.
      for (int stage = awaited > 0 ? 0 : i; stage <= i; ++stage) {
        const int index = awaited > 0 ? stage : place.index;
        for (int box = 0; box < boxes; ++box) {
#pragma unroll
          for (int panel = 0; panel < S::kPanels; ++panel) {
            const int32_t at[] = {stage * S::kDepth + panel * kPanelDepth,
                                  unit.row + box * S::kBoxRows};
            cuda::CopyBox(
                shared.x[index] + panel * S::kRows * cuda::kPanelRowBytes + box * kBoxBytes,
                map_of_x, at, shared.stages.full[index]);
          }
        }
      }
      awaited = 0;
    }
  });
  cuda::AwaitPrevious();  // without a task, too: behind this kernel the one before it is done
}

// Gathered rows. `thread`: of those of all gathering warps. A stage is published when the next
// one's copies have been issued: nobody waits for copies that are fresh.
template <class S, class T>
__device__ __forceinline__ void GatherRows(const GroupedParams& p, Shared<S>& shared, int thread) {
  constexpr int kUnits = 8, kPassRows = kGatherThreads / kUnits;
  static_assert(S::Tiles::kStepRows % kPassRows == 0 && kPassRows % 8 == 0);
  const int unit = thread % kUnits, first_row = thread / kUnits;
  constexpr int kCopies = S::kRows / kPassRows;
  constexpr uint32_t kNone = 0xffffffff;
  const int stages = StagesOf<S>(p), k = static_cast<int>(p.k);
  const uint32_t offset = cuda::PanelOffset(S::kRows, first_row, unit * 8);
  cuda::RingPlace<S::kStages> place;
  cuda::AwaitPrevious();
  int before = -1;  // the stage to publish
  const auto publish = [&] {
    cuda::FenceForAsyncReads();
    __syncwarp();
    if (before >= 0 && threadIdx.x % 32 == 0) shared.stages.full[before].Arrive();
  };
  const auto publish_last = [&] {
    cuda::CpAsyncWait<0>();
    publish();
    before = -1;
  };
  ForEachTask(shared, [&](const Task<S>& task) {
    if (task.kind != Task<S>::kProduct) {
      publish_last();  // no stage follows to do it, and the next task waits for the consumers
      return;
    }
    const int copies = S::Tiles::Steps(task.unit.rows) * (S::Tiles::kStepRows / kPassRows);
    uint32_t from[kCopies];  // rows of x, in units of 16 bytes
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int taken = task.taken[i * kPassRows + first_row];
      from[i] = taken < 0 ? kNone : static_cast<uint32_t>(taken) * static_cast<uint32_t>(k / 8);
    }
    const uint4* x = static_cast<const uint4*>(p.x) + unit;
    for (int i = 0; i < stages; ++i, place.Next()) {
      shared.stages.empty[place.index].Wait(place.parity ^ 1);
#pragma unroll
      for (int panel = 0; panel < S::kPanels; ++panel, x += kUnits) {
        const uint32_t to = cuda::SharedAddress(shared.x[place.index]) + offset +
                            panel * S::kRows * cuda::kPanelRowBytes;
        const bool exists = i * S::kDepth + panel * kPanelDepth + unit * 8 < k;
#pragma unroll
        for (int copy = 0; copy < kCopies; ++copy) {
          if (copy >= copies) break;
          const bool valid = exists && from[copy] != kNone;
          cuda::CpAsync16(to + copy * kPassRows * cuda::kPanelRowBytes,
                          x + (valid ? from[copy] : 0), valid);
        }
      }
      cuda::CpAsyncCommit();
      cuda::CpAsyncWait<1>();
      publish();
      before = place.index;
    }
  });
  publish_last();
}

// What a kernel of groups does: its CTA's producers, and consume(number) by each consumer, which
// give a stage back by `releases` arrivals. prefetch(): of maps, by one thread; the others as
// CopyOperands has them.
template <class S, class T, class Prefetch, class CopyWeights, class Consume>
__device__ __forceinline__ void RunRoles(const GroupedParams& p, const CUtensorMap& map_of_x,
                                         Shared<S>& shared, int releases, int weight_bytes,
                                         Prefetch prefetch, CopyWeights copy_weights,
                                         Consume consume) {
  static_assert(sizeof(Shared<S>) <= S::kSharedBytes);
  // The same in all lanes, and by this the compiler knows it.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    const int gathering = p.rows.data ? kGatherWarps : 0;
    shared.stages.Init(1 + gathering, releases);
    shared.ring.Init(32, 32 * (4 * S::kConsumers + 1 + gathering));
    cuda::PublishBarriers();
    prefetch();
    cuda::PrefetchMap(map_of_x);
  }
  if (p.await != Await::kRows) cuda::AwaitPrevious();
  cuda::LetNextBegin();  // which finds room where a CTA of this one has ended
  __syncthreads();
  if (warp < 4) {
    cuda::ReleaseRegisters<S::kProducerRegisters>();
    if (warp == 0) CopyOperands(p, map_of_x, shared, weight_bytes, copy_weights);
    if (warp == 1) FindTasks<S>(p, shared);
    if (warp >= 2 && p.rows.data) GatherRows<S, T>(p, shared, static_cast<int>(threadIdx.x) - 64);
  } else {
    cuda::TakeRegisters<S::kConsumerRegisters>();
    consume(warp / 4 - 1);
  }
}

}  // namespace intarsia::matmul::sm90
