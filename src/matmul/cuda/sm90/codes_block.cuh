// Products of a warp by mma.sync, of 32 columns at a time: tiles of w in codes, which are A, with
// rows of x, which are B. With r = lane / 4 and c = lane % 4 a lane has rows 2r and 2r + 1 of a
// tile, which are A's rows r and r + 8, and row r of each 8 of x.
#pragma once
#include "src/core/cuda/mma.cuh"
#include "src/matmul/cuda/codes.cuh"
#include "src/matmul/cuda/factors.cuh"
#include "src/matmul/cuda/sm90/lane_pairs.cuh"

namespace intarsia::matmul::sm90 {

// Scales 2 pair and 2 pair + 1 of those that lie at `from`.
template <DType kType>
__device__ __forceinline__ float2 ScalePairOf(const char* from, int pair) {
  if constexpr (kType == DType::kF32) return reinterpret_cast<const float2*>(from)[pair];
  if constexpr (Bytes(kType) == 1) return LoadPair<true>(from, kType, 2 * pair);
  return FloatsOf<kType>(reinterpret_cast<const uint32_t*>(from)[pair]);
}
// The same of f32, f16 or bf16. LoadPair (factors.cuh) knows all types; by the choice among them
// products take 7 to 18% longer.
__device__ __forceinline__ float2 ScalePair(const char* from, DType dtype, int pair) {
  if (dtype == DType::kF32) return ScalePairOf<DType::kF32>(from, pair);
  if (dtype == DType::kBF16) return ScalePairOf<DType::kBF16>(from, pair);
  return ScalePairOf<DType::kF16>(from, pair);
}

// Two scales in e8m0, a byte each, as numbers, and as factors of codes.
__device__ __forceinline__ float2 PowersOf(uint32_t both) {
  return {PowerOf(both & 0xff), PowerOf(both >> 8)};
}
template <DType kType>
__device__ __forceinline__ uint2 E2M1Scales(uint32_t both) {
  return {decoding::E2M1Scale<kType>(both & 0xff), decoding::E2M1Scale<kType>(both >> 8)};
}

// What CountedSteps adds to codes of rows 2 pair and 2 pair + 1, whose points, bytes, lie at
// `from`.
template <DType kType>
__device__ __forceinline__ uint2 PointBiases(const char* from, int pair) {
  using Steps = CountedSteps<Format::kU4, kType>;
  const uint32_t both = reinterpret_cast<const uint16_t*>(from)[pair];
  return {Steps::BiasOf(static_cast<float>(both & 255)),
          Steps::BiasOf(static_cast<float>(both >> 8))};
}

// all += scale group, for sums that are C fragments.
template <int kSums>
__device__ __forceinline__ void AddScaled(float2 scale, const float (&group)[kSums],
                                          float (&all)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) all[i] += (i / 2 % 2 ? scale.y : scale.x) * group[i];
}

// Minimums of two rows: numbers in f16, or bytes times outer factors.
template <bool kHasOuter>
struct Minimums {
  float2 number, outer;
};

// A lane's part of a block's two steps: A, of a tile, and B, of 8 rows of x.
//
// 4 bits: columns 8c ... 8c + 7, which both steps share in the order that decodes fastest.
template <Format kFormat, DType kType>
class BlockLane {
 public:
  using B = typename cuda::Mma<kType>::B;
  static constexpr float kUnit = SpreadCodes<kFormat, kType>::kUnit;

  __device__ __forceinline__ BlockLane(uint32_t opaque_zero, int) : spread_(opaque_zero) {}

  // Where its codes are in a block, and its 16 bytes of x in 8 rows: of which row and column / 8.
  static __device__ __forceinline__ int CodesAt(int r, int c) {
    return c * static_cast<int>(kLineBytes) + 8 * r;
  }
  static __device__ __forceinline__ int2 XAt(int lane) { return {lane / 4, lane % 4}; }

  static __device__ __forceinline__ void LoadX(const char* x, B (&b)[2]) {
    const uint4 pairs = SpreadCodes<kFormat, kType>::InOrder(*reinterpret_cast<const uint4*>(x));
    b[0] = {{pairs.x, pairs.y}}, b[1] = {{pairs.z, pairs.w}};
  }
  template <int kFirst, int kCount, class... Operands>
  __device__ __forceinline__ void Decode(const char* codes, uint32_t (&a)[kCount][4],
                                         Operands... operands) const {
    static_assert(kCount == 2, "steps share a word");
    const uint2 words = *reinterpret_cast<const uint2*>(codes);
    uint32_t low[4], high[4];
    spread_.Decode(words.x, low, operands.x...);
    spread_.Decode(words.y, high, operands.y...);
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = (i % 2 ? high : low)[i / 2];
  }

 private:
  const SpreadCodes<kFormat, kType> spread_;
};

// 5 and 6 bits: of each step the columns that wgmma's A has (lane_pairs.cuh), but 2c with 2c + 9
// and 2c + 1 with 2c + 8. Masks take such pairs from where they lie; neighbors would have to be
// moved.
template <Format kFormat, DType kType>
  requires(BitsOf(kFormat) == 5 || BitsOf(kFormat) == 6)
