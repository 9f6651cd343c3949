// The stages of grouped_codes.cuh: what a CTA has of them in shared memory, and how they come
// there.
#pragma once
#include "src/core/cuda/tma.cuh"
#include "src/matmul/cuda/choose.h"
#include "src/matmul/cuda/rows.cuh"
#include "src/matmul/cuda/sm90/codes_boxes.cuh"
#include "src/matmul/cuda/sm90/shared.cuh"

namespace intarsia::matmul::sm90 {

template <DType kType_, Format kFormat_, GroupEnds kEnds, bool kInF16, QuantizedShape kShape>
struct GroupedCodesConfig
    : StageFactors<kFormat_, kEnds, kGroupsHopperWarps * kShape.tiles, kInF16> {
  using T = cuda::DeviceT<kType_>;
  static constexpr DType kType = kType_;
  static constexpr Format kFormat = kFormat_;
  static constexpr bool kWide = kEnds == GroupEnds::kEach128;
  static constexpr int kRows = kShape.rows;   // of x
  static constexpr int kEach = kShape.tiles;  // tiles of a warp
  static constexpr int kWarps = kGroupsHopperWarps, kTiles = kWarps * kEach;
  static constexpr int kCtas = GroupsHopperCtas(kShape, kFormat);  // of a multiprocessor
  static constexpr int kStages = GroupsHopperStages(kShape, kFormat);
  static constexpr int kThreads = 32 * (kWarps + 1);
  static constexpr int kBlocks = kStageColumns / static_cast<int>(kBlockColumns);
  static constexpr int kTileBoxes = TileBoxes(kFormat), kBoxBlocks = kBlocks / kTileBoxes;
  // Of rows of x in bytes, for the banks: of more than 4 bits ldmatrix reads them.
  static constexpr int kPitch = 2 * kStageColumns + (BitsOf(kFormat) > 4 ? 16 : 64);
};

template <class S>
struct alignas(128) GroupedCodesShared {
  struct Stage {
    alignas(128) char codes[S::kTileBoxes][S::kTiles][TileBoxBytes(S::kFormat)];
    // Scales, of tiles one after the other, then as StageFactors says.
    alignas(128) char factors[S::kFactorBytes];
    alignas(128) char x[S::kRows][S::kPitch];
  };
  Stage stages[S::kStages];
  Ring<S::kStages> of_stages;
  Ring<kTasks> ring;
  Task<S> tasks[kTasks];
};

// Finds tasks and copies their operands, by one warp.
template <class S>
class GroupedCodesProducer {
 public:
  __device__ __forceinline__ GroupedCodesProducer(const QuantizedGroupsParams& p,
                                                  const GroupedCodesMaps& maps,
                                                  const GroupedCodesCut& cut,
                                                  GroupedCodesShared<S>& shared)
      : p_(p),
        maps_(maps),
        cut_(cut),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x % 32)),
        awaited_(p.await == Await::kRows ? min(S::kStages, cut.stages) : 0) {}

  // As ProduceTasks, but a task's copies follow its publication. Copying within `find` took 3%
  // longer with few units.
  __device__ __forceinline__ void Run() {
    const UnitFinder<EqualTiles<S::kRows>, kTilesTogether> finder(p_.groups, cut_.column_tiles);
    const int64_t units = finder.Units();
    int64_t index = blockIdx.x;
    for (cuda::RingPlace<kTasks> at;; at.Next(), index += gridDim.x) {
      const bool ends = index >= units;
      const Unit unit = ends ? Unit{-1} : finder.Find(index);
      const bool has_row = unit.group >= 0 && lane_ < unit.rows;
      const int taken =
          has_row ? static_cast<int>(RowTaken(p_.each.rows, p_.x_rows, unit.row + lane_)) : -1;
      shared_.ring.empty[at.index].Wait(at.parity ^ 1);
      Task<S>& task = shared_.tasks[at.index];
      if (lane_ == 0) {
        task.unit = unit;
        task.kind = ends ? Task<S>::kEnd : unit.group < 0 ? Task<S>::kZeros : Task<S>::kProduct;
      }
      if (lane_ < S::kRows) task.taken[lane_] = taken;
      __syncwarp();
      shared_.ring.full[at.index].Arrive();
      if (ends) break;
      if (unit.group >= 0) CopyStages(unit, taken);
    }
    cuda::AwaitPrevious();  // without a task, too: behind this kernel the one before it is done
  }

 private:
  // A lane copies its row of x. Where rows come later than the weights (Await::kRows), weights of
  // the first stages are in flight meanwhile.
  __device__ __forceinline__ void CopyStages(const Unit& unit, int taken) {
    const int rows = __popc(__ballot_sync(0xffffffffu, taken >= 0));
    for (int i = 0; i < cut_.stages; ++i, place_.Next()) {
      shared_.of_stages.empty[place_.index].Wait(place_.parity ^ 1);
      __syncwarp();  // no lane falls behind by a phase
      if (lane_ == 0) {
        shared_.of_stages.full[place_.index].ArriveExpecting(cut_.StageBytes<S>() +
                                                             rows * RowBytes(i));
        CopyWeights(unit, i);
      }
      if (i + 1 < awaited_) continue;
      if (awaited_ > 0) {
        cuda::AwaitPrevious();
        // The first task's stages are those of the ring, in order.
        for (int stage = 0; stage < i; ++stage) CopyRow(taken, stage, stage);
        awaited_ = 0;
      }
      CopyRow(taken, i, place_.index);
    }
  }
  __device__ __forceinline__ void CopyRow(int taken, int stage, int place) {
    const auto* const x = static_cast<const typename S::T*>(p_.each.x) + stage * kStageColumns;
    if (taken >= 0)
      cuda::CopyBytes(shared_.stages[place].x[lane_], x + taken * p_.each.k, RowBytes(stage),
                      shared_.of_stages.full[place]);
  }
  __device__ __forceinline__ int RowBytes(int stage) const {
    return 2 * min(kStageColumns, static_cast<int>(p_.each.k) - stage * kStageColumns);
  }
  // Rows of x that there are not stay what they are: nobody reads their results.
  __device__ __forceinline__ void CopyWeights(const Unit& unit, int stage) {
    auto& to = shared_.stages[place_.index];
    CopyCodeBoxes<S>(p_.each, maps_, cut_, unit, stage,
                     {to.codes[0][0], to.factors, S::kBoxTiles * cut_.stage_scale_bytes},
                     shared_.of_stages.full[place_.index]);
  }

  const QuantizedGroupsParams& p_;
  const GroupedCodesMaps& maps_;
  const GroupedCodesCut& cut_;
  GroupedCodesShared<S>& shared_;
  const int lane_;
  int awaited_;  // stages without x
  cuda::RingPlace<S::kStages> place_;
};

}  // namespace intarsia::matmul::sm90
