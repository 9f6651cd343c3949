// A layer with weights in codes (matmul/quantized.h) for one row of x, or up to 8. One row it norms
// first where p.norm says so:
//   y = x, or round_T(x / sqrt(mean(x^2) + eps) norm.weight)
//   out[j] = sum_i y[i] w[j, i] + bias[j] + residual[j], or the product of gates and ups.
// Each warp has a tile of w, or a part of its columns (matmul/cuda/row_of_codes.cuh). Every CTA
// norms x for itself, while its first codes are on their way.
#pragma once
#include <bit>

#include "src/activation/gating.cuh"
#include "src/core/cuda/launch.h"
#include "src/core/cuda/ptx.cuh"
#include "src/core/cuda/rows.cuh"
#include "src/core/round.h"
#include "src/matmul/cuda/formats.h"
#include "src/matmul/cuda/quantized_store.cuh"
#include "src/matmul/cuda/row_of_codes.cuh"
#include "src/matmul/cuda/sm80/quantized.h"

namespace intarsia::matmul {

// All threads of a CTA put x there, normed by Weights. What a thread has of it stays in registers
// until the mean is known, but for long rows.
template <class Weight, class Product>
__device__ __forceinline__ void TakeNormed(const QuantizedParams& p, Product& product,
                                           const SharedRows& to, int pieces) {
  using T = typename Product::T;
  using Eight = typename Product::Eight;
  using Weights = cuda::Pack<Weight, 8>;
  constexpr int kKept = 2;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int end = static_cast<int>(p.k) / 8, beyond = thread + kKept * threads;
  const auto* const x = static_cast<const Eight*>(p.x);
  const auto* const weights = static_cast<const Weights*>(p.norm.weight);
  float squares = 0.0f;
  const auto add = [&](const Eight& eight) {
#pragma unroll
    for (const T& number : eight.at) squares += cuda::ToFloat(number) * cuda::ToFloat(number);
  };
  Eight kept[kKept];
  Weights of_kept[kKept];
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    const int piece = thread + j * threads;
    kept[j] = piece < end ? x[piece] : Eight{};
    of_kept[j] = piece < end ? weights[piece] : Weights{};
  }
#pragma unroll
  for (const Eight& eight : kept) add(eight);
#pragma unroll 1
  for (int piece = beyond; piece < end; piece += threads) add(x[piece]);
  const float mean = cuda::ReduceRow<cuda::Plus>(squares) / static_cast<float>(p.k);
  const float rstd = rsqrtf(mean + p.norm.eps);
  const auto store = [&](int piece, const Eight& eight, const Weights& of_eight) {
    cuda::Pack<float, 8> numbers;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      numbers.at[i] = cuda::ToFloat(eight.at[i]) * rstd * cuda::ToFloat(of_eight.at[i]);
    product.StorePiece(to, piece, pieces, cuda::FromFloats<T>(numbers));
  };
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    if (j * threads >= pieces) break;
    store(thread + j * threads, kept[j], of_kept[j]);
  }
#pragma unroll 1
  for (int piece = beyond; piece - thread < pieces; piece += threads)
    store(piece, piece < end ? x[piece] : Eight{}, piece < end ? weights[piece] : Weights{});
}

// The results of several rows. sum_of(tile of the CTA, row, column of the tile); tiles as they are
// cut below.
template <class T, class TileOf, class SumOf>
__device__ __forceinline__ void StoreFewRows(const QuantizedParams& p, int tiles, TileOf tile_of,
                                             SumOf sum_of) {
  constexpr int kTile = static_cast<int>(kTileRows);
  const int step = p.gating.is_there ? 2 : 1, couples = tiles / step;
  const int all = static_cast<int>(p.tiles), first = static_cast<int>(blockIdx.x) * tiles;
  for (int i = static_cast<int>(threadIdx.x); i < couples * kTile * static_cast<int>(p.m);
       i += static_cast<int>(blockDim.x)) {
    const int in_tile = i % kTile, tile = i / kTile % couples * step, row = i / kTile / couples;
    if (first + tile >= all) continue;
    const int column = tile_of(tile) * kTile + in_tile;
    const float sum = sum_of(tile, row, in_tile);
    if (!p.gating.is_there) {
      StoreResult<T>(p, row, column, sum, true);
      continue;
    }
    const auto rounded = [&](float number, int64_t of) {
      if (p.bias) number += cuda::ToFloat(static_cast<const T*>(p.bias)[of]);
      return cuda::RoundTo<T>(number);
    };
    const float gate = rounded(sum, column);
    const float up = rounded(sum_of(tile + 1, row, in_tile), p.n() / 2 + column);
    static_cast<T*>(p.out)[row * p.results() + column] =
        cuda::FromFloat<T>(cuda::Gate<T>(p.gating, gate, up));
  }
}

