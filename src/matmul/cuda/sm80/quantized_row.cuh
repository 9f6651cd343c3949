// A layer with weights in codes (matmul/quantized.h) for one row of x, which it norms first where
// p.norm says so:
//   y = x, or round_T(x / sqrt(mean(x^2) + eps) norm.weight)
//   out[j] = sum_i y[i] w[j, i] + bias[j] + residual[j], or the product of gates and ups.
// Each warp has a tile of w, or a part of its columns (matmul/cuda/row_of_codes.cuh). Every CTA
// norms x for itself, while its first codes are on their way.
#pragma once
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

// How all threads of a CTA put x into shared memory. Each has pieces of 8 columns, `threads_`
// apart.
template <class Product>
class RowTaker {
 public:
  using T = typename Product::T;
  using Eight = typename Product::Eight;

  __device__ __forceinline__ RowTaker(const QuantizedParams& p, const Product& product)
      : p_(p),
        product_(product),
        k_(static_cast<int>(p.k)),
        threads_(static_cast<int>(blockDim.x)) {}

  __device__ __forceinline__ void TakePlain(const SharedRow& to) const {
    constexpr int kBatch = 4;
#pragma unroll 1
    for (int first = Thread(); first - Thread() < Pieces(); first += kBatch * threads_) {
      Eight eight[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) eight[j] = Load(p_.x, first + j * threads_);
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        product_.StorePiece(to, first + j * threads_, Pieces(), eight[j]);
    }
    __syncthreads();
  }

  // `wide`: room for k floats, where each thread finds again what it put there. Weight: of the
  // norm.
  template <class Weight>
  __device__ __forceinline__ void TakeNormed(const SharedRow& to, float* wide) const {
    using Floats = cuda::Pack<float, 8>;
    constexpr int kBatch = 2;
    float squares = 0.0f;
#pragma unroll 1
    for (int first = Thread(); 8 * first < k_; first += kBatch * threads_) {
      Eight eight[kBatch];
      cuda::Pack<Weight, 8> weights[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        eight[j] = Load(p_.x, first + j * threads_);
        weights[j] = Load<Weight>(p_.norm.weight, first + j * threads_);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        Floats numbers = cuda::ToFloats(eight[j]);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          squares += numbers.at[i] * numbers.at[i];
          numbers.at[i] *= cuda::ToFloat(weights[j].at[i]);
        }
        const int column = 8 * (first + j * threads_);
        if (column < k_) *reinterpret_cast<Floats*>(wide + column) = numbers;
      }
    }
    const float mean = cuda::ReduceRow<cuda::Plus>(squares) / static_cast<float>(k_);
    const float rstd = rsqrtf(mean + p_.norm.eps);
#pragma unroll 1
    for (int piece = Thread(); piece - Thread() < Pieces(); piece += threads_) {
      Floats numbers{};
      if (8 * piece < k_) numbers = *reinterpret_cast<const Floats*>(wide + 8 * piece);
#pragma unroll
      for (float& number : numbers.at) number *= rstd;
      product_.StorePiece(to, piece, Pieces(), cuda::FromFloats<T>(numbers));
    }
    __syncthreads();
  }

 private:
  static __device__ __forceinline__ int Thread() { return static_cast<int>(threadIdx.x); }
  // With zeros up to a whole unit.
  __device__ __forceinline__ int Pieces() const {
    return (k_ + 8 * kUnitPieces - 1) / (8 * kUnitPieces) * kUnitPieces;
  }
  template <class Number = T>
  __device__ __forceinline__ cuda::Pack<Number, 8> Load(const void* from, int piece) const {
    using Numbers = cuda::Pack<Number, 8>;
    return 8 * piece < k_ ? static_cast<const Numbers*>(from)[piece] : Numbers{};
  }

  const QuantizedParams& p_;
  const Product& product_;
  int k_, threads_;
};

