// out[row] = (x[row] + residual[row]) / sqrt(mean((x[row] + residual[row])^2) + eps) * weight;
// without a residual, of x alone; a layer norm takes the row's mean from x first, and adds a bias.
// Roundings: rms_norm.h and fused_add_rms_norm.h. As T, or rounded to T and then quantized: by a
// given scale, by the row's own, or by those of groups of neighbors in a row.
//
// A row is read once: its first kNormItems packs a thread stay in registers between the reduction
// and the scaling. What a longer row has beyond that is read again, from the L2 cache most likely.
// Each op's file makes the kernels that it needs.
#pragma once
#include <type_traits>

#include "src/core/cuda/launch.h"
#include "src/core/cuda/ptx.cuh"
#include "src/core/cuda/rows.cuh"
#include "src/core/cuda/vec.cuh"
#include "src/core/dispatch.h"
#include "src/core/round.h"
#include "src/norm/groups.h"
#include "src/quant/codes.cuh"

namespace intarsia::cuda {
namespace {

constexpr int kNormItems = 4;
// Of a quantized result: given (or there is none), a scale for each row, or for each group of a
// row's neighbors.
enum class NormScales { kGiven, kRows, kGroups };
// Threads of a block, at most. With scales of rows or groups a thread keeps the rounded numbers,
// too, for which the 64 registers that 1024 threads leave it are not enough.
template <NormScales kScales>
constexpr int kNormThreads = kScales == NormScales::kGiven ? kMaxRowThreads : kMaxRowThreads / 2;

// T is the activations' type, Out that of the result. What a row begins with comes first: a line of
// the constant cache that is not there yet costs as much as a load from L2.
template <class T, class Out>
struct NormArguments {
  const T* x;        // [rows, n]; rows of all such arrays have a stride
  int64_t x_stride;  // in elements, as all of them
  int64_t rows, n;
  const T* weight;  // [n]; at most one of the two weights is set
  float eps;
  bool before_weight;  // rounding; see rms_norm.h
  const T* residual;   // null: none
  int64_t residual_stride;
  Out* out;  // may be x
  int64_t out_stride;
  T* residual_out;  // x + residual; may be residual
  int64_t residual_out_stride;
  const float* weight_f32;  // [n]
  const float* scale;       // [1], if Out is a code and the scale is given
  float* row_scales;        // [rows], or [rows, n / group_size] with scales of groups
  RowRule rule;             // from the largest number to its scale
  int64_t group_size;
  const T* bias;          // [n]; of a layer norm, as the weights
  const float* bias_f32;  // [n]
};

// What a norm is made of; the op fills in what it has.
struct Norm {
  const TensorView& x;
  Optional weight;
  const TensorView& out;
  float eps;
  std::string_view rounding;
  const TensorView* residual = nullptr;
  const TensorView* residual_out = nullptr;
  const TensorView* scale = nullptr;       // one for all
  const TensorView* row_scales = nullptr;  // the rows' own, a result, or their groups'
  RowRule rule = {};
  Optional bias = {};
  int64_t group_size = 0;
};

// What a layer norm takes from each number: its row's mean.
template <bool kCentered>
struct Center {
  float mean = 0.0f;
};

// A pack of a row between the two passes: as it was loaded, which takes half the registers of f32,
// so that more rows are on their way; or the sum with the residual as the norm wants to see it,
// rounded unless the norm is of the unrounded one.
template <class T, int kCount, bool kResidual>
struct RowPack {
  Pack<std::conditional_t<kResidual, float, T>, kCount> kept;

  __device__ __forceinline__ float At(int j) const { return ToFloat(kept.at[j]); }

  template <class Out>
  __device__ __forceinline__ void Load(const NormArguments<T, Out>& a, int64_t at) {
    const auto x = LoadPack(a.x + at);
    if constexpr (!kResidual)
      kept = x;
    else
      Add(a, x, LoadPack(a.residual + at));
  }
  // A copy, so that it is one load.
  static __device__ __forceinline__ Pack<T, kCount> LoadPack(const T* from) {
    return *reinterpret_cast<const Pack<T, kCount>*>(from);
  }

  template <class Out>
  __device__ __forceinline__ void Add(const NormArguments<T, Out>& a, const Pack<T, kCount>& x,
                                      const Pack<T, kCount>& residual) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) kept.at[j] = ToFloat(x.at[j]) + ToFloat(residual.at[j]);
    if (!a.before_weight) kept = Rounded<T>(kept);
  }

