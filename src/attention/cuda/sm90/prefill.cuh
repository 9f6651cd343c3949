// The prefill kernel for Hopper: wgmma fed by TMA, after FlashAttention-3 (Shah et al. 2024,
// arXiv:2407.08608).
//
// A CTA stays on its multiprocessor and computes one task after another: a tile of packed rows of
// one KV head (tiles.h). It walks over the keys that some row of the tile sees, from right to left,
// in tiles. With x_ij = s_ij * log2(e), and s as in attention.h, each row keeps over the keys J
// seen so far a number m near the largest x_j, and
//   l = sum_{j in J} 2^(x_j - m),   o = sum_{j in J} 2^(x_j - m) v_j
// and in the end out = o / l, lse = (m + log2(l)) * ln(2).
//
// One warpgroup is the producer, of which three warps work (producer.cuh), in e4m3 four
// (transpose.cuh); the others are consumers of 64 rows each (consumer.cuh), which have tasks of few
// rows in a way of their own (few.cuh). If K and V are codes, further warps widen them (widen.cuh).
// What is left of tasks that were cut is added up in the end (combine.cuh). Of each tile of keys n:
//   producers        K_n and V_n to shared memory; the next task's tiles without a pause
//   tensor cores     S_n = Q K_n', then o += P_n+1 V_n+1, of one consumer at a time
//   that consumer    meanwhile m, l and P_n; then its o is scaled if m moved
//   the others       the same, a part of a tile later: the turns go round by named barriers, but
//                    for long rows of 16 bits (kTakesTurns)
#pragma once
#include <algorithm>
#include <array>
#include <bit>

#include "src/attention/cuda/sm90/consumer.cuh"
#include "src/attention/cuda/sm90/prefill.h"
#include "src/attention/cuda/sm90/producer.cuh"
#include "src/attention/cuda/sm90/transpose.cuh"
#include "src/attention/cuda/sm90/widen.cuh"
#include "src/attention/workspace.h"
#include "src/core/cuda/grid.cuh"
#include "src/core/cuda/launch.h"
#include "src/core/cuda/tensor_map.h"