class BlockLane<kFormat, kType> {
 public:
  using B = typename cuda::Mma<kType>::B;
  static constexpr float kUnit = CountedSteps<kFormat, kType>::kUnit;

  __device__ __forceinline__ BlockLane(uint32_t opaque_zero, int c)
      : steps_(opaque_zero),
        upper_(opaque_zero),
        bytes_(static_cast<uint32_t>(Kept(c * 0x11 | (4 + c) * 0x1100))),
        turn_(Kept((kFive ? 2 : 4) * c - 4)) {}

  static __device__ __forceinline__ int CodesAt(int r, int) { return 8 * r; }
  static __device__ __forceinline__ int2 XAt(int lane) { return {lane % 8, lane / 8}; }

  static __device__ __forceinline__ void LoadX(const char* x, B (&b)[2]) {
    uint32_t pairs[4];
    cuda::LdMatrix4(pairs, cuda::SharedAddress(x));
#pragma unroll
    for (int i = 0; i < 2; ++i)
      b[i] = {{__byte_perm(pairs[2 * i], pairs[2 * i + 1], 0x7610),
               __byte_perm(pairs[2 * i], pairs[2 * i + 1], 0x5432)}};
  }
  template <int kFirst, int kCount>
  __device__ __forceinline__ void Decode(const char* codes, uint32_t (&a)[kCount][4]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int step = kFirst + i;
      const uint2 first = LineAt(codes, 2 * step), second = LineAt(codes, 2 * step + 1);
      const uint2 upper = LineAt(codes, kFive ? 4 : 4 + step);
      Row(first.x, second.x, Turned(upper.x, step), a[i][0], a[i][2]);
      Row(first.y, second.y, Turned(upper.y, step), a[i][1], a[i][3]);
    }
  }

 private:
  static constexpr bool kFive = BitsOf(kFormat) == 5;

  // Bits of columns 2c and 2c + 1 from bit 4 of the lower half on, those of 2c + 8 and 2c + 9 from
  // bit 4 of the upper half on. A word of 5 bits has both steps.
  __device__ __forceinline__ uint32_t Turned(uint32_t word, int step) const {
    const uint32_t turned = __funnelshift_r(word, word, turn_);
    return kFive ? __byte_perm(turned, 0, step ? 0x4342 : 0x4140) : turned;
  }
  __device__ __forceinline__ void Row(uint32_t first, uint32_t second, uint32_t upper,
                                      uint32_t& low, uint32_t& high) const {
    const uint32_t lower = __byte_perm(first, second, bytes_);
    low = upper_.Add(upper, steps_.Pair(lower));
    high = upper_.AddSwapped(upper, steps_.SwappedPair(lower));
  }

  const CountedSteps<kFormat, kType> steps_;
  const CrossedUpperSteps<static_cast<int>(BitsOf(kFormat)), kType> upper_;
  const uint32_t bytes_;
  const int turn_;
};

// 8 bits: the columns that wgmma's A has.
template <Format kFormat, DType kType>
  requires(BitsOf(kFormat) == 8)
class BlockLane<kFormat, kType> {
 public:
  using B = typename cuda::Mma<kType>::B;
  static constexpr float kUnit = LanePairs<kFormat, kType>::kUnit;

  __device__ __forceinline__ BlockLane(uint32_t opaque_zero, int c) : pairs_(opaque_zero, c) {}

  static __device__ __forceinline__ int CodesAt(int r, int) { return 8 * r; }
  static __device__ __forceinline__ int2 XAt(int lane) { return {lane % 8, lane / 8}; }

  static __device__ __forceinline__ void LoadX(const char* x, B (&b)[2]) {
    uint32_t pairs[4];
    cuda::LdMatrix4(pairs, cuda::SharedAddress(x));
    b[0] = {{pairs[0], pairs[1]}}, b[1] = {{pairs[2], pairs[3]}};
  }
  template <int kFirst, int kCount>
  __device__ __forceinline__ void Decode(const char* codes, uint32_t (&a)[kCount][4]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) pairs_.Decode(codes, kFirst + i, a[i]);
  }

 private:
  const LanePairs<kFormat, kType> pairs_;
};

template <Format kFormat, DType kType, int kRows, int kTiles>
class CodesBlock {
 public:
  using Lane = BlockLane<kFormat, kType>;
  using M = cuda::Mma<kType>;
  using X = typename M::B[kRows / 8][2];
  static constexpr int kSums = kRows / 2;  // of a lane and a tile
  static constexpr float kUnit = Lane::kUnit;

  __device__ __forceinline__ CodesBlock(uint32_t opaque_zero, int c) : lane_(opaque_zero, c) {}