// 2^shift warps of a CTA share a tile; where there is a gating, its tiles are of gates and of their
// ups in turn. shape: of all columns. kRows: RowOfCodes'.
template <DType kType, Format kFormat, GroupEnds kEnds, int kRows>
__global__ void __launch_bounds__(32 * kMostRowWarps)
    RowOfCodesKernel(const __grid_constant__ QuantizedParams p,
                     const __grid_constant__ RowOfCodesShape shape, int shift) {
  using Product = RowOfCodes<kType, kFormat, kEnds, 1, kRows>;
  using T = typename Product::T;
  constexpr int kTile = static_cast<int>(kTileRows);
  __shared__ float sums[kMostRowWarps][1][kRows * kTile];
  // On every GPU: those of sm_86 have least.
  static_assert(sizeof sums + MostRowBytes(kRows) <= cuda::MostSharedBytes(86));
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const int parts = 1 << shift, tiles = static_cast<int>(blockDim.x / 32) >> shift;
  const int all = static_cast<int>(p.tiles);
  const auto tile_of = [&](int i) {
    const int at = static_cast<int>(blockIdx.x) * tiles + i;
    return min(p.gating.is_there ? at / 2 + at % 2 * (all / 2) : at, all - 1);
  };
  const SharedRows row(cuda::DynamicShared(), shape);
  Product product(p, shape, warp & (parts - 1), shift, row, Product::Row::kOfAll);
  product.PointAt(0, {tile_of(warp >> shift)});
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900  // where AwaitPrevious waits
  product.PrefetchCodes();
#endif
  cuda::AwaitPrevious();
  cuda::LetNextBegin();
  product.AskForFirst();
  const int mine = thread / kTile, column = tile_of(mine) * kTile + thread % kTile;
  const bool has_result = mine < tiles;
  // Asked for here, and converted when they are there.
  const auto added_of = [&](const void* numbers) {
    return has_result && numbers ? static_cast<const T*>(numbers)[column] : T{};
  };
  const T bias = added_of(p.bias), residual = added_of(p.residual);
  const int pieces = shape.units * kUnitPieces;
  product.TakeTogether([&] {
    if constexpr (kRows > 1)
      product.TakeRows(row, pieces, thread, static_cast<int>(blockDim.x));
    else if (!p.norm.weight)
      product.Take(row, 0, pieces, p.x, thread, static_cast<int>(blockDim.x));
    else if (p.norm.dtype == DType::kF32)
      TakeNormed<float>(p, product, row, pieces);
    else
      TakeNormed<T>(p, product, row, pieces);
  });
  typename Product::Results of_tile[1];
  product.Multiply(of_tile);
  StoreRowSums(of_tile, sums[warp]);
  __syncthreads();
  if constexpr (kRows > 1)
    return StoreFewRows<T>(p, tiles, tile_of, [&](int tile, int of_x, int in_tile) {
      float sum = 0.0f;
      for (int part = 0; part < parts; ++part)
        sum += sums[(tile << shift) + part][0][of_x * kTile + in_tile];
      return sum;
    });
  if (thread / 32 * 32 >= tiles * kTile) return;  // whole warps
  float sum = cuda::ToFloat(bias) + cuda::ToFloat(residual);
  for (int part = 0; has_result && part < parts; ++part)
    sum += sums[(mine << shift) + part][0][thread % kTile];
  const int at = static_cast<int>(blockIdx.x) * tiles + mine;
  if (!p.gating.is_there) {
    if (has_result && at < all) StoreSum<T>(p, column, sum);
    return;
  }
  const float gate = cuda::RoundTo<T>(sum), up = __shfl_xor_sync(0xffffffffu, gate, kTile);
  if (at % 2 == 0 && at < all)
    static_cast<T*>(p.out)[column] = cuda::FromFloat<T>(cuda::Gate<T>(p.gating, gate, up));
}

template <DType kType, Format kFormat, GroupEnds kEnds, int kRows>
inline const cuda::Kernel kRowOfCodesKernel(
    "RowOfCodesKernel",
    reinterpret_cast<const void*>(&RowOfCodesKernel<kType, kFormat, kEnds, kRows>),
    MostRowBytes(kRows));

template <DType kType>
Status LaunchRowOf(const QuantizedParams& params, const QuantizedPlan& plan,
                   const CudaContext& context) {
  const RowOfCodesShape shape = RowOfCodesShape::Of(params, 0, static_cast<int>(params.m));
  cuda::LaunchConfig config = ConfigOf(params, plan);
  config.overlaps_previous = true;
  return DispatchStreamed(params.format, shape.ends, [&]<Format kFormat, GroupEnds kEnds>() {
    const int shift = std::countr_zero(static_cast<unsigned>(plan.k_warps));
    const auto launch = [&]<int kRows>() {
      return cuda::Launch(context, kRowOfCodesKernel<kType, kFormat, kEnds, kRows>, config, params,
                          shape, shift);
    };
    return plan.shape.rows == 1 ? launch.template operator()<1>()
                                : launch.template operator()<kMostRowsOfCodes>();
  });
}

}  // namespace intarsia::matmul
