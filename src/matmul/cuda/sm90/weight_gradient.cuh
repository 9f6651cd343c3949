// The gradient of grouped products in their weights, for Hopper: wgmma fed by TMA,
//   out[g] = x[rows of g, :]^T d_out[rows of g, :].
//
// A CTA stays on its multiprocessor and computes one tile of a group's result after another. Both
// operands lie in shared memory as they do in memory, [rows, columns], and wgmma sums over their
// rows. Large groups come first, so that CTAs end together. The last rows of a group may fill a
// part of a step of 16: one warp clears the rest, which are rows of the next group, while the
// stages behind are on their way. Further steps are neither copied nor computed.
#pragma once
#include <algorithm>
#include <array>

#include "src/core/cuda/launch.h"
#include "src/core/cuda/tensor_map.h"
#include "src/core/cuda/wgmma.cuh"
#include "src/matmul/cuda/sm90/consumer.cuh"
#include "src/matmul/cuda/sm90/grouped.h"

namespace intarsia::matmul::sm90 {

// Of rows of a panel: a whole stage, or one step of it.
struct RowsMaps {
  CUtensorMap stage, step;
};
struct GradientMaps {
  RowsMaps x, d_out;
};

struct GradientTask {
  enum Kind { kEnd, kTile };
  Kind kind;
  int group, first_k, first_n;
  int row, rows;

  __device__ __forceinline__ int Stages() const { return (rows + kStageRows - 1) / kStageRows; }
  __device__ __forceinline__ bool HasTail() const { return rows % cuda::kWgmmaStep != 0; }
  // Steps of a stage, at most all that it has room for.
  __device__ __forceinline__ int Steps(int stage) const {
    const int left = rows - stage * kStageRows;
    return (min(left, kStageRows) + cuda::kWgmmaStep - 1) / cuda::kWgmmaStep;
  }
};

// Groups by their sizes, the largest first; as they are numbered where they are many.
struct GroupOrder {
  static constexpr int kMost = 256;
  int sizes[kMost];
  uint16_t at[kMost];

  // By all threads, which wait for each other before and behind it.
  __device__ __forceinline__ void LoadSizes(const GroupSizes& groups) {
    if (groups.count > kMost) return;
    for (int i = static_cast<int>(threadIdx.x); i < groups.count; i += kThreads) {
      const int64_t group = groups.Offset() + i;
      sizes[i] = group < 0 || group >= groups.all ? 0 : static_cast<int>(groups.SizeAt(group));
    }
  }
  __device__ __forceinline__ void Sort(const GroupSizes& groups) {
    const int count = static_cast<int>(groups.count);
    if (count > kMost) return;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      int rank = 0;
      for (int j = 0; j < count; ++j)
        rank += sizes[j] > sizes[i] || (sizes[j] == sizes[i] && j < i);
      at[rank] = static_cast<uint16_t>(i);
    }
  }
  __device__ __forceinline__ int GroupAt(const GroupSizes& groups, int64_t rank) const {
    return groups.count > kMost ? static_cast<int>(rank) : at[rank];
  }
};

struct alignas(cuda::kSwizzleAtomBytes) GradientShared {
  using S = GradientShape;
  static constexpr int kPanelBytes = kStageRows * cuda::kPanelRowBytes;
  static constexpr int kPanelsX = S::kRows / 64, kPanelsD = S::kColumns / 64;

  char operands[S::kStages][(kPanelsX + kPanelsD) * kPanelBytes];  // panels of x, then of d_out
  alignas(cuda::kSwizzleAtomBytes) char staged[S::kWarps][2][S::kStagedBytes];
  Ring<S::kStages> stages;
  cuda::Barrier landed[S::kStages];  // in the place of "full": tail i of all is number i of kStages
  Ring<kTasks> ring;
  GradientTask tasks[kTasks];
  GroupOrder order;
};

// A count of stages or tails, as a place in the ring of them.
struct GradientPlace {
  int index;
  uint32_t parity;
  __device__ __forceinline__ explicit GradientPlace(uint32_t count)
      : index(count % GradientShape::kStages), parity(count / GradientShape::kStages % 2) {}
};