  __device__ __forceinline__ float SumOfSquares() const {
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < kCount; ++j) squares += At(j) * At(j);
    return squares;
  }
  __device__ __forceinline__ float Sum() const {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kCount; ++j) sum += At(j);
    return sum;
  }
  __device__ __forceinline__ float SumOfSquaresAround(float mean) const {
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < kCount; ++j) squares = __fmaf_rn(At(j) - mean, At(j) - mean, squares);
    return squares;
  }

  template <class Out>
  __device__ __forceinline__ void StoreSum(const NormArguments<T, Out>& a, int64_t at) const {
    if constexpr (kResidual)
      *reinterpret_cast<Pack<T, kCount>*>(a.residual_out + at) = FromFloats<T>(kept);
  }

  // What Normed multiplies by, if it is of type T. Nothing of the row goes into it, so that it can
  // be on its way before the row's sum is there.
  template <class Out>
  static __device__ __forceinline__ Pack<T, kCount> Weight(const NormArguments<T, Out>& a,
                                                           int64_t column) {
    if (a.weight == nullptr) return {};
    return LoadPack(a.weight + column);
  }

  // The normed numbers, not yet rounded to T.
  template <class Out>
  __device__ __forceinline__ Pack<float, kCount> Normed(const NormArguments<T, Out>& a,
                                                        int64_t column,
                                                        const Pack<T, kCount>& weight, float rstd,
                                                        Center<false> = {}) const {
    Pack<float, kCount> normed;
#pragma unroll
    for (int j = 0; j < kCount; ++j) normed.at[j] = At(j) * rstd;
    if (a.before_weight) normed = Rounded<T>(normed);
    if (a.weight) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) normed.at[j] *= ToFloat(weight.at[j]);
    } else if (a.weight_f32) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) normed.at[j] *= a.weight_f32[column + j];
    }
    return normed;
  }
  template <class Out>
  __device__ __forceinline__ Pack<float, kCount> Normed(const NormArguments<T, Out>& a,
                                                        int64_t column,
                                                        const Pack<T, kCount>& weight, float rstd,
                                                        Center<true> center) const {
    Pack<T, kCount> bias;
    if (a.bias) bias = LoadPack(a.bias + column);
    Pack<float, kCount> normed;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float w = a.weight       ? ToFloat(weight.at[j])
                      : a.weight_f32 ? a.weight_f32[column + j]
                                     : 1.0f;
      const float b = a.bias ? ToFloat(bias.at[j]) : a.bias_f32 ? a.bias_f32[column + j] : 0.0f;
      normed.at[j] =
          __fmaf_rn((At(j) - center.mean) * rstd, w, b);  // so that every op rounds alike
    }
    return normed;
  }
};

// A kernel's second sum: ReduceRow keeps shared memory for each type.
struct PlusAgain : Plus {};

// A row a threadIdx.y. kCount: what makes 16 bytes of T, or 1 where alignment or n does not allow
// that. kItems: packs that a thread keeps; 1 if a row has no more packs than threads, as in a
// decode step, whose time is that of fetching the code. kCentered: a layer norm.
template <class T, class Out, int kCount, int kItems, bool kResidual, NormScales kScales,
          bool kCentered>
