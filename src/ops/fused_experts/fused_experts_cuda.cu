// What lies between and behind the grouped products.
#include "src/activation/gated_cuda.cuh"
#include "src/core/cuda/launch.h"
#include "src/core/cuda/vec.cuh"
#include "src/core/dispatch.h"
#include "src/core/round.h"
#include "src/matmul/cuda/launch.h"
#include "src/ops/fused_experts/few_tokens.cuh"
#include "src/ops/fused_experts/pass.cuh"
#include "src/ops/fused_experts/sort_pairs.cuh"
#include "src/ops/fused_experts/steps_cuda.h"

namespace intarsia::cuda {
namespace {

// ------------------------------------------------------------------------------ the activation

// What is between the weights of a pair and its activation: weight * x + bias.
template <class Activation, class T, int kCount>
__device__ __forceinline__ Pack<float, kCount> WeightedProduct(const Activation& act,
                                                               const GateAndUp<T, kCount>& x,
                                                               float weight,
                                                               const GateAndUp<T, kCount>* bias) {
  Pack<float, kCount> product;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float gate = weight * ToFloat(x.gate.at[j]) + (bias ? ToFloat(bias->gate.at[j]) : 0.0f);
    const float up = weight * ToFloat(x.up.at[j]) + (bias ? ToFloat(bias->up.at[j]) : 0.0f);
    if constexpr (requires { act(0.0f, 0.0f); })
      product.at[j] = act(gate, up);
    else
      product.at[j] = ToFloat(FromFloat<T>(act(gate))) * up;
  }
  return product;
}

// gated[row, :] = act(hidden[row, :]) for the row of each pair. A thread of a block does
// kGatedItems vectors of one.
template <class T, int kCount, template <class> class Activation>
__global__ void __launch_bounds__(kGatedThreads)
    ActivatePairsKernel(const __grid_constant__ ExpertsPass pass, Activation<T> act,
                        int blocks_per_row) {
  using Act = Activation<T>;
  constexpr bool kInTurn = requires { Act::kMayBeInTurn; };
  AwaitPrevious();
  LetNextBegin();
  const int64_t pair = blockIdx.x / blocks_per_row, row = pass.places[pair];
  if (row < 0) return;
  const int64_t n = pass.i, vectors = n / kCount, up = kInTurn ? 1 : n;
  const T* const hidden = static_cast<const T*>(pass.hidden) + row * 2 * n;
  T* const gated = static_cast<T*>(pass.gated) + row * n;
  const int threads = static_cast<int>(blockDim.x);
  const int64_t first =
      static_cast<int64_t>(blockIdx.x % blocks_per_row) * threads * kGatedItems + threadIdx.x;
  GateAndUp<T, kCount> x[kGatedItems];
#pragma unroll
  for (int k = 0; k < kGatedItems; ++k) {
    const int64_t i = first + k * threads;
    if (i < vectors) x[k] = LoadBoth<Act, T, kCount>(hidden, hidden + up, kInTurn, i);
  }
  const float weight = pass.weights_on_input ? WeightOf<T>(pass, pair) : 1.0f;
  const T* const bias = pass.weights_on_input && pass.w1_bias
                            ? static_cast<const T*>(pass.w1_bias) + pass.ExpertOf(pair) * 2 * n
                            : nullptr;
#pragma unroll
  for (int k = 0; k < kGatedItems; ++k) {
    const int64_t i = first + k * threads;
    if (i >= vectors) break;
    Pack<float, kCount> product;
    if (bias) {
      const auto b = LoadBoth<Act, T, kCount>(bias, bias + up, kInTurn, i);
      product = WeightedProduct<Act, T, kCount>(act, x[k], weight, &b);
    } else if (pass.weights_on_input) {
      product = WeightedProduct<Act, T, kCount>(act, x[k], weight, nullptr);
    } else {
      product = Product(act, x[k]);
    }
    reinterpret_cast<Pack<T, kCount>*>(gated)[i] = FromFloats<T>(product);
  }
}
template <class T, int kCount, template <class> class Activation>
const Kernel kActivatePairsKernel(
    "ActivatePairsKernel",
    reinterpret_cast<const void*>(&ActivatePairsKernel<T, kCount, Activation>));

template <class T, template <class> class Activation, class... Attributes>
Status Activate(const CudaContext& context, const ExpertsPass& pass, Attributes... attributes) {
  constexpr int kCount = kMaxAccessBytes / sizeof(T);
  const bool packed =
      AllInPacks<kCount>(pass.i, static_cast<const T*>(pass.hidden),
                         static_cast<const T*>(pass.gated), static_cast<const T*>(pass.w1_bias));
  const int64_t vectors = packed ? pass.i / kCount : pass.i;
  const int64_t blocks_per_row = CeilDiv<int64_t>(vectors, kGatedThreads * kGatedItems);
  // As few threads as a row needs, so that none is idle.
  const int64_t threads =
      vectors == 0 ? 32
                   : RoundUp<int64_t>(CeilDiv<int64_t>(vectors, blocks_per_row * kGatedItems), 32);
  const LaunchConfig config{.grid = {pass.pairs() * blocks_per_row},
                            .block = dim3(static_cast<unsigned>(threads)),
                            .overlaps_previous = true};
  return Launch(
      context,
      packed ? kActivatePairsKernel<T, kCount, Activation> : kActivatePairsKernel<T, 1, Activation>,
      config, pass, Activation<T>{attributes...}, static_cast<int>(blocks_per_row));
}

// ------------------------------------------------------------------------------------- the sum

constexpr int kSumThreads = 128;
constexpr int kSumBatch = 8;  // terms that a thread asks for at a time

// out[token, :] = sum over j of weight * down[place, :], in the order of j. A block has
// kSumThreads vectors of one token.
template <class T, int kCount>
__global__ void __launch_bounds__(kSumThreads)
    SumPairsKernel(const __grid_constant__ ExpertsPass pass, int blocks_per_row) {
  AwaitPrevious();
  const int64_t token = blockIdx.x / blocks_per_row, vectors = pass.n / kCount;
  const int64_t i = static_cast<int64_t>(blockIdx.x % blocks_per_row) * kSumThreads + threadIdx.x;
  if (i >= vectors) return;
  const auto* const down = static_cast<const Pack<T, kCount>*>(pass.down);
  Pack<float, kCount> sum = {};
  const int k = static_cast<int>(pass.k);
  for (int first = 0; first < k; first += kSumBatch) {
    int row[kSumBatch];
    float weight[kSumBatch];
    Pack<T, kCount> term[kSumBatch];
#pragma unroll
    for (int j = 0; j < kSumBatch; ++j) {
      const int64_t pair = token * k + first + j;
      row[j] = first + j < k ? pass.places[pair] : -1;
      weight[j] = first + j < k && !pass.weights_on_input ? WeightOf<T>(pass, pair) : 1.0f;
    }
#pragma unroll
    for (int j = 0; j < kSumBatch; ++j)
      if (row[j] >= 0) term[j] = down[row[j] * vectors + i];
#pragma unroll
    for (int j = 0; j < kSumBatch; ++j) {
      if (row[j] < 0) continue;
      const Pack<float, kCount> x = ToFloats(term[j]);
#pragma unroll
      for (int c = 0; c < kCount; ++c) sum.at[c] += weight[j] * x.at[c];
    }
  }
  static_cast<Pack<T, kCount>*>(pass.out)[token * vectors + i] = FromFloats<T>(sum);
}
template <class T, int kCount>
const Kernel kSumPairsKernel("SumPairsKernel",
                             reinterpret_cast<const void*>(&SumPairsKernel<T, kCount>));

template <class T>
Status Sum(const CudaContext& context, const ExpertsPass& pass) {
  constexpr int kCount = kMaxAccessBytes / sizeof(T);
  const bool packed =
      AllInPacks<kCount>(pass.n, static_cast<const T*>(pass.down), static_cast<const T*>(pass.out));
  const int64_t blocks_per_row = CeilDiv<int64_t>(packed ? pass.n / kCount : pass.n, kSumThreads);
  return Launch(context, packed ? kSumPairsKernel<T, kCount> : kSumPairsKernel<T, 1>,
                {.grid = {pass.tokens * blocks_per_row},
                 .block = dim3(kSumThreads),
                 .overlaps_previous = true},
                pass, static_cast<int>(blocks_per_row));
}

template <class T>
Status Activate(const FusedExperts& op, const ExpertsPass& pass, const CudaContext& context) {
  if (op.activation == "silu") return Activate<T, Silu>(context, pass);
  if (op.activation == "gelu_tanh") return Activate<T, GeluTanh>(context, pass);
  return Activate<T, SwigluOai>(context, pass, op.alpha, op.limit);
}

// gated[r, :] = act(hidden[r, :]) of the first product, within the same kernel if one is chosen
// that can. Where kernels allow it, each begins while the one before it ends.
template <class T>
Status MultiplyFirst(const FusedExperts& op, const ExpertsPass& pass, const CudaContext& context) {
  matmul::GroupedParams gated = pass.GatedProduct(Gating::Of(op.activation, op.limit, op.alpha));
  gated.await = matmul::Await::kAll;
  const matmul::GroupedCandidate* const kernel = matmul::Choose(gated, *context.device);
  if (kernel && !pass.weights_on_input) return matmul::Launch(gated, context, *kernel);
  matmul::GroupedParams product = pass.FirstProduct();
  product.await = matmul::Await::kAll;
  INTARSIA_RETURN_IF_ERROR(matmul::Run(product, context));
  return Activate<T>(op, pass, context);
}

// Both products: the second one begins with its weights.
template <class T>
Status Multiply(const FusedExperts& op, const ExpertsPass& pass, const CudaContext& context) {
  INTARSIA_RETURN_IF_ERROR(MultiplyFirst<T>(op, pass, context));
  matmul::GroupedParams product = pass.SecondProduct();
  // Without columns in between no kernel ran since the sort, which this one then waits for.
  product.await = pass.i > 0 ? matmul::Await::kRows : matmul::Await::kAll;
  return matmul::Run(product, context);
}

template <DType kType>
Status RunPass(const FusedExperts& op, const ExpertsPass& pass, const CudaContext& context) {
  using T = DeviceT<kType>;
  if constexpr (Bytes(kType) == 2) {
    if (IsOfFewTokens(pass)) {
      if (op.activation == "silu") return RunFewTokens<kType, Silu>(context, pass);
      if (op.activation == "gelu_tanh") return RunFewTokens<kType, GeluTanh>(context, pass);
      return RunFewTokens<kType, SwigluOai>(context, pass, op.alpha, op.limit);
    }
  }
  INTARSIA_RETURN_IF_ERROR(SortOnDevice(context, pass));
  if (pass.experts > 0) INTARSIA_RETURN_IF_ERROR(Multiply<T>(op, pass, context));
  return Sum<T>(context, pass);
}

}  // namespace