namespace intarsia::attention::sm90 {

// All threads, in the end. Of pieces, if there are some, consumers make results.
template <class S>
__device__ __forceinline__ void CombineAllPieces(const Params& p, const LaunchPlan& plan,
                                                 const Shared<S>& shared, int warp) {
  if (!plan.pieces.data) return;
  cuda::BarrierSync(kEndBarrier, S::kThreads);  // warps without work may not know the slice yet
  if (shared.finder.slice.line.slices == 0) return;
  cuda::AwaitGrid();
  if (warp < 4 || warp / 4 > S::kConsumers) return;
#pragma unroll 1
  for (int place = 0; place < PieceRoom::kPlaces; ++place)
    CombinePieces<S::kDv>(p, plan.pieces, place, warp - 4, 4 * S::kConsumers);
}

// Grid: any; CTAs share the tasks. Where tasks may be cut, they have to be resident together.
template <class S, class T>
__global__ void __launch_bounds__(S::kThreads, 1)
    PrefillSm90Kernel(const __grid_constant__ Params p, const __grid_constant__ Maps maps,
                      const __grid_constant__ LaunchPlan plan) {
  static_assert(sizeof(Shared<S>) <= S::kSharedBytes);
  auto& shared = *reinterpret_cast<Shared<S>*>(cuda::DynamicShared());
  // The same in all lanes, and by this the compiler knows it.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  TaskProducer<S> tasks(p, plan, shared);
  if (warp == kTaskWarp) {
    cuda::AwaitPrevious();
    tasks.ProduceFirst();
  } else if (warp == kSliceWarp) {
    cuda::AwaitPrevious();
    TaskProducer<S>::FindOwnSlice(p, plan, shared);
  } else {
    if (warp == 0) {
      if (threadIdx.x == 0) shared.InitBarriers(kNarrowsQuery<S, T>);
      __syncwarp();
      cuda::BarrierArrive(kTaskBarrier, kTaskBarrierThreads);
    }
    if (threadIdx.x == 0) {
      cuda::PrefetchMap(maps.q);
      cuda::PrefetchMap(maps.k);
      cuda::PrefetchMap(maps.v);
    }
    if (warp >= 4 && warp / 4 <= S::kConsumers)
      ClearSpareRows<S>(shared, plan, static_cast<int>(threadIdx.x) - cuda::kWarpgroupThreads,
                        S::kConsumers * cuda::kWarpgroupThreads);
    cuda::AwaitPrevious();
    cuda::BarrierSync(kStartBarrier, S::kThreads - 64);
  }
  if (warp < 4) {
    cuda::ReleaseRegisters<S::kProducerRegisters>();
    if constexpr (S::kCodes) {
      if (warp == 0) CopyCodes<S, T>(p, maps, plan, shared);
      if (!S::kWidensApart && warp % 2) Widener<S, T>(p, plan, shared, warp / 2).Run();
    } else {
      if (warp == 0) ProduceKeys<S>(p, maps, plan, shared);
    }
    // Not earlier: a small kernel's CTAs would crowd where the first CTAs end.
    if (warp == 0) cuda::LetNextBegin();
    if (warp == kTaskWarp) tasks.ProduceOthers();
    if constexpr (S::kE4M3) {
      if (warp == 1) CopyValues<S>(p, maps, plan, shared);
      if (warp == 3) TransposeValues<S>(plan, shared);
    } else if constexpr (!S::kCodes) {
      if (warp == 1) ProduceValues<S>(p, maps, plan, shared);
    }
  } else if (S::kWidensApart && warp / 4 > S::kConsumers) {
    if constexpr (S::kWidensApart) {
      cuda::ReleaseRegisters<S::kWidenerRegisters>();
      Widener<S, T>(p, plan, shared, warp % 4).Run();
    }
  } else {
    cuda::TakeRegisters<S::kConsumerRegisters>();
    Consumer<S, T>(p, plan, shared, warp / 4 - 1).Run();
  }
  CombineAllPieces<S>(p, plan, shared, warp);
}

template <class S, class T>
inline const cuda::Kernel kKernel("PrefillSm90Kernel",
                                  reinterpret_cast<const void*>(&PrefillSm90Kernel<S, T>),
                                  S::kSharedBytes, cuda::kHopper);

inline Status MakeMaps(const Params& p, const LaunchPlan& plan, Maps& maps) {
  using cuda::MapAxis;
  const CacheView& c = p.cache;
  const std::array<MapAxis, 2> rows{{{p.num_heads, p.q_head_stride, plan.group},
                                     {p.num_tokens, p.q_token_stride, plan.tokens_per_tile}}};
  INTARSIA_RETURN_IF_ERROR(cuda::MakePanelMap(p.dtype, p.q, p.head_dim, rows, maps.q));
  const auto keys = [&](const CacheStrides& s) {
    return std::array<MapAxis, 4>{{{c.page_size, s.slot, plan.box_rows},
                                   {c.num_kv_heads, s.head},
                                   {c.num_pages, s.page},
                                   {c.num_layers, s.layer}}};
  };
  INTARSIA_RETURN_IF_ERROR(cuda::MakePanelMap(c.dtype, c.k, c.head_dim, keys(c.k_strides), maps.k,
                                              cuda::kPanelRowBytes));
  return cuda::MakePanelMap(c.dtype, c.v, c.v_head_dim, keys(c.v_strides), maps.v,
                            cuda::kPanelRowBytes);
}

inline int WindowOf(int64_t side) {
  return static_cast<int>(side < 0 ? kOpenWindow : std::min<int64_t>(side, kOpenWindow));
}

template <class S, class T>
Status LaunchShape(const Params& p, const CudaContext& context, const PrefillRows& rows) {
  const int64_t group = p.num_heads / p.num_kv_heads();
  const int tokens = TokensPerTile(S::kTileRows, static_cast<int>(group));
  const int64_t min_rows = rows.sharing.ctas ? 1 : std::max<int64_t>(rows.min_packed_rows, 1);
  const int64_t num_seqs = std::min(p.num_seqs, p.num_tokens * group / min_rows);
  // Each sequence has at most one tile that is not full. With padding rows, at least as many tiles
  // are left as would hold them.
  const int64_t row_tiles = (p.num_tokens + (num_seqs + rows.fill_padding) * (tokens - 1)) / tokens;
  // Of a cache of 50 or 60 MB, whose halves may both hold what all multiprocessors read; measured.
  const float section_bytes = 0.56f * static_cast<float>(context.device->l2_bytes);
  LaunchPlan plan{.section_bytes = section_bytes,
                  .group = static_cast<int>(group),
                  .tokens_per_tile = tokens,
                  .few_rows = S::kFewRows,
                  .window_left = WindowOf(p.window_left),
                  .window_right = WindowOf(p.window_right),
                  .box_rows = BoxRows(p.paged, p.cache.page_size, S::kTileKeys),
                  .box_shift = std::countr_zero(
                      static_cast<unsigned>(BoxRows(p.paged, p.cache.page_size, S::kTileKeys))),
                  .min_packed_rows = rows.min_packed_rows,
                  .sharing = rows.sharing,
                  .fill_padding = rows.fill_padding,
                  .token_tile = Divisor(tokens),
                  .page_size = Divisor(p.cache.page_size)};
  const bool cuts =
      rows.sharing.ctas == 0 && WantsPieces(p) && HasRoomForPieces(p, context.device->sms);
  if (cuts) plan.pieces = {p.workspace, {S::kTileRows, S::kDv}};
  Maps maps;
  INTARSIA_RETURN_IF_ERROR(MakeMaps(p, plan, maps));
  const int64_t sms = context.device->sms, tasks = row_tiles * p.num_kv_heads();
  const int64_t ctas = cuts ? sms : std::min(tasks, sms);
  plan.schedule = Schedule(static_cast<int>(row_tiles), static_cast<int>(p.num_kv_heads()),
                           static_cast<int>(std::max<int64_t>(ctas, 1)));
  plan.has_sections = tasks >= 2 * Schedule::kMinRounds * sms;
  const cuda::LaunchConfig config{.grid = {ctas},
                                  .block = dim3(S::kThreads),
                                  .shared_bytes = sizeof(Shared<S>),
                                  .overlaps_previous = true,
                                  .cooperative = cuts};
  return cuda::Launch(context, kKernel<S, T>, config, p, maps, plan);
}

// The compiled shapes, smallest first. The tile of keys is as long as registers and shared memory
// allow. At d=64 a third consumer keeps the exponentials going, which bound it; at larger ones it
// would have too few registers. In e4m3 and of codes, kOut is the results' type.
template <DType kOut>
Status LaunchE4M3Of(const Params& p, const CudaContext& context, const PrefillRows& rows) {
  using T = cuda::DeviceT<kOut>;
  if (std::max(p.head_dim, p.cache.v_head_dim) <= 64)
    return LaunchShape<Shape<64, 64, 128, 2, Operands::kE4M3>, T>(p, context, rows);
  return LaunchShape<Shape<128, 128, 128, 2, Operands::kE4M3>, T>(p, context, rows);
}
template <DType kOut>
Status LaunchCodesOf(const Params& p, const CudaContext& context, const PrefillRows& rows) {
  using T = cuda::DeviceT<kOut>;
  const auto launch = [&]<int kD, int kDv, int kKeys, int kConsumers>() {
    return LaunchShape<Shape<kD, kDv, kKeys, kConsumers, Operands::kCodes>, T>(p, context, rows);
  };
  const int64_t d = std::max(p.head_dim, p.cache.v_head_dim);
  if (d <= 64) return launch.template operator()<64, 64, 96, 3>();
  if (d <= 96) return launch.template operator()<96, 96, 128, 2>();
  if (d <= 128) return launch.template operator()<128, 128, 128, 2>();
  if (p.head_dim <= 192 && p.cache.v_head_dim <= 128)
    return launch.template operator()<192, 128, 96, 2>();
  if (d <= 192) return launch.template operator()<192, 192, 80, 2>();
  return launch.template operator()<256, 256, 64, 2>();
}
template <DType kType>
Status LaunchPrefillOf(const Params& p, const CudaContext& context, const PrefillRows& rows) {
  using T = cuda::DeviceT<kType>;
  const auto launch = [&]<class S>() { return LaunchShape<S, T>(p, context, rows); };
  const int64_t d = std::max(p.head_dim, p.cache.v_head_dim);
  if (d <= 64) return launch.template operator()<Shape<64, 64, 96, 3>>();
  if (d <= 96) return launch.template operator()<Shape<96, 96, 128, 2>>();
  if (d <= 128) return launch.template operator()<Shape<128, 128, 128, 2>>();
  if (p.head_dim <= 192 && p.cache.v_head_dim <= 128)
    return launch.template operator()<Shape<192, 128, 128, 2>>();
  if (d <= 192) return launch.template operator()<Shape<192, 192, 96, 2>>();
  return launch.template operator()<Shape<256, 256, 80, 2>>();
}

}  // namespace intarsia::attention::sm90
