// Products with weights in codes for few rows of x, bound by the memory that holds the codes:
//   out[row, column] = sum_i x[row, i] w[column, i] + bias[column]      (matmul/quantized.h)
// for groups of 32 columns and multiples of it. As in quantized.cuh codes are the A operand of
// m16n8k16, [columns of the result, sum], and rows of x are B. A warp has two tiles of w. With r =
// lane / 4 and c = lane % 4 a lane has four neighbouring rows of tile r / 4 and, of 32 columns, 8c
// ... 8c + 7: 16 bytes for 4-bit codes, which come from memory right into its registers, each once.
// The first two of its rows are A's rows r and r + 8 of one product, the others those of a second.
//
// Decoding is what this kernel does most, so bf16's integers keep the 128 that put them into the
// mantissa: sum x (q + 128) less 128 sum x, and sum x is the product with a matrix of ones.
//
// Rows of x that there are not are copies of the last one: nobody reads their results.
#pragma once
#include "src/matmul/cuda/sm80/quantized_launch.cuh"

namespace intarsia::matmul {

// kWide: a group ends with a stage of the sum, where it may otherwise end with each block of it.
template <DType kX, Format kCodes, bool kWideGroups, int kRowsOfX>
struct StreamCodesConfig {
  using T = cuda::DeviceT<kX>;
  static constexpr DType kType = kX;
  using M = cuda::Mma<kX>;
  static constexpr Format kFormat = kCodes;
  static constexpr bool kWide = kWideGroups;
  static constexpr int kRows = kRowsOfX, kRowBlocks = kRows / 8;
  static constexpr int kWords = BitsOf(kFormat) == 8 ? 2 : 1;  // of a lane, a row and a block
  static constexpr int kBlocks =
      StreamStageColumns(kFormat, kWide) / static_cast<int>(kBlockColumns);
  static constexpr int kStages = kWide || kWords == 2 ? 2 : 3;  // in registers
  using Raw = std::conditional_t<kWide, uint4, uint2>;          // factors of four rows
  static constexpr int kBlockBytes = static_cast<int>(BitsOf(kFormat) * kLineBytes);
  static constexpr int kGroups = kWide ? 1 : kBlocks;  // of a stage
  static constexpr bool kBiased =
      kX == DType::kBF16 && (kFormat == Format::kU4 || kFormat == Format::kU4B8);
  static constexpr float kBias = kFormat == Format::kU4B8 ? 136.0f : 128.0f;
  static constexpr int kMinBlocks = kRows == 8 ? 3 : 2;
};

// What a lane has of a stage.
template <class S>
struct StreamCodesPart {
  uint4 w[S::kBlocks][S::kWords];
  uint4 x[S::kBlocks][S::kRowBlocks];
  typename S::Raw scales[S::kGroups], zeros[S::kGroups];  // as they lie in memory
};

__device__ __forceinline__ uint32_t WordOf(const uint4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}
__device__ __forceinline__ uint32_t WordOf(const uint2& x, int i) { return i == 0 ? x.x : x.y; }

// 16 bytes that are read once.
__device__ __forceinline__ uint4 LoadCodes16(const char* from) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x;
}

// Four neighbouring factors of `bytes` each, as they are.
template <class Raw>
__device__ __forceinline__ void LoadRaw(Raw& raw, const char* from, int bytes) {
  if (bytes == 1) {
    raw.x = *reinterpret_cast<const uint32_t*>(from);
  } else if (bytes == 2) {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    raw.x = two.x, raw.y = two.y;
  } else if constexpr (sizeof(Raw) == 16) {
    raw = *reinterpret_cast<const uint4*>(from);
  }
}
template <class Raw>
__device__ __forceinline__ void ToFour(const Raw& raw, DType dtype, float (&four)[4]) {
  const auto halves = [&]<class Pair>(Pair) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t word = i ? raw.y : raw.x;
      Pair pair;
      memcpy(&pair, &word, sizeof pair);
      four[2 * i] = cuda::ToFloat(pair.x), four[2 * i + 1] = cuda::ToFloat(pair.y);
    }
  };
  if (dtype == DType::kF16) {
    halves(__half2());
  } else if (dtype == DType::kBF16) {
    halves(__nv_bfloat162());
  } else if (sizeof(Raw) == 16 && dtype == DType::kF32) {
#pragma unroll
    for (int i = 0; i < 4; ++i) four[i] = __uint_as_float(WordOf(raw, i));
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto byte = static_cast<uint8_t>(raw.x >> (8 * i));
      if (dtype == DType::kU8) {
        four[i] = byte;
      } else if (dtype == DType::kI8) {
        four[i] = static_cast<int8_t>(byte);
      } else if (dtype == DType::kF8E8M0) {
        four[i] = PowerOf(byte);
      } else {
        __nv_fp8_e4m3 number;
        number.__x = byte;
        four[i] = cuda::ToFloat(number);
      }
    }
  }
}