__device__ __forceinline__ void FindTiles(const GroupedGradientParams& p, GradientShared& shared) {
  using S = GradientShape;
  const int k_tiles = (static_cast<int>(p.k) + S::kRows - 1) / S::kRows;
  const int n_tiles = (static_cast<int>(p.n) + S::kColumns - 1) / S::kColumns;
  const int64_t of_group = int64_t{k_tiles} * n_tiles;
  int64_t first = 0;  // of a round: a tile for each CTA, forward and back in turn
  bool forward = true;
  ProduceTasks(shared, [&] {
    GradientTask task{GradientTask::kEnd};
    const int64_t index = first + (forward ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
    if (const int64_t rank = index / of_group; rank < p.groups.count) {
      const int group = shared.order.GroupAt(p.groups, rank);
      const RowRange rows = FindGroup(p.groups, group);
      const auto tile = static_cast<int>(index - rank * of_group);
      task = {GradientTask::kTile,          group,
              tile % k_tiles * S::kRows,    tile / k_tiles * S::kColumns,
              static_cast<int>(rows.begin), static_cast<int>(rows.end - rows.begin)};
    }
    first += gridDim.x;
    forward = !forward;
    return [=](GradientTask& to) {
      if (threadIdx.x % 32 == 0) to = task;
      __syncwarp();
    };
  });
}

// Copies rows of a stage to its panels, each by the map of its operand.
__device__ __forceinline__ void CopyPanels(const CUtensorMap& x, const CUtensorMap& d_out,
                                           const GradientTask& task, int row, char* to,
                                           cuda::Barrier& full) {
  using Shared = GradientShared;
#pragma unroll
  for (int panel = 0; panel < Shared::kPanelsX + Shared::kPanelsD; ++panel) {
    const bool of_x = panel < Shared::kPanelsX;
    const int column =
        of_x ? task.first_k + 64 * panel : task.first_n + 64 * (panel - Shared::kPanelsX);
    const int32_t at[] = {column, row};
    cuda::CopyBox(to + panel * Shared::kPanelBytes, of_x ? x : d_out, at, full);
  }
}

__device__ __forceinline__ void CopyRowsOfGroups(const GradientMaps& maps, GradientShared& shared) {
  using Shared = GradientShared;
  constexpr int kStepBytes = cuda::kWgmmaStep * cuda::kPanelRowBytes;
  const bool elected = threadIdx.x % 32 == 0;
  uint32_t count = 0, tails = 0;
  ForEachTask(shared, [&](const GradientTask& task) {
    const GradientTask own = task;
    const int stages = own.Stages();
    for (int i = 0; i < stages; ++i, ++count) {
      const GradientPlace place(count);
      shared.stages.empty[place.index].Wait(place.parity ^ 1);
      if (!elected) continue;
      cuda::Barrier& full = i + 1 == stages && own.HasTail()
                                ? shared.landed[GradientPlace(tails).index]
                                : shared.stages.full[place.index];
      const int row = own.row + i * kStageRows, steps = own.Steps(i);
      char* const to = shared.operands[place.index];
      full.ArriveExpecting(steps * kStepBytes * (Shared::kPanelsX + Shared::kPanelsD));
      if (steps == kStageRows / cuda::kWgmmaStep) {
        CopyPanels(maps.x.stage, maps.d_out.stage, own, row, to, full);
        continue;
      }
#pragma unroll 1
      for (int step = 0; step < steps; ++step)
        CopyPanels(maps.x.step, maps.d_out.step, own, row + step * cuda::kWgmmaStep,
                   to + step * kStepBytes, full);
    }
    tails += own.HasTail();
  });
}

// Clears the rows behind the group's last, to the end of their step; a warp together. In both
// operands, since 0 times NaN or infinity is no 0.
__device__ __forceinline__ void ClearTails(GradientShared& shared) {
  using Shared = GradientShared;
  constexpr int kUnits = cuda::kPanelRowBytes / 16;
  uint32_t count = 0, tails = 0;
  ForEachTask(shared, [&](const GradientTask& task) {
    count += task.Stages();
    if (!task.HasTail()) return;
    const GradientPlace place(count - 1), tail(tails++);
    shared.landed[tail.index].Wait(tail.parity);
    const int begin = task.rows % kStageRows, rows = -begin & (cuda::kWgmmaStep - 1);
    auto* const units = reinterpret_cast<uint4*>(shared.operands[place.index]) + begin * kUnits;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < rows * kUnits; i += 32) {
#pragma unroll
      for (int panel = 0; panel < Shared::kPanelsX + Shared::kPanelsD; ++panel)
        units[panel * kStageRows * kUnits + i] = {};
    }
    cuda::FenceForAsyncReads();
    __syncwarp();
    if (threadIdx.x % 32 == 0) shared.stages.full[place.index].Arrive();
  });
}

