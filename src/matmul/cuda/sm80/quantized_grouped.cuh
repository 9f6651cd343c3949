// Products of groups of rows, each with a matrix of its own in codes (matmul/quantized.h): the two
// kernels of quantized_launch.cuh and quantized_stream_kernel.cuh, with a CTA's rows and matrix
// found as those of grouped products are (units.cuh).
#pragma once
#include "src/activation/gating.cuh"
#include "src/matmul/cuda/choose.h"
#include "src/matmul/cuda/rows.cuh"
#include "src/matmul/cuda/sm80/quantized_launch.cuh"
#include "src/matmul/cuda/sm80/quantized_stream_kernel.cuh"

namespace intarsia::matmul {

// The matrix of a group, with its scales, zeros and bias; x, rows and out are those of all groups.
template <class S>
__device__ __forceinline__ QuantizedParams MatrixOf(const QuantizedGroupsParams& groups,
                                                    const QuantizedPlan& plan, int64_t group) {
  QuantizedParams p = groups.each;
  const int64_t factors = group * p.tiles * p.groups;
  p.packed += group * p.tiles * p.tile_bytes();
  p.scales.data = static_cast<const char*>(p.scales.data) + factors * plan.scale_bytes;
  if (p.zeros.data)
    p.zeros.data = static_cast<const char*>(p.zeros.data) + factors * plan.zero_bytes;
  for (Factors* const of : {&p.scales, &p.zeros})
    if (of->outer)
      of->outer = static_cast<const char*>(of->outer) + group * of->outer_bytes(p.tiles);
  if (p.bias) p.bias = static_cast<const typename S::T*>(p.bias) + group * p.n();
  return p;
}

// out = act(gate, up), from sums as StoreSums has them; columns of the CTA are gates and ups in
// turn, or tiles of gates and of ups. exists(row): as in StoreResult.
template <class S, class Exists>
__device__ __forceinline__ void StoreGates(const QuantizedParams& p, const QuantizedPlan& plan,
                                           const Gating& gating, const float* sums,
                                           int64_t first_column, Exists exists) {
  using T = typename S::T;
  const int columns = static_cast<int>(plan.cta_tiles() * kTileRows), pitch = columns + 1;
  const int half = columns / 2, n = static_cast<int>(p.n() / 2);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(p.m) * half;
       i += static_cast<int>(blockDim.x)) {
    const int row = i / half, in_cta = i % half, column = static_cast<int>(first_column) + in_cta;
    if (column >= n) continue;
    float both[2];
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int at =
          gating.in_turn ? 2 * in_cta + part : in_cta / 16 * 32 + part * 16 + in_cta % 16;
      float sum = 0.0f;
      for (int warp = 0; warp < plan.k_warps; ++warp)
        sum += sums[(warp * S::kRows + row) * pitch + at];
      if (!exists(row))
        sum = 0.0f;
      else if (p.bias)
        sum += cuda::ToFloat(
            static_cast<const T*>(p.bias)[gating.in_turn ? 2 * column + part : part * n + column]);
      both[part] = cuda::RoundTo<T>(sum);
    }
    static_cast<T*>(p.out)[int64_t{row} * n + column] =
        cuda::FromFloat<T>(cuda::Gate<T>(gating, both[0], both[1]));
  }
}

// CTAs of most warps that registers have room for: groups of a block take those of one.
template <class S, bool kStreams>
constexpr int MostTogether() {
  if constexpr (kStreams) return S::kGroups > 1 ? 1 : S::kMinBlocks;
  return S::kMinBlocks;
}