// A warp's codes, factors and rows of x.
template <class S>
class StreamOfCodes {
 public:
  static constexpr int kStageColumns = S::kBlocks * static_cast<int>(kBlockColumns);

  __device__ __forceinline__ StreamOfCodes(const QuantizedParams& p, const QuantizedPlan& plan,
                                           int first_row, int64_t first_tile)
      : p_(p),
        plan_(plan),
        k_(static_cast<int>(p.k)),
        blocks_(static_cast<int>(p.blocks())),
        group_blocks_(static_cast<int>(p.group / kBlockColumns)) {
    const int lane = static_cast<int>(threadIdx.x % 32), r = lane / 4;
    c_ = lane % 4;
    const int64_t tile = min(first_tile + r / 4, p.tiles - 1);
    w_ = reinterpret_cast<const char*>(p.packed) + tile * p.tile_bytes() +
         S::kWords * c_ * kLineBytes + r % 4 * 16;
    const int64_t factors = tile * p.groups * kTileRows + r % 4 * 4;
    scales_ = static_cast<const char*>(p.scales.data) + factors * (plan.scale_bytes / 16);
    zeros_ = static_cast<const char*>(p.zeros.data) + factors * (plan.zero_bytes / 16);
#pragma unroll
    for (int n = 0; n < S::kRowBlocks; ++n)
      x_[n] = static_cast<const char*>(p.x) +
              (min(first_row + 8 * n + r, static_cast<int>(p.m) - 1) * p.k + 8 * c_) *
                  int64_t{sizeof(typename S::T)};
  }

  // Columns kStageColumns i on.
  __device__ __forceinline__ void Load(StreamCodesPart<S>& part, int i) const {
    if ((i + 1) * kStageColumns <= k_)
      LoadCodes<false>(part, i);
    else
      LoadCodes<true>(part, i);
#pragma unroll
    for (int g = 0; g < S::kGroups; ++g) {
      const int group = min(GroupOf(i * S::kBlocks + g), static_cast<int>(p_.groups) - 1);
      LoadRaw(part.scales[g], scales_ + int64_t{group} * plan_.scale_bytes, plan_.scale_bytes / 16);
      if (plan_.zero_bytes)
        LoadRaw(part.zeros[g], zeros_ + int64_t{group} * plan_.zero_bytes, plan_.zero_bytes / 16);
    }
  }

 private:
  __device__ __forceinline__ int GroupOf(int block) const {
    return group_blocks_ == 1 ? block : block / group_blocks_;
  }
  template <bool kTail>
  __device__ __forceinline__ void LoadCodes(StreamCodesPart<S>& part, int i) const {
    constexpr uint4 kZeros = {0, 0, 0, 0};
    const char* const w = w_ + int64_t{i} * (S::kBlocks * S::kBlockBytes);
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b) {
      const int block = i * S::kBlocks + b;
#pragma unroll
      for (int j = 0; j < S::kWords; ++j)
        part.w[b][j] = !kTail || block < blocks_
                           ? LoadCodes16(w + b * S::kBlockBytes + j * kLineBytes)
                           : kZeros;
      constexpr int kBytes = static_cast<int>(sizeof(typename S::T));
#pragma unroll
      for (int n = 0; n < S::kRowBlocks; ++n)
        part.x[b][n] =
            !kTail || block * kBlockColumns + 8 * c_ < k_
                ? *reinterpret_cast<const uint4*>(x_[n] + int64_t{i} * kStageColumns * kBytes +
                                                  b * static_cast<int>(kBlockColumns) * kBytes)
                : kZeros;
    }
  }

  const QuantizedParams& p_;
  const QuantizedPlan& plan_;
  const int k_, blocks_, group_blocks_;
  int c_;
  const char *w_, *scales_, *zeros_;
  const char* x_[S::kRowBlocks];
};