Status RunExperts(const FusedExperts& op, const CudaContext& context, const ExpertsSteps& steps) {
  return DispatchDType<kF32, kF16, kBF16>("x", op.x.dtype, [&]<DType kType>() -> Status {
    using T = DeviceT<kType>;
    return ExpertsPasses(op).ForEach([&](const ExpertsPass& pass) -> Status {
      if (steps.takes_few_tokens(pass)) return steps.few_tokens(pass);
      INTARSIA_RETURN_IF_ERROR(SortOnDevice(context, pass));
      if (pass.experts > 0) {
        INTARSIA_RETURN_IF_ERROR(steps.first(pass));
        if (!steps.first_gates(pass)) INTARSIA_RETURN_IF_ERROR(Activate<T>(op, pass, context));
        INTARSIA_RETURN_IF_ERROR(steps.second(pass));
      }
      return Sum<T>(context, pass);
    });
  });
}

}  // namespace intarsia::cuda

namespace intarsia {

Status FusedExperts::Run(const CudaContext& context) const {
  return DispatchDType<kF32, kF16, kBF16>("x", x.dtype, [&]<DType kType>() -> Status {
    return ExpertsPasses(*this).ForEach(
        [&](const ExpertsPass& pass) { return cuda::RunPass<kType>(*this, pass, context); });
  });
}

}  // namespace intarsia