__global__ void __launch_bounds__(kNormThreads<kScales>) NormKernel(NormArguments<T, Out> a) {
  AwaitPrevious();
  LetNextBegin();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int64_t packs = row < a.rows ? a.n / kCount : 0;
  a.x += row * a.x_stride;
  if constexpr (kResidual) a.residual += row * a.residual_stride;
  // Packs that are kept: 32 bits, since a row has at most kItems * kMaxRowThreads of them.
  const auto kept_packs = static_cast<unsigned>(min(packs, int64_t{kItems} * kMaxRowThreads));
  const auto at = [&](int k) { return threadIdx.x + k * blockDim.x; };
  RowPack<T, kCount, kResidual> kept[kItems], again;
  // f(pack, its number) for those that are kept, then for those that are read again.
  const auto for_kept = [&](auto f) {
#pragma unroll
    for (int k = 0; k < kItems; ++k)
      if (at(k) < kept_packs) f(kept[k], int64_t{at(k)}, k);
  };
  const auto for_again = [&](auto f) {
    if constexpr (kItems > 1) {
      for (int64_t i = at(kItems); i < packs; i += blockDim.x) {
        again.Load(a, i * kCount);
        f(again, i, -1);
      }
    }
  };

  if constexpr (kResidual) {  // all loads before the first addition waits for one
    Pack<T, kCount> x[kItems], residual[kItems];
    for_kept([&](auto& pack, int64_t i, int k) {
      x[k] = pack.LoadPack(a.x + i * kCount);
      residual[k] = pack.LoadPack(a.residual + i * kCount);
    });
    for_kept([&](auto& pack, int64_t, int k) { pack.Add(a, x[k], residual[k]); });
  } else {
    for_kept([&](auto& pack, int64_t i, int) { pack.Load(a, i * kCount); });
  }
  a.out += row * a.out_stride;
  if constexpr (kResidual) a.residual_out += row * a.residual_out_stride;
  // With a residual there are no registers for it, but with one pack.
  constexpr bool kAsksEarly = !kResidual || kItems == 1;
  Pack<T, kCount> first_weight;
  if constexpr (kAsksEarly)
    if (at(0) < kept_packs) first_weight = kept[0].Weight(a, at(0) * kCount);
  float given_scale = 1.0f;
  if constexpr (kScales == NormScales::kGiven && sizeof(Out) == 1) given_scale = *a.scale;
  Center<kCentered> center;
  float squares = 0.0f;
  if constexpr (kCentered) {
    float sum = 0.0f;
    for_kept([&](auto& pack, int64_t, int) { sum += pack.Sum(); });
    for_again([&](auto& pack, int64_t, int) { sum += pack.Sum(); });
    center.mean = ReduceRow<PlusAgain>(sum) / static_cast<float>(a.n);
    for_kept([&](auto& pack, int64_t, int) { squares += pack.SumOfSquaresAround(center.mean); });
    for_again([&](auto& pack, int64_t, int) { squares += pack.SumOfSquaresAround(center.mean); });
  } else {
    for_kept([&](auto& pack, int64_t, int) { squares += pack.SumOfSquares(); });
    for_again([&](auto& pack, int64_t, int) { squares += pack.SumOfSquares(); });
  }
  const float rstd = rsqrtf(ReduceRow<Plus>(squares) / static_cast<float>(a.n) + a.eps);
  const auto normed = [&](const auto& pack, int64_t i, int k) {
    const auto weight = kAsksEarly && k == 0 ? first_weight : pack.Weight(a, i * kCount);
    return pack.Normed(a, i * kCount, weight, rstd, center);
  };
  const auto store = [&](int64_t i, const Pack<Out, kCount>& out) {
    *reinterpret_cast<Pack<Out, kCount>*>(a.out + i * kCount) = out;
  };

  if constexpr (kScales == NormScales::kGroups) {
    extern __shared__ int group_largest[];  // [blockDim.y, groups], numbers >= 0 by their bits
    const int64_t groups = a.n / a.group_size;
    int* const of_row = group_largest + threadIdx.y * groups;
    for (int64_t g = threadIdx.x; g < groups; g += blockDim.x) of_row[g] = 0;
    __syncthreads();
    const auto group = [&](int64_t i) { return of_row + i * kCount / a.group_size; };
    const auto count = [&](const Pack<T, kCount>& y, int64_t i) {
      atomicMax(group(i), __float_as_int(LargestAbs(y)));
      return y;
    };
    Pack<T, kCount> rounded[kItems];
    for_kept([&](auto& pack, int64_t i, int k) {
      rounded[k] = count(FromFloats<T>(normed(pack, i, k)), i);
      pack.StoreSum(a, i * kCount);
    });
    for_again([&](auto& pack, int64_t i, int k) { count(FromFloats<T>(normed(pack, i, k)), i); });
    __syncthreads();
    const auto quantize = [&](const Pack<T, kCount>& y, int64_t i) {
      const float largest = __int_as_float(*group(i));
      store(i, Quantized<Out>(y, RowScaling(a.rule.Of(largest).scaling, largest)));
    };
    if (row < a.rows)
      for (int64_t g = threadIdx.x; g < groups; g += blockDim.x)
        a.row_scales[row * groups + g] = a.rule.Of(__int_as_float(of_row[g])).scale;
    for_kept([&](auto&, int64_t i, int k) { quantize(rounded[k], i); });
    for_again([&](auto& pack, int64_t i, int k) {  // sums last: residual_out may be residual
      quantize(FromFloats<T>(normed(pack, i, k)), i);
      pack.StoreSum(a, i * kCount);
    });
  } else if constexpr (kScales == NormScales::kRows) {
    Pack<T, kCount> rounded[kItems];
    float largest = 0.0f;
    for_kept([&](auto& pack, int64_t i, int k) {
      rounded[k] = FromFloats<T>(normed(pack, i, k));
      pack.StoreSum(a, i * kCount);
      largest = fmaxf(largest, LargestAbs(rounded[k]));
    });
    for_again([&](auto& pack, int64_t i, int k) {
      largest = fmaxf(largest, LargestAbs(FromFloats<T>(normed(pack, i, k))));
    });
    largest = ReduceRow<Larger>(largest);
    const auto of_row = a.rule.Of(largest);
    const RowScaling scaling(of_row.scaling, largest);
    if (threadIdx.x == 0 && row < a.rows) a.row_scales[row] = of_row.scale;
    for_kept([&](auto&, int64_t i, int k) { store(i, Quantized<Out>(rounded[k], scaling)); });
    for_again([&](auto& pack, int64_t i, int k) {  // sums last, as above
      store(i, Quantized<Out>(FromFloats<T>(normed(pack, i, k)), scaling));
      pack.StoreSum(a, i * kCount);
    });
  } else {
    Scaling scaling{1.0f, false};
    if constexpr (sizeof(Out) == 1) scaling.factor = Reciprocal(given_scale);
    const auto finish = [&](auto& pack, int64_t i, int k) {
      const auto y = normed(pack, i, k);
      pack.StoreSum(a, i * kCount);
      if constexpr (sizeof(Out) == 1)
        store(i, Quantized<Out>(FromFloats<T>(y), scaling));
      else
        store(i, FromFloats<Out>(y));
    };
    for_kept(finish);
    for_again(finish);
  }
}