template <class S>
class StreamedProduct {
 public:
  using M = typename S::M;
  using Fragment = float[4];

  __device__ __forceinline__ explicit StreamedProduct(const QuantizedParams& p) : p_(p) {}

  __device__ __forceinline__ void Add(const StreamCodesPart<S>& part) {
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        typename M::B x[S::kRowBlocks];
#pragma unroll
        for (int n = 0; n < S::kRowBlocks; ++n)
          x[n] = {{WordOf(part.x[b][n], 2 * step), WordOf(part.x[b][n], 2 * step + 1)}};
        if (S::kBiased || p_.zeros.data) {
          constexpr uint32_t kOnes = S::kType == DType::kF16 ? 0x3c003c00u : 0x3f803f80u;
          Multiply(x_, {{kOnes, kOnes, kOnes, kOnes}}, x);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t low[2], high[2];
          Four(part.w[b], 2 * half, step, low);
          Four(part.w[b], 2 * half + 1, step, high);
          Multiply(group_[half], {{low[0], high[0], low[1], high[1]}}, x);
        }
      }
      if (!S::kWide) EndGroup(part.scales[b % S::kGroups], part.zeros[b % S::kGroups]);
    }
    if (S::kWide) EndGroup(part.scales[0], part.zeros[0]);
  }

  // Of rows 2 half and 2 half + 1 of the lane's four.
  __device__ __forceinline__ const Fragment& Sums(int half, int n) const { return all_[half][n]; }

 private:
  // Four codes of a row: those of `step`.
  static __device__ __forceinline__ void Four(const uint4 (&w)[S::kWords], int row, int step,
                                              uint32_t (&pairs)[2]) {
    if constexpr (S::kWords == 2) {
      Decode<S::kFormat, S::kType>({WordOf(w[step], row), 0}, pairs);
    } else if (step == 0) {
      Decode<S::kFormat, S::kType, 0, S::kBiased>({WordOf(w[0], row), 0}, pairs);
    } else {
      Decode<S::kFormat, S::kType, 2, S::kBiased>({WordOf(w[0], row), 0}, pairs);
    }
  }
  static __device__ __forceinline__ void Multiply(Fragment (&sums)[S::kRowBlocks],
                                                  const typename M::A& a,
                                                  const typename M::B (&x)[S::kRowBlocks]) {
#pragma unroll
    for (int n = 0; n < S::kRowBlocks; ++n) M::MultiplyAdd(sums[n], a, x[n]);
  }

  __device__ __forceinline__ void EndGroup(const typename S::Raw& scales,
                                           const typename S::Raw& zeros) {
    float scale[4], zero[4] = {};
    ToFour(scales, p_.scales.dtype, scale);
    if (p_.zeros.data) ToFour(zeros, p_.zeros.dtype, zero);
    constexpr float kBias = S::kBiased ? S::kBias : 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      zero[i] = p_.points ? -scale[i] * (zero[i] + kBias) : zero[i] - scale[i] * kBias;
#pragma unroll
    for (int n = 0; n < S::kRowBlocks; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& sum = all_[half][n][e];
          sum += scale[2 * half + e / 2] * group_[half][n][e];
          if (S::kBiased || p_.zeros.data) sum += zero[2 * half + e / 2] * x_[n][e % 2];
          group_[half][n][e] = 0.0f;
        }
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) x_[n][e] = 0.0f;
    }
  }

  const QuantizedParams& p_;
  Fragment all_[2][S::kRowBlocks] = {}, group_[2][S::kRowBlocks] = {}, x_[S::kRowBlocks] = {};
};