// kStreams: whether codes go past shared memory. Grid: as many tiles as groups can need, times
// tiles of columns.
template <class S, bool kStreams>
__global__ void __launch_bounds__(32 * kMostWarps, MostTogether<S, kStreams>())
    GroupedCodesKernel(const __grid_constant__ QuantizedGroupsParams groups,
                       const __grid_constant__ QuantizedPlan plan) {
  extern __shared__ __align__(128) char shared[];
  __shared__ Unit found;
  const QuantizedParams& each = groups.each;
  const int cta_tiles = static_cast<int>(plan.cta_tiles());
  const int column_tiles = CeilDiv(static_cast<int>(each.tiles), cta_tiles);
  // Columns of w that make one of the results.
  const int parts = each.gating.is_there ? 2 : 1;
  const int64_t n = each.n() / parts;
  const int columns = cta_tiles * static_cast<int>(kTileRows) / parts;
  cuda::AwaitPrevious();
  cuda::LetNextBegin();
  if (threadIdx.x < 32) {
    const UnitFinder<EqualTiles<S::kRows>, kTilesTogether> finder(groups.groups, column_tiles);
    const Unit unit = finder.Find(blockIdx.x);
    if (threadIdx.x == 0) found = unit;
  }
  __syncthreads();
  const Unit unit = found;
  if (unit.group < 0) {
    ClearRows(each.out, each.out_dtype, static_cast<int>(n), unit, unit.column_tile * columns,
              columns);
    return;
  }
  QuantizedParams p = MatrixOf<S>(groups, plan, unit.group);
  p.m = unit.rows;
  const int64_t first = unit.row * n;
  p.out = each.out_dtype == DType::kF32
              ? static_cast<void*>(static_cast<float*>(each.out) + first)
              : static_cast<void*>(static_cast<typename S::T*>(each.out) + first);
  const auto taken = [&](int row) { return RowTaken(each.rows, groups.x_rows, unit.row + row); };
  const auto row_of = [&](int row) {
    const int64_t from = taken(row);
    return from < 0 ? nullptr : static_cast<const typename S::T*>(each.x) + from * each.k;
  };
  const int64_t first_tile = int64_t{unit.column_tile} * cta_tiles;
  constexpr int kColumns = kStreams ? StreamStageColumns(S::kFormat) : kStageColumns;
  const int stages = CeilDiv(static_cast<int>(p.k), kColumns);
  float* sums;
  if constexpr (kStreams) {
    const CodesTask task{
        .packed = p.packed,
        .scales = p.scales,
        .zeros = p.zeros,
        .first_tile = first_tile,
        .rows = unit.rows,
        .begin = 0,
        .end = stages,
        .up_tiles = parts == 2 && !groups.each.gating.in_turn ? each.tiles / 2 : int64_t{0}};
    sums = MultiplyCodes<S>(p, plan, task, shared, row_of);
  } else {
    sums = MultiplyRing<S>(p, plan, unit.rows, first_tile, 0, stages, shared, row_of);
  }
  const auto exists = [&](int row) { return taken(row) >= 0; };
  if (parts == 2)
    StoreGates<S>(p, plan, groups.each.gating, sums, int64_t{unit.column_tile} * columns, exists);
  else
    StoreSums<S>(p, plan, sums, 0, first_tile * kTileRows, exists);
}

template <class S, bool kStreams>
inline const cuda::Kernel kGroupedCodesKernel(
    "GroupedCodesKernel", reinterpret_cast<const void*>(&GroupedCodesKernel<S, kStreams>),
    kMostSharedBytes);

template <class S, bool kStreams>
Status LaunchGroupedCodes(const QuantizedGroupsParams& p, const QuantizedPlan& plan,
                          const CudaContext& context) {
  const int64_t tiles = MostTiles(p.groups.m, p.groups.count, S::kRows);
  const cuda::LaunchConfig config{
      .grid = {tiles * CeilDiv(p.each.tiles, plan.cta_tiles())},
      .block = dim3(static_cast<unsigned>(32 * plan.tile_warps * plan.k_warps)),
      .shared_bytes = plan.shared_bytes,
      .overlaps_previous = p.await != Await::kNothing};
  return cuda::Launch(context, kGroupedCodesKernel<S, kStreams>, config, p, plan);
}

template <DType kType, Format kFormat, bool kWide>
Status LaunchGroupedStream(const QuantizedGroupsParams& p, const QuantizedPlan& plan,
                           const CudaContext& context) {
  constexpr auto kKernel = kWide ? QuantizedKernelKind::kWideStream : QuantizedKernelKind::kStream;
  using Few = StreamCodesConfig<kType, kFormat, kWide, 8>;
  using Many = StreamCodesConfig<kType, kFormat, kWide, StreamMostRows(kFormat, kKernel)>;
  return plan.shape.rows == 8 ? LaunchGroupedCodes<Few, true>(p, plan, context)
                              : LaunchGroupedCodes<Many, true>(p, plan, context);
}

template <DType kType, Format kFormat>
Status LaunchGroupedFormat(const QuantizedGroupsParams& p, const QuantizedPlan& plan,
                           const CudaContext& context) {
  if constexpr (kType != DType::kF32 && (BitsOf(kFormat) == 4 || BitsOf(kFormat) == 8)) {
    if (plan.kernel == QuantizedKernelKind::kStream)
      return LaunchGroupedStream<kType, kFormat, false>(p, plan, context);
    if constexpr (kFormat != Format::kE2M1) {
      if (plan.kernel == QuantizedKernelKind::kWideStream)
        return LaunchGroupedStream<kType, kFormat, true>(p, plan, context);
    }
  }
  if (plan.shape.rows == 8)
    return LaunchGroupedCodes<QuantizedConfig<kType, kFormat, true, 8, 1>, false>(p, plan, context);
  return LaunchGroupedCodes<QuantizedConfig<kType, kFormat, true, 32, 2>, false>(p, plan, context);
}

template <DType kType>
Status LaunchGroupedCodesOf(const QuantizedGroupsParams& p, const QuantizedPlan& plan,
                            const CudaContext& context) {
  return DispatchFormat(p.each.format, [&]<Format kFormat>() {
    return LaunchGroupedFormat<kType, kFormat>(p, plan, context);
  });
}

}  // namespace intarsia::matmul