// 2^shift warps of a CTA share a tile; where there is a gating, its tiles are of gates and of their
// ups in turn. shape: of all columns.
template <DType kType, Format kFormat, bool kWide>
__global__ void __launch_bounds__(32 * kMostRowWarps)
    RowOfCodesKernel(const __grid_constant__ QuantizedParams p,
                     const __grid_constant__ RowOfCodesShape shape, int shift) {
  using Product = RowOfCodes<kType, kFormat, kWide, 1>;
  using T = typename Product::T;
  constexpr int kTile = static_cast<int>(kTileRows);
  __shared__ float sums[kMostRowWarps][kTile];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int parts = 1 << shift, tiles = static_cast<int>(blockDim.x / 32) >> shift;
  const int all = static_cast<int>(p.tiles);
  const auto tile_of = [&](int i) {
    const int at = static_cast<int>(blockIdx.x) * tiles + i;
    return min(p.gating.is_there ? at / 2 + at % 2 * (all / 2) : at, all - 1);
  };
  auto* const wide = reinterpret_cast<float*>(cuda::DynamicShared() + shape.bytes);
  const SharedRow row(cuda::DynamicShared(), shape);
  Product product(p, shape, warp & (parts - 1), shift, row, true);
  cuda::AwaitPrevious();
  cuda::LetNextBegin();
  product.AskForCodes(0, {tile_of(warp >> shift)});
  const int mine = thread / kTile, column = tile_of(mine) * kTile + thread % kTile;
  const bool has_result = mine < tiles;
  const float added = has_result ? AddedTo<T>(p, 0, column, true) : 0.0f;
  const RowTaker<Product> taker(p, product);
  if (!p.norm.weight)
    taker.TakePlain(row);
  else if (p.norm.dtype == DType::kF32)
    taker.template TakeNormed<float>(row, wide);
  else
    taker.template TakeNormed<T>(row, wide);
  float2 of_tile[1];
  product.Multiply(of_tile);
  if (lane % 4 == 0) reinterpret_cast<float2*>(sums[warp])[lane / 4] = of_tile[0];
  __syncthreads();
  if (thread / 32 * 32 >= tiles * kTile) return;  // whole warps
  float sum = added;
  for (int part = 0; has_result && part < parts; ++part)
    sum += sums[(mine << shift) + part][thread % kTile];
  const int at = static_cast<int>(blockIdx.x) * tiles + mine;
  if (!p.gating.is_there) {
    if (has_result && at < all) StoreSum<T>(p, column, sum);
    return;
  }
  const float gate = cuda::RoundTo<T>(sum), up = __shfl_xor_sync(0xffffffffu, gate, kTile);
  if (at % 2 == 0 && at < all)
    static_cast<T*>(p.out)[column] = cuda::FromFloat<T>(cuda::Gate<T>(p.gating, gate, up));
}

template <DType kType, Format kFormat, bool kWide>
inline const cuda::Kernel kRowOfCodesKernel(
    "RowOfCodesKernel", reinterpret_cast<const void*>(&RowOfCodesKernel<kType, kFormat, kWide>),
    kMostSharedBytes);

template <DType kType>
Status LaunchRowOf(const QuantizedParams& params, const QuantizedPlan& plan,
                   const CudaContext& context) {
  const RowOfCodesShape shape = RowOfCodesShape::Of(params, 0);
  const auto launch = [&](const cuda::Kernel& kernel) {
    return cuda::Launch(context, kernel,
                        {.grid = {CeilDiv<int64_t>(params.tiles, plan.tile_warps)},
                         .block = dim3(static_cast<unsigned>(32 * plan.tile_warps * plan.k_warps)),
                         .shared_bytes = plan.shared_bytes,
                         .overlaps_previous = true},
                        params, shape, std::countr_zero(static_cast<unsigned>(plan.k_warps)));
  };
  return DispatchStreamed(params.format, [&]<Format kFormat>() {
    if constexpr (kFormat != Format::kE2M1)
      if (shape.wide) return launch(kRowOfCodesKernel<kType, kFormat, true>);
    return launch(kRowOfCodesKernel<kType, kFormat, false>);
  });
}

}  // namespace intarsia::matmul