// A warpgroup that computes 64 rows of each tile.
template <class T>
class GradientConsumer {
 public:
  __device__ __forceinline__ GradientConsumer(const GroupedGradientParams& p,
                                              GradientShared& shared, int number)
      : p_(p), shared_(shared), number_(number) {}

  __device__ __forceinline__ void Run() {
    ForEachTask(shared_, [&](const GradientTask& task) { Compute(task); });
  }

 private:
  using S = GradientShape;
  using Shared = GradientShared;
  using Sums = float[S::kColumns / 2];
  static constexpr int kSteps = kStageRows / cuda::kWgmmaStep;

  __device__ __forceinline__ void Compute(const GradientTask& task) {
    Sums sums;
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    // The last stage apart, if it has fewer steps.
    const int stages = (task.rows + cuda::kWgmmaStep - 1) / kStageRows, steps = task.Steps(stages);
#pragma unroll 1
    for (int i = 0; i < stages; ++i, ++count_) {
      Multiply<kSteps>(sums);
      cuda::WgmmaWait<1>();
      if (i > 0) Release(count_ - 1);
    }
    if (steps == 1) Multiply<1>(sums);
    if (steps == 2) Multiply<2>(sums);
    if (steps == 3) Multiply<3>(sums);
    cuda::WgmmaWait<0>();
    if (stages > 0) Release(count_ - 1);
    if (steps > 0) Release(count_++);
    if (p_.out_dtype == DType::kF32)
      StoreFloats(task, sums);
    else
      Store(task, sums);
  }

  // Stage count_, in flight afterwards.
  template <int kCount>
  __device__ __forceinline__ void Multiply(Sums& sums) const {
    const GradientPlace place(count_);
    shared_.stages.full[place.index].Wait(place.parity);
    const uint32_t stage = cuda::SharedAddress(shared_.operands[place.index]);
    cuda::WgmmaFence();
#pragma unroll
    for (int step = 0; step < kCount; ++step) {
      const uint32_t at = stage + cuda::RowStepBytes(step);
      cuda::Wgmma<S::kColumns>::template Shared<T, true, true, true>(
          sums, cuda::RowsSummed(at + number_ * Shared::kPanelBytes, kStageRows),
          cuda::RowsSummed(at + Shared::kPanelsX * Shared::kPanelBytes, kStageRows));
    }
    cuda::WgmmaCommit();
  }

  __device__ __forceinline__ void Release(uint32_t count) const {
    shared_.stages.Release(GradientPlace(count).index);
  }

  // A warp's 16 rows by way of shared memory, a panel at a time.
  __device__ __forceinline__ void Store(const GradientTask& task, const Sums& sums) const {
    using Rows = cuda::SwizzledRows<cuda::kPanelRowBytes>;
    constexpr int kPassRows = 32 / Rows::kUnits;
    const int warp = static_cast<int>(threadIdx.x) / 32 - 4, lane = threadIdx.x % 32;
    const int unit = lane % Rows::kUnits, lane_row = lane / Rows::kUnits;
    const int row = task.first_k + warp * 16 + lane_row;
    const int rows = static_cast<int>(p_.k) - row;  // of the result, from the lane's first one on
    T* const out = static_cast<T*>(p_.out) + (task.group * p_.k + row) * p_.n + unit * 8;
    __syncwarp();  // the last task's rows are read
#pragma unroll
    for (int panel = 0; panel < S::kColumns / 64; ++panel) {
      char* const staged = shared_.staged[warp][panel % 2];
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const float* const of_part = sums + panel * 32 + part * 8;
        const uint32_t pairs[4] = {
            ToPair<T>(of_part[0], of_part[1]), ToPair<T>(of_part[2], of_part[3]),
            ToPair<T>(of_part[4], of_part[5]), ToPair<T>(of_part[6], of_part[7])};
        cuda::StMatrix4(cuda::SharedAddress(staged) + Rows::Offset(lane % 16, 2 * part + lane / 16),
                        pairs);
      }
      __syncwarp();
      const int column = task.first_n + panel * 64;
      const bool has_column = column + unit * 8 < p_.n;
#pragma unroll
      for (int pass = 0; pass < 16 / kPassRows; ++pass) {
        if (has_column && pass * kPassRows < rows)
          *reinterpret_cast<uint4*>(out + pass * kPassRows * p_.n + column) =
              *reinterpret_cast<const uint4*>(staged +
                                              Rows::Offset(pass * kPassRows + lane_row, unit));
      }
    }
  }

  __device__ __forceinline__ void StoreFloats(const GradientTask& task, const Sums& sums) const {
    const int thread = static_cast<int>(threadIdx.x % cuda::kWarpgroupThreads);
#pragma unroll
    for (int i = 0; i < S::kColumns / 2; i += 2) {
      const int64_t row = task.first_k + number_ * 64 + cuda::AccumulatorRow(thread, i);
      const int64_t column = task.first_n + cuda::AccumulatorColumn(thread, i);
      if (row < p_.k && column < p_.n)
        *reinterpret_cast<float2*>(static_cast<float*>(p_.out) + (task.group * p_.k + row) * p_.n +
                                   column) = {sums[i], sums[i + 1]};
    }
  }

  const GroupedGradientParams& p_;
  GradientShared& shared_;
  const int number_;
  uint32_t count_ = 0;
};