  // from(n): the lane's 16 bytes of rows 8n ... 8n + 7.
  template <class From>
  __device__ __forceinline__ void LoadX(From from, X& x) const {
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) Lane::LoadX(from(n), x[n]);
  }

  // kCount steps from kFirst on. codes(t): the lane's codes of tile t; operand(t), if given: what
  // Decode takes for rows 2r and 2r + 1, CountedSteps::BiasOf or E2M1Scale. Sums are those of C
  // fragments, one after the other, and kUnit times what codes stand for; with E2M1Scale, of scaled
  // codes.
  template <int kFirst = 0, int kCount = 2, class CodesOf, class... OperandOf>
  __device__ __forceinline__ void MultiplyAdd(CodesOf codes, const X& x,
                                              float (&sums)[kTiles][kSums],
                                              OperandOf... operand) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      MultiplyAddTile<kFirst, kCount>(codes(t), x, sums[t], operand(t)...);
  }
  // kUnit times the sums of row r of two times 8 rows of x. x is A here: its fragments are B's.
  static __device__ __forceinline__ void SumRows(const typename M::B (&first)[2],
                                                 const typename M::B (&second)[2], float& of_first,
                                                 float& of_second) {
    const uint32_t one = PairBits<kType>(kUnit, kUnit);
    float c[4] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i)
      M::MultiplyAdd(c, {{first[i].r[0], second[i].r[0], first[i].r[1], second[i].r[1]}},
                     {{one, one}});
    of_first = c[0], of_second = c[2];
  }

  // all += the sum over groups of minimum times x's sum, of four groups, of which lane c has one.
  // tf32 has 11 bits, as f16 has: a minimum's number is one of tf32's, and x's sum is the sum of
  // two. Of an infinite one the second is NaN, and so is its row of results.
  template <bool kHasOuter>
  static __device__ __forceinline__ void AddMinimums(const Minimums<kHasOuter>& minimum,
                                                     const float (&sums)[kRows / 8],
                                                     float (&all)[kSums]) {
    const uint32_t low = __float_as_uint(minimum.number.x),
                   high = __float_as_uint(minimum.number.y);
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) {
      uint32_t big, small;
      cuda::SplitTf32(sums[n], big, small);
      auto& to = reinterpret_cast<float(&)[4]>(all[4 * n]);
      if constexpr (kHasOuter) {
        float products[4] = {};
        cuda::MmaTf32(products, {low, high, low, high}, big, small);
        AddScaled(minimum.outer, products, to);
      } else {
        cuda::MmaTf32(to, {low, high, low, high}, big, small);
      }
    }
  }

  // all += a stage of 128 columns. load_x(block, x) loads its blocks; codes(block)(t): as above;
  // scale(t, group), and Minimums by minimum(t, group), if given: of rows 2r and 2r + 1. A group is
  // a block, or with kOfSteps, which have no minimums, a step.
  template <bool kOfSteps, class LoadXOf, class CodesOf, class ScaleOf, class... MinimumOf>
  __device__ __forceinline__ void AddScaledStage(LoadXOf load_x, CodesOf codes,
                                                 float (&all)[kTiles][kSums], ScaleOf scale,
                                                 MinimumOf... minimum) const {
    constexpr int kBlocks = kStageColumns / static_cast<int>(kBlockColumns);
    constexpr bool kMinimums = sizeof...(MinimumOf) > 0;
    const int own = static_cast<int>(threadIdx.x % 4);  // the lane's block
    float of_x[kRows / 8] = {};
    X both[2];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      X& x = both[block % 2];
      load_x(block, x);
      const auto add = [&]<int kFirst, int kCount>(int number) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          float group[kSums] = {};
          MultiplyAddTile<kFirst, kCount>(codes(block)(t), x, group);
          AddScaled(scale(t, number), group, all[t]);
        }
      };
      if constexpr (kOfSteps) {
        add.template operator()<0, 1>(2 * block);
        add.template operator()<1, 1>(2 * block + 1);
      } else {
        add.template operator()<0, 2>(block);
      }
      if constexpr (!kMinimums) continue;
      float first, second;
      if constexpr (kRows == 8) {
        if (block % 2 == 0) continue;
        SumRows(both[0][0], x[0], first, second);
        of_x[0] = own == block - 1 ? first : own == block ? second : of_x[0];
      } else {
#pragma unroll
        for (int n = 0; n < kRows / 8; n += 2) {
          SumRows(x[n], x[n + 1], first, second);
          of_x[n] = own == block ? first : of_x[n];
          of_x[n + 1] = own == block ? second : of_x[n + 1];
        }
      }
    }
    if constexpr (kMinimums)
#pragma unroll
      for (int t = 0; t < kTiles; ++t) AddMinimums(minimum(t, own)..., of_x, all[t]);
  }

 private:
  template <int kFirst, int kCount, class... Operand>
  __device__ __forceinline__ void MultiplyAddTile(const char* codes, const X& x,
                                                  float (&sums)[kSums], Operand... operand) const {
    uint32_t a[kCount][4];
    lane_.template Decode<kFirst, kCount>(codes, a, operand...);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int n = 0; n < kRows / 8; ++n)
        M::MultiplyAdd(reinterpret_cast<float(&)[4]>(sums[4 * n]),
                       {{a[i][0], a[i][1], a[i][2], a[i][3]}}, x[n][kFirst + i]);
  }

  const Lane lane_;
};

}  // namespace intarsia::matmul::sm90
