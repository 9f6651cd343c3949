// Codes in the registers of a lane that are wgmma's A, 16 columns at a time. With r = lane / 4 % 8
// and c = lane % 4 a lane has columns 2c, 2c + 1, 2c + 8 and 2c + 9 of rows 2r and 2r + 1 of a
// tile, which are A's rows r and r + 8.
#pragma once
#include "src/matmul/cuda/codes.cuh"

namespace intarsia::matmul::sm90 {

// A value that the compiler keeps, and does not compute again in a loop.
__device__ __forceinline__ int Kept(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Words of a line for rows 2r and 2r + 1.
__device__ __forceinline__ uint2 LineAt(const char* codes, int line) {
  return *reinterpret_cast<const uint2*>(codes + line * static_cast<int>(kLineBytes));
}

// Bytes of a block's codes of a tile.
template <Format kFormat>
inline constexpr int kBlockBytes = static_cast<int>(BitsOf(kFormat) * kLineBytes);

// Decode(block, step, a, operands...): codes of a block's step, 0 or 1. Its first line begins, for
// row 2r, at `block`. Numbers are kUnit times what codes stand for, or that times a scale.
//
// Unsigned codes' lower 4 bits: byte c of the words of two neighboring lines.
template <Format kFormat, DType kType>
class LowerPairs {
 public:
  __device__ __forceinline__ LowerPairs(uint32_t opaque_zero, int c)
      : steps_(opaque_zero), bytes_(static_cast<uint32_t>(Kept((c | (4 + c) << 4) * 0x101))) {}

  template <class... Bias>
  __device__ __forceinline__ void Row(uint32_t first, uint32_t second, uint32_t& low,
                                      uint32_t& high, Bias... bias) const {
    const uint32_t twice = __byte_perm(first, second, bytes_);
    low = steps_.Pair(twice, bias...), high = steps_.Pair(twice >> 8, bias...);
  }

 private:
  const CountedSteps<kFormat, kType> steps_;
  const uint32_t bytes_;
};

// Unsigned 4-bit codes.
template <Format kFormat, DType kType>
class LanePairs {
 public:
  static constexpr float kUnit = CountedSteps<kFormat, kType>::kUnit;

  __device__ __forceinline__ LanePairs(uint32_t opaque_zero, int c) : pairs_(opaque_zero, c) {}

  // biases: none, or CountedSteps::BiasOf for both rows.
  template <class... Biases>
  __device__ __forceinline__ void Decode(const char* block, int step, uint32_t (&a)[4],
                                         Biases... biases) const {
    const uint2 first = LineAt(block, 2 * step), second = LineAt(block, 2 * step + 1);
    pairs_.Row(first.x, second.x, a[0], a[2], biases.x...);
    pairs_.Row(first.y, second.y, a[1], a[3], biases.y...);
  }

 private:
  const LowerPairs<kFormat, kType> pairs_;
};

// Of bf16, whose exponents end three bits above a byte.
template <>
class LanePairs<Format::kE2M1, DType::kBF16> {
 public:
  static constexpr float kUnit = 1.0f;
  __device__ __forceinline__ LanePairs(uint32_t, int c)
      : bytes_(static_cast<uint32_t>(Kept(c * 0x11 | (4 + c) * 0x1100))) {}

  // scales: decoding::E2M1Scale for both rows.
  __device__ __forceinline__ void Decode(const char* block, int step, uint32_t (&a)[4],
                                         uint2 scales) const {
    const uint2 first = LineAt(block, 2 * step), second = LineAt(block, 2 * step + 1);
    a[0] = Pair(first.x, scales.x), a[1] = Pair(first.y, scales.y);
    a[2] = Pair(second.x, scales.x), a[3] = Pair(second.y, scales.y);
  }

 private:
  // Both codes in bits 4 to 7 of their half, from where one product takes the sign to bit 15 and
  // the others to bits 6 to 8.
  __device__ __forceinline__ uint32_t Pair(uint32_t word, uint32_t scale) const {
    const uint32_t codes = __byte_perm(word << 4, word, bytes_) & 0x00f000f0u;
    return decoding::MultiplyPairs<DType::kBF16>(codes * 0x104u & 0x81c081c0u, scale);
  }

  const uint32_t bytes_;
};

// Codes of 5 and 6 bits: the lower 4 as above. The others, of columns 2c, 2c + 1, 2c + 8 and 2c +
// 9, are turned to bit 4 of a word and further on, from where products add them.
template <Format kFormat, DType kType>
  requires(BitsOf(kFormat) == 5 || BitsOf(kFormat) == 6)
class LanePairs<kFormat, kType> {
 public:
  static constexpr float kUnit = CountedSteps<kFormat, kType>::kUnit;

  __device__ __forceinline__ LanePairs(uint32_t opaque_zero, int c)
      : pairs_(opaque_zero, c), upper_(opaque_zero), turn_(Kept((kFive ? 2 : 4) * c - 4)) {}

  __device__ __forceinline__ void Decode(const char* block, int step, uint32_t (&a)[4]) const {
    const uint2 first = LineAt(block, 2 * step), second = LineAt(block, 2 * step + 1);
    const uint2 upper = LineAt(block, kFive ? 4 : 4 + step);
    const int turn = turn_ + (kFive ? 16 * step : 0);
    Row(first.x, second.x, __funnelshift_r(upper.x, upper.x, turn), a[0], a[2]);
    Row(first.y, second.y, __funnelshift_r(upper.y, upper.y, turn), a[1], a[3]);
  }

 private:
  static constexpr bool kFive = BitsOf(kFormat) == 5;

  // upper: of the four columns in turn from bit 4 on, 5 bits in bits 4, 5, 12 and 13, 6 bits in
  // bits 4, 6, 20 and 22 and those next to them.
  __device__ __forceinline__ void Row(uint32_t first, uint32_t second, uint32_t upper,
                                      uint32_t& low, uint32_t& high) const {
    pairs_.Row(first, second, low, high);
    if constexpr (kFive) {
      const uint32_t bits =
          (upper & 0x3030u) * 0x8001u;  // the odd columns' 15 bits further on, too
      low = upper_.AddBit4(bits, low), high = upper_.AddBit12(bits, high);
    } else {
      low = upper_.AddTwoBits(__byte_perm(upper, 0, 0x4040), low);
      high = upper_.AddTwoBits(__byte_perm(upper, 0, 0x4242), high);
    }
  }

  const LowerPairs<kFormat, kType> pairs_;
  const UpperSteps<kType> upper_;
  const int turn_;
};

// Codes of 8 bits: half c % 2 of the words of lines c / 2 and 2 + c / 2.
template <Format kFormat, DType kType>
  requires(BitsOf(kFormat) == 8)
class LanePairs<kFormat, kType> {
 public:
  static constexpr float kUnit = ByteNumbers<kFormat, kType>::kUnit;

  __device__ __forceinline__ LanePairs(uint32_t opaque_zero, int c)
      : numbers_(opaque_zero),
        line_(c / 2 * static_cast<int>(kLineBytes)),
        halves_(c % 2 ? 0x7632u : 0x5410u) {}

  __device__ __forceinline__ void Decode(const char* block, int step, uint32_t (&a)[4]) const {
    const uint2 first = LineAt(block + line_, 4 * step),
                second = LineAt(block + line_, 4 * step + 2);
    numbers_.Decode(__byte_perm(first.x, second.x, halves_), a[0], a[2]);
    numbers_.Decode(__byte_perm(first.y, second.y, halves_), a[1], a[3]);
  }

 private:
  const ByteNumbers<kFormat, kType> numbers_;
  const int line_;
  const uint32_t halves_;
};

// nvfp4's codes of some steps, by a warp, times their scales. `scales` has those of the tile, 16
// bytes for each step; `pair`: r.
template <int kSteps>
__device__ __forceinline__ void DecodeNvFp4(const LanePairs<Format::kE2M1, DType::kBF16>& pairs,
                                            const char* codes, const char* scales, int pair,
                                            uint32_t (&a)[kSteps][4]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint32_t both =
        reinterpret_cast<const uint16_t*>(scales + step * static_cast<int>(kTileRows))[pair];
    pairs.Decode(codes + step / 2 * kBlockBytes<Format::kE2M1>, step % 2, a[step],
                 NvFp4Scales<DType::kBF16>(both));
  }
}

// The largest power of two that decoding::E2M1Scale takes in bf16, as e8m0 has it.
inline constexpr uint32_t kLargestScale = 128;

// 2^(code - kLargestScale), or 1, twice; 255 is NaN.
__device__ __forceinline__ uint32_t BeyondLargest(uint32_t code) {
  const uint32_t number = code == 255            ? 0x7fc0u
                          : code > kLargestScale ? (code - kLargestScale + 127) << 7
                                                 : 0x3f80u;
  return number * 0x10001u;
}

// mxfp4's codes of some steps, by a warp, times their scales, which bf16 holds exactly below 2^128.
// `scales` has those of the tile, 16 bytes for each two steps; `pair`: r. A scale beyond
// kLargestScale multiplies in two parts.
template <int kSteps>
__device__ __forceinline__ void DecodeScaled(const LanePairs<Format::kE2M1, DType::kBF16>& pairs,
                                             const char* codes, const char* scales, int pair,
                                             uint32_t (&a)[kSteps][4]) {
  uint2 of_block[kSteps / 2];
  uint32_t most = 0;
#pragma unroll
  for (int block = 0; block < kSteps / 2; ++block) {
    const uint32_t both =
        reinterpret_cast<const uint16_t*>(scales + block * static_cast<int>(kTileRows))[pair];
    of_block[block] = {both & 255, both >> 8};
    most = max(most, max(both & 255, both >> 8));
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint2 code = of_block[step / 2];
    pairs.Decode(codes + step / 2 * kBlockBytes<Format::kE2M1>, step % 2, a[step],
                 uint2{decoding::E2M1Scale<DType::kBF16>(min(code.x, kLargestScale)),
                       decoding::E2M1Scale<DType::kBF16>(min(code.y, kLargestScale))});
  }
  if (!__any_sync(0xffffffffu, most > kLargestScale)) return;
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint2 code = of_block[step / 2];
      a[step][i] =
          decoding::MultiplyPairs<DType::kBF16>(a[step][i], BeyondLargest(i % 2 ? code.y : code.x));
    }
}

}  // namespace intarsia::matmul::sm90
