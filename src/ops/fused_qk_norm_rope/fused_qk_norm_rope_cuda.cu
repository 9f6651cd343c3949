#include <algorithm>

#include "src/core/cuda/launch.h"
#include "src/core/dispatch.h"
#include "src/core/index_vector.h"
#include "src/core/round.h"
#include "src/ops/fused_qk_norm_rope/fused_qk_norm_rope.h"
#include "src/rotary/normed_head.cuh"

namespace intarsia {
namespace {

using cuda::Pack, cuda::kHeadWarps;

struct Strides {
  int64_t token, head;
};

struct Arguments {
  const void* in;  // T [tokens, heads, d]
  void* out;       // may be in
  Strides from, to;
  cuda::HeadNorms norms;
  int64_t tokens;
  int heads, q_heads, turned_heads;  // heads: those that a warp has to do with
  cuda::Rotation rotation;
  IndexVector positions;
  int d;
};

// A warp a head: normed into shared memory, from where pairs are turned and stored.
template <class T, int kCount>
__global__ void __launch_bounds__(kHeadWarps * 32) QkNormRopeKernel(Arguments a) {
  extern __shared__ float4 normed_heads[];  // [kHeadWarps, d] f32
  const auto [token, head] = cuda::HeadOfWarp(a.heads);
  const int lane = threadIdx.x % 32;
  if (token >= a.tokens) return;
  const T* in = static_cast<const T*>(a.in) + token * a.from.token + head * a.from.head;
  T* out = static_cast<T*>(a.out) + token * a.to.token + head * a.to.head;
  using V = Pack<T, kCount>;
  const int packs = a.d / kCount;
  if (head >= a.turned_heads) {
    for (int i = lane; i < packs; i += 32)
      reinterpret_cast<V*>(out)[i] = reinterpret_cast<const V*>(in)[i];
    return;
  }

  float* normed = reinterpret_cast<float*>(normed_heads) + threadIdx.x / 32 * a.d;
  cuda::NormHead<T, kCount>(a.norms, head >= a.q_heads, in, a.d, normed);

  cuda::TurnNormed<T, kCount>(
      a.rotation, a.positions.At(token), a.d, normed,
      [&](int column, const V& x) { *reinterpret_cast<V*>(out + column) = x; });
}

// The same of heads that a warp holds in registers.
template <class T, int kPairs>
__global__ void __launch_bounds__(kHeadWarps * 32) HeldQkNormRopeKernel(Arguments a) {
  const auto [token, head] = cuda::HeadOfWarp(a.heads);
  if (token >= a.tokens) return;
  using Held = cuda::HeldHead<T, kPairs>;
  Held held(static_cast<const T*>(a.in) + token * a.from.token + head * a.from.head);
  if (head < a.turned_heads)
    held.NormAndTurn(a.norms, head >= a.q_heads, a.rotation, a.positions.At(token));
  T* const out = static_cast<T*>(a.out) + token * a.to.token + head * a.to.head + Held::At();
  *reinterpret_cast<typename Held::V*>(out) = held.low;
  *reinterpret_cast<typename Held::V*>(out + Held::kHalf) = held.high;
}

constexpr int kMaxShared = kHeadWarps * kMaxNormedHeadDim * int{sizeof(float)};

template <class T, int kCount>
const cuda::Kernel kQkNormRopeKernel("QkNormRopeKernel",
                                     reinterpret_cast<const void*>(&QkNormRopeKernel<T, kCount>),
                                     kMaxShared);
template <class T, int kPairs>
const cuda::Kernel kHeldQkNormRopeKernel(
    "HeldQkNormRopeKernel", reinterpret_cast<const void*>(&HeldQkNormRopeKernel<T, kPairs>));

}  // namespace

Status FusedQkNormRope::Run(const CudaContext& context) const {
  const int64_t d = qkv.dim(2);
  const bool in_place = out.data == qkv.data;  // value heads are where they belong
  const int64_t heads = in_place ? num_turned() : qkv.dim(1);
  if (qkv.size() == 0 || heads == 0) return {};
  const Arguments a{.in = qkv.data,
                    .out = out.data,
                    .from = {qkv.stride(0), qkv.stride(1)},
                    .to = {out.stride(0), out.stride(1)},
                    .norms = {q_weight, k_weight, eps},
                    .tokens = qkv.dim(0),
                    .heads = static_cast<int>(heads),
                    .q_heads = static_cast<int>(*num_heads_q),
                    .turned_heads = static_cast<int>(num_turned()),
                    .rotation = {cos_sin_cache, 0, is_neox, false},
                    .positions = ToIndexVector(positions),
                    .d = static_cast<int>(d)};
  return DispatchDType<kF32, kF16, kBF16>("qkv", qkv.dtype, [&]<DType kType>() -> Status {
    using T = cuda::DeviceT<kType>;
    constexpr int kElement = sizeof(T), kVector = 16 / kElement;
    const int64_t strides[] = {a.from.token, a.from.head, a.to.token, a.to.head};
    const bool aligned =
        a.rotation.InVectors(d, kVector) &&
        std::ranges::all_of(strides, [&](int64_t stride) { return stride % kVector == 0; }) &&
        cuda::AllAligned16(d * kElement, a.in, a.out);
    const int64_t blocks = CeilDiv<int64_t>(a.tokens * heads, kHeadWarps);
    if constexpr (kElement == 2) {
      if (const int pairs = aligned ? cuda::PairsHeld(a.rotation, d) : 0)
        return Launch(context,
                      pairs == 2 ? kHeldQkNormRopeKernel<T, 2> : kHeldQkNormRopeKernel<T, 4>,
                      {{blocks}, dim3(kHeadWarps * 32)}, a);
    }
    return Launch(context, aligned ? kQkNormRopeKernel<T, kVector> : kQkNormRopeKernel<T, 1>,
                  {{blocks},
                   dim3(kHeadWarps * 32),
                   static_cast<int>(kHeadWarps * d * int64_t{sizeof(float)})},
                  a);
  });
}

}  // namespace intarsia