template <class T, class Out, int kCount, int kItems, bool kResidual, NormScales kScales,
          bool kCentered>
const Kernel kNormKernel("NormKernel",
                         reinterpret_cast<const void*>(
                             &NormKernel<T, Out, kCount, kItems, kResidual, kScales, kCentered>),
                         kScales == NormScales::kGroups ? kMaxNormGroups * int{sizeof(int)} : 0);

template <class T, class Out>
NormArguments<T, Out> ArgumentsOf(const Norm& norm) {
  NormArguments<T, Out> a{.x = norm.x.as<const T>(),
                          .x_stride = RowStride(norm.x),
                          .n = norm.x.dim(-1),
                          .eps = norm.eps,
                          .before_weight = norm.rounding == "before_weight",
                          .out = norm.out.as<Out>(),
                          .out_stride = RowStride(norm.out),
                          .rule = norm.rule,
                          .group_size = norm.group_size};
  // A row without columns has a scale, too.
  a.rows = norm.row_scales && a.group_size == 0 ? norm.row_scales->size()
           : a.n == 0                           ? 0
                                                : norm.x.size() / a.n;
  if (norm.bias && norm.bias->dtype == kF32)
    a.bias_f32 = norm.bias->as<const float>();
  else if (norm.bias)
    a.bias = norm.bias->as<const T>();
  if (norm.weight && norm.weight->dtype == kF32)
    a.weight_f32 = norm.weight->as<const float>();
  else if (norm.weight)
    a.weight = norm.weight->as<const T>();
  if (norm.residual) {
    a.residual = norm.residual->as<const T>();
    a.residual_out = norm.residual_out->as<T>();
    a.residual_stride = RowStride(*norm.residual);
    a.residual_out_stride = RowStride(*norm.residual_out);
  }
  if (norm.scale) a.scale = norm.scale->as<const float>();
  if (norm.row_scales) a.row_scales = norm.row_scales->as<float>();
  return a;
}

// Out is void where the result has the activations' type.
template <class Out, bool kResidual, NormScales kScales = NormScales::kGiven,
          bool kCentered = false>
Status LaunchNorm(const CudaContext& context, const Norm& norm) {
  return DispatchDType<kF32, kF16, kBF16>("x", norm.x.dtype, [&]<DType kType>() -> Status {
    using T = DeviceT<kType>;
    using Result = std::conditional_t<std::is_void_v<Out>, T, Out>;
    constexpr int kCount = kMaxAccessBytes / sizeof(T);
    const auto a = ArgumentsOf<T, Result>(norm);
    // kCount is a power of two: the union of their bits is a multiple where each stride is one.
    const int64_t strides = a.x_stride | a.residual_stride | a.out_stride | a.residual_out_stride;
    const bool packed =
        strides % kCount == 0 && a.group_size % kCount == 0 &&
        AllInPacks<kCount>(a.n, a.x, a.out, a.weight, a.bias, a.residual, a.residual_out);
    const int64_t items = packed ? a.n / kCount : a.n;
    const dim3 block = RowBlock(*context.device, a.rows, items, kNormItems, kNormThreads<kScales>);
    const Kernel& kernel =
        !packed ? kNormKernel<T, Result, 1, kNormItems, kResidual, kScales, kCentered>
        : items <= block.x
            ? kNormKernel<T, Result, kCount, 1, kResidual, kScales, kCentered>
            : kNormKernel<T, Result, kCount, kNormItems, kResidual, kScales, kCentered>;
    const int64_t groups = a.group_size == 0 ? 0 : block.y * (a.n / a.group_size);
    return Launch(context, kernel,
                  {.grid = {CeilDiv<int64_t>(a.rows, block.y)},
                   .block = block,
                   .shared_bytes = static_cast<int>(groups * sizeof(int)),
                   .overlaps_previous = true},
                  a);
  });
}

}  // namespace
}  // namespace intarsia::cuda