// Grid: any; CTAs share the tiles.
template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    GroupedGradientSm90Kernel(const __grid_constant__ GroupedGradientParams p,
                              const __grid_constant__ GradientMaps maps) {
  static_assert(sizeof(GradientShared) <= GradientShape::kSharedBytes);
  extern __shared__ __align__(cuda::kSwizzleAtomBytes) char bytes[];
  auto& shared = *reinterpret_cast<GradientShared*>(bytes);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    shared.stages.Init(1, kConsumers);
    shared.ring.Init(32, 32 * (4 * kConsumers + 2));
    for (cuda::Barrier& landed : shared.landed) landed.Init(1);
    cuda::PublishBarriers();
    cuda::PrefetchMap(maps.x.stage);
    cuda::PrefetchMap(maps.d_out.stage);
  }
  shared.order.LoadSizes(p.groups);
  __syncthreads();
  shared.order.Sort(p.groups);
  __syncthreads();
  if (warp < 4) {
    cuda::ReleaseRegisters<kProducerRegisters>();
    if (warp == 0) CopyRowsOfGroups(maps, shared);
    if (warp == 1) FindTiles(p, shared);
    if (warp == 2) ClearTails(shared);
  } else {
    cuda::TakeRegisters<kConsumerRegisters>();
    GradientConsumer<T>(p, shared, warp / 4 - 1).Run();
  }
}

template <class T>
inline const cuda::Kernel kGradientKernel(
    "GroupedGradientSm90Kernel", reinterpret_cast<const void*>(&GroupedGradientSm90Kernel<T>),
    GradientShape::kSharedBytes, cuda::kHopper);

template <DType kType>
Status LaunchGroupedGradientOf(const GroupedGradientParams& p, const CudaContext& context) {
  using cuda::MapAxis;
  using S = GradientShape;
  GradientMaps maps;
  const auto make = [&](const void* data, int64_t columns, RowsMaps& to) -> Status {
    const std::array<MapAxis, 1> stage{{{p.groups.m, columns, kStageRows}}};
    const std::array<MapAxis, 1> step{{{p.groups.m, columns, cuda::kWgmmaStep}}};
    INTARSIA_RETURN_IF_ERROR(cuda::MakePanelMap(p.dtype, data, columns, stage, to.stage));
    return cuda::MakePanelMap(p.dtype, data, columns, step, to.step);
  };
  INTARSIA_RETURN_IF_ERROR(make(p.x, p.k, maps.x));
  INTARSIA_RETURN_IF_ERROR(make(p.d_out, p.n, maps.d_out));
  const int64_t tiles =
      p.groups.count * CeilDiv<int64_t>(p.k, S::kRows) * CeilDiv<int64_t>(p.n, S::kColumns);
  const int64_t ctas = std::min<int64_t>(tiles, context.device->sms);
  const cuda::LaunchConfig config{{ctas}, dim3(kThreads), S::kSharedBytes};
  return cuda::Launch(context, kGradientKernel<cuda::DeviceT<kType>>, config, p, maps);
}

}  // namespace intarsia::matmul::sm90