// Grid: tiles of columns, tiles of rows, splits, which are a cluster.
template <class S>
__global__ void __launch_bounds__(32 * kStreamCodesWarps, S::kMinBlocks)
    StreamCodesKernel(const __grid_constant__ QuantizedParams p,
                      const __grid_constant__ QuantizedPlan plan) {
  extern __shared__ __align__(128) char shared[];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int k_warp = warp / plan.tile_warps, tile_warp = warp % plan.tile_warps;
  const int64_t first_of_cta = blockIdx.x * plan.cta_tiles();
  const int first_row = static_cast<int>(blockIdx.y) * S::kRows;
  const StreamOfCodes<S> stream(p, plan, first_row, first_of_cta + 2 * tile_warp);
  StreamedProduct<S> product(p);

  constexpr int kColumns = StreamOfCodes<S>::kStageColumns;
  const int all = (static_cast<int>(p.k) + kColumns - 1) / kColumns;
  const int split = static_cast<int>(blockIdx.z), splits = cuda::HasClusters() ? plan.splits : 1;
  if (split >= splits) return;
  const int begin = all * split / splits + k_warp, end = all * (split + 1) / splits;
  StreamCodesPart<S> parts[S::kStages];
#pragma unroll
  for (int j = 0; j < S::kStages; ++j)
    if (begin + j * plan.k_warps < end) stream.Load(parts[j], begin + j * plan.k_warps);
  for (int i = begin; i < end; i += S::kStages * plan.k_warps) {
#pragma unroll
    for (int j = 0; j < S::kStages; ++j) {
      const int at = i + j * plan.k_warps, next = at + S::kStages * plan.k_warps;
      if (at >= end) break;
      product.Add(parts[j]);
      if (next < end) stream.Load(parts[j], next);
    }
  }
  auto* const sums = reinterpret_cast<float*>(shared);
  const int pitch = static_cast<int>(plan.cta_tiles() * kTileRows) + 1;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int n = 0; n < S::kRowBlocks; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = 8 * n + lane % 4 * 2 + e % 2;
        const int column = tile_warp * 32 + lane / 4 * 4 + 2 * half + e / 2;
        sums[(k_warp * S::kRows + row) * pitch + column] = product.Sums(half, n)[e];
      }
    }
  }
  StoreSums<S>(p, plan, sums, first_row, first_of_cta * kTileRows);
}

template <class S>
inline const cuda::Kernel kStreamCodesKernel("StreamCodesKernel",
                                             reinterpret_cast<const void*>(&StreamCodesKernel<S>),
                                             kMostSharedBytes);

template <class S>
Status LaunchStream(const QuantizedParams& p, const QuantizedPlan& plan,
                    const CudaContext& context) {
  return cuda::Launch(context, kStreamCodesKernel<S>, ConfigOf(p, plan), p, plan);
}

template <DType kType, Format kFormat>
Status LaunchStreamFormat(const QuantizedParams& p, const QuantizedPlan& plan,
                          const CudaContext& context) {
  if constexpr (kFormat != Format::kE2M1) {
    if (plan.kernel == QuantizedKernelKind::kWideStream)
      return plan.shape.rows == 8
                 ? LaunchStream<StreamCodesConfig<kType, kFormat, true, 8>>(p, plan, context)
                 : LaunchStream<StreamCodesConfig<kType, kFormat, true, 16>>(p, plan, context);
  }
  return plan.shape.rows == 8
             ? LaunchStream<StreamCodesConfig<kType, kFormat, false, 8>>(p, plan, context)
             : LaunchStream<StreamCodesConfig<kType, kFormat, false, 16>>(p, plan, context);
}

template <DType kType>
Status LaunchStreamOf(const QuantizedParams& p, const QuantizedPlan& plan,
                      const CudaContext& context) {
  switch (p.format) {
    case Format::kU4:
      return LaunchStreamFormat<kType, Format::kU4>(p, plan, context);
    case Format::kU4B8:
      return LaunchStreamFormat<kType, Format::kU4B8>(p, plan, context);
    case Format::kE2M1:
      return LaunchStreamFormat<kType, Format::kE2M1>(p, plan, context);
    case Format::kI8:
      return LaunchStreamFormat<kType, Format::kI8>(p, plan, context);
    default:
      return LaunchStreamFormat<kType, Format::kE4M3>(p, plan, context);
  }
}

}  // namespace intarsia::matmul
