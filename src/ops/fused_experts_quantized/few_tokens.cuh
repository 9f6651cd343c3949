// fused_experts_quantized of few tokens, whose pairs p = (t, j) seldom share an expert e:
//   FewCodesUpKernel    gated[p, :] = act(round_T(x[t, :] w1[e]^T + w1_bias[e]));
//   FewCodesDownKernel  out[t, :] = sum over j of weights[t, j] round_T(gated[p, :] w2[e]^T
//                                                                       + w2_bias[e]).
// Warps share a sum: each has some of a matrix's columns (matmul/cuda/row_of_codes.cuh). Latency
// bounds one token. So what was there before the call is asked for first, weights of the sum and
// biases too.
#pragma once
#include "src/activation/gating.cuh"
#include "src/core/cuda/launch.h"
#include "src/core/cuda/ptx.cuh"
#include "src/core/round.h"
#include "src/matmul/cuda/formats.h"
#include "src/matmul/cuda/row_of_codes.cuh"
#include "src/ops/fused_experts/pass.cuh"
#include "src/ops/fused_experts_quantized/few_tokens.h"

namespace intarsia::cuda {

inline constexpr int kTile = static_cast<int>(matmul::kTileRows);

// The bias of rows 2r and 2r + 1 of a tile, r = lane / 4; 0 if there is none.
template <class T>
__device__ __forceinline__ float2 BiasOf(const matmul::QuantizedParams& w, int expert, int tile) {
  if (!w.bias) return {0.0f, 0.0f};
  const T* const bias = static_cast<const T*>(w.bias) + (int64_t{expert} * w.tiles + tile) * kTile +
                        threadIdx.x % 32 / 4 * 2;
  return {ToFloat(bias[0]), ToFloat(bias[1])};
}

// CTAs of a multiprocessor: gpt-oss's first product has 720, which begin together with six. Factors
// of each block cost 8 bits one of these, and u4, with its zeros, two.
template <matmul::Format kFormat, matmul::GroupEnds kEnds>
inline constexpr int kFewUpCtas =
    matmul::BitsOf(kFormat) == 8 ? (kEnds == matmul::GroupEnds::kEach128 ? 5 : 4)
    : kFormat == matmul::Format::kU4 && kEnds != matmul::GroupEnds::kEach128 ? 4
                                                                             : 6;

// Grid: two tiles of w1, neighbors where gates and ups are, else of gates and of their ups, which
// make kTile columns of gated; experts of a token; tokens.
template <DType kType, matmul::Format kFormat, matmul::GroupEnds kEnds>
__global__ void __launch_bounds__(32 * kFewUpWarps, kFewUpCtas<kFormat, kEnds>)
    FewCodesUpKernel(const __grid_constant__ ExpertsPass pass,
                     const __grid_constant__ matmul::QuantizedParams w,
                     const __grid_constant__ matmul::RowOfCodesShape shape) {
  using T = DeviceT<kType>;
  __shared__ float sums[kFewUpWarps][2][kTile];
  AwaitPrevious();
  LetNextBegin();
  const int token = static_cast<int>(blockIdx.z), couple = static_cast<int>(blockIdx.x);
  const int pair = token * static_cast<int>(pass.k) + static_cast<int>(blockIdx.y);
  const auto expert = static_cast<int>(pass.ExpertOf(pair));
  if (expert < 0) return;
  const int warp = static_cast<int>(threadIdx.x / 32), i = static_cast<int>(threadIdx.x);
  const bool in_turn = w.gating.in_turn;
  const int all = static_cast<int>(w.tiles);
  const int tiles[] = {in_turn ? 2 * couple : couple,
                       in_turn ? min(2 * couple + 1, all - 1) : couple + all / 2};
  matmul::RowOfCodes<kType, kFormat, kEnds, 2> product(
      w, shape, warp, kFewUpShift, {DynamicShared() + warp * shape.bytes, shape});
  product.AskForFirst(expert, tiles);
  float2 bias[2] = {};
  if (warp == 0) bias[0] = BiasOf<T>(w, expert, tiles[0]), bias[1] = BiasOf<T>(w, expert, tiles[1]);
  product.TakePart(static_cast<const T*>(pass.x) + token * pass.n);
  float2 of_tiles[2];
  product.Multiply(of_tiles);
  for (int t = 0; t < 2; ++t) of_tiles[t].x += bias[t].x, of_tiles[t].y += bias[t].y;
  matmul::StoreRowSums(of_tiles, sums[warp]);
  __syncthreads();
  const int column = kTile * couple + i;
  if (i >= kTile || column >= pass.i) return;
  const auto result = [&](int up) {
    const int tile = in_turn ? i / (kTile / 2) : up, row = in_turn ? 2 * i % kTile + up : i;
    float sum = 0.0f;
#pragma unroll
    for (int by = 0; by < kFewUpWarps; ++by) sum += sums[by][tile][row];
    return RoundTo<T>(sum);
  };
  static_cast<T*>(pass.gated)[pair * pass.i + column] =
      FromFloat<T>(Gate<T>(w.gating, result(0), result(1)));
}

// Grid: a tile of out each; tokens. It begins with its weights. Each expert of a token has 2^shift
// warps.
template <DType kType, matmul::Format kFormat, matmul::GroupEnds kEnds>
__global__ void __launch_bounds__(32 * kFewDownWarps, 2)
    FewCodesDownKernel(const __grid_constant__ ExpertsPass pass,
                       const __grid_constant__ matmul::QuantizedParams w,
                       const __grid_constant__ matmul::RowOfCodesShape shape, int shift) {
  using T = DeviceT<kType>;
  __shared__ float sums[kFewDownWarps][1][kTile], weights[kFewDownWarps];
  __shared__ bool exists[kFewDownWarps];
  const int token = static_cast<int>(blockIdx.y), k = static_cast<int>(pass.k);
  const int tiles[] = {static_cast<int>(blockIdx.x)};
  const int warp = static_cast<int>(threadIdx.x / 32), i = static_cast<int>(threadIdx.x);
  const int parts = 1 << shift, part = warp & (parts - 1), j = warp >> shift, pair = token * k + j;
  const auto expert = j < k ? static_cast<int>(pass.ExpertOf(pair)) : -1;
  if (i % 32 == 0) {
    exists[warp] = expert >= 0;
    weights[warp] = expert >= 0 ? WeightOf<T>(pass, pair) : 0.0f;
  }
  if (expert >= 0) {
    matmul::RowOfCodes<kType, kFormat, kEnds, 1> product(
        w, shape, part, shift, {DynamicShared() + warp * shape.bytes, shape});
    product.AskForFirst(expert, tiles);
    const float2 bias = part == 0 ? BiasOf<T>(w, expert, tiles[0]) : float2{0.0f, 0.0f};
    AwaitPrevious();
    product.TakePart(static_cast<const T*>(pass.gated) + pair * pass.i);
    float2 of_tile[1];
    product.Multiply(of_tile);
    of_tile[0].x += bias.x, of_tile[0].y += bias.y;
    matmul::StoreRowSums(of_tile, sums[warp]);
  }
  AwaitPrevious();  // all threads: behind this kernel the one before it is done, too
  LetNextBegin();
  __syncthreads();
  if (i >= kTile) return;
  float out = 0.0f, sum = 0.0f;
#pragma unroll
  for (int by = 0; by < kFewDownWarps; ++by) {
    sum += sums[by][0][i];
    if (((by + 1) & (parts - 1)) != 0) continue;
    if (exists[by]) out += weights[by] * RoundTo<T>(sum);
    sum = 0.0f;
  }
  static_cast<T*>(pass.out)[token * pass.n + kTile * tiles[0] + i] = FromFloat<T>(out);
}

template <DType kType, matmul::Format kFormat, matmul::GroupEnds kEnds>
inline const Kernel kFewCodesUpKernel(
    "FewCodesUpKernel", reinterpret_cast<const void*>(&FewCodesUpKernel<kType, kFormat, kEnds>),
    matmul::kMostSharedBytes);
template <DType kType, matmul::Format kFormat, matmul::GroupEnds kEnds>
inline const Kernel kFewCodesDownKernel(
    "FewCodesDownKernel", reinterpret_cast<const void*>(&FewCodesDownKernel<kType, kFormat, kEnds>),
    matmul::kMostSharedBytes);

template <DType kType>
Status RunFewTokens(const ExpertsPass& pass, const matmul::QuantizedParams& first,
                    const matmul::QuantizedParams& second, const CudaContext& context) {
  const matmul::RowOfCodesShape up = FewUpShape(first), down = FewDownShape(pass, second);
  INTARSIA_RETURN_IF_ERROR(matmul::DispatchStreamed(
      first.format, up.ends, [&]<matmul::Format kFormat, matmul::GroupEnds kEnds>() {
        return Launch(context, kFewCodesUpKernel<kType, kFormat, kEnds>,
                      {.grid = {CeilDiv<int64_t>(first.tiles, 2), pass.k, pass.tokens},
                       .block = dim3(32 * kFewUpWarps),
                       .shared_bytes = kFewUpWarps * up.bytes,
                       .overlaps_previous = true},
                      pass, first, up);
      }));
  return matmul::DispatchStreamed(
      second.format, down.ends, [&]<matmul::Format kFormat, matmul::GroupEnds kEnds>() {
        return Launch(context, kFewCodesDownKernel<kType, kFormat, kEnds>,
                      {.grid = {second.tiles, pass.tokens},
                       .block = dim3(32 * kFewDownWarps),
                       .shared_bytes = kFewDownWarps * down.bytes,
                       .overlaps_previous = true},
                      pass, second, down, FewDownShift(pass));
      });
}

}  // namespace intarsia::cuda
