// One row of x times tiles of w in codes (matmul/quantized.h), by a warp:
//   sums[t][r] = sum over units begin ... end - 1 of x[i] w[16 tiles[t] + r, i],
// a unit being 128 columns.
//
// Memory bounds it. Codes and factors go from there right into registers, some units ahead; codes
// are A of m16n8k16. The warp's part of x is in shared memory. Every column of B is the row: zeros
// would have to be made.
#pragma once
#include "src/core/cuda/mma.cuh"
#include "src/core/dispatch.h"
#include "src/matmul/cuda/codes.cuh"
#include "src/matmul/cuda/factors.cuh"
#include "src/matmul/cuda/row_of_codes.h"

namespace intarsia::matmul {

// Two neighboring factors as they lie in memory, each of 1, 2 or 4 bytes.
struct RawPair {
  uint2 bits;

  // kMayBeBytes: whether each may have 1 byte, where it may otherwise have 2 or 4.
  template <bool kMayBeBytes>
  __device__ __forceinline__ void Load(const char* from, int bytes) {
    if (kMayBeBytes && bytes == 1)
      bits.x = *reinterpret_cast<const uint16_t*>(from);
    else if (bytes == 2)
      bits.x = *reinterpret_cast<const uint32_t*>(from);
    else
      bits = *reinterpret_cast<const uint2*>(from);
  }
  // All conversions to f32, and then a choice: branches cost more.
  template <bool kMayBeBytes>
  __device__ __forceinline__ float2 Numbers(DType dtype) const {
    if (kMayBeBytes && dtype == DType::kU8) return make_float2(bits.x & 0xff, bits.x >> 8);
    if (kMayBeBytes && dtype == DType::kI8)
      return make_float2(static_cast<int8_t>(bits.x & 0xff), static_cast<int8_t>(bits.x >> 8));
    __half2 halves;
    memcpy(&halves, &bits.x, sizeof halves);
    const float2 f16 = __half22float2(halves);
    const bool is_f16 = dtype == DType::kF16, is_f32 = dtype == DType::kF32;
    const float low = is_f16 ? f16.x : __uint_as_float(is_f32 ? bits.x : bits.x << 16);
    const float high = is_f16 ? f16.y : __uint_as_float(is_f32 ? bits.y : bits.x & 0xffff0000u);
    return {low, high};
  }
};

// Where shared memory has columns of x: pieces of 8, in the order of codes, and where there are
// zeros the sum of each block. A last unit that has not all of its blocks begins with some of the
// unit before it, times 0: its own come last.
struct SharedRow {
  __device__ __forceinline__ SharedRow(char* shared, const RowOfCodesShape& shape)
      : pieces(reinterpret_cast<uint4*>(shared)),
        block_sums(reinterpret_cast<float*>(shared + shape.units * kUnitBlocks * kRowBlockBytes)),
        whole(shape.blocks / kUnitBlocks * kUnitPieces),
        turn(-shape.blocks * kBlockPieces & (kUnitPieces - 1)) {}
  // Leaves out the first units, which are there.
  __device__ __forceinline__ void Skip(int units) {
    pieces += units * kUnitPieces, block_sums += units * kUnitBlocks;
  }
  // The first one that is there.
  __device__ __forceinline__ void BeginWith(int unit) { whole -= unit * kUnitPieces; }

  // Where a piece of x, or of the zeros up to a whole unit, is.
  __device__ __forceinline__ int PlaceOf(int piece) const {
    return piece < whole ? piece : whole + ((piece + turn) & (kUnitPieces - 1));
  }

  uint4* pieces;
  float* block_sums;
  int whole, turn;  // pieces of whole units, and by how many those of the last one are turned
};

// The sums of a warp's tiles, from the lanes that have them.
template <int kTiles>
__device__ __forceinline__ void StoreRowSums(const float2 (&sums)[kTiles],
                                             float (&to)[kTiles][kTileRows]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (lane % 4 != 0) return;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) reinterpret_cast<float2*>(to[t])[lane / 4] = sums[t];
}

// kWide: RowOfCodesShape::wide.
template <DType kType, Format kFormat, bool kWide, int kTiles>
class RowOfCodes {
 public:
  using T = cuda::DeviceT<kType>;
  using Eight = cuda::Pack<T, 8>;

  // Which columns of x are in shared memory.
  enum class Row { kOfPart, kOfAll };

  // Has part `part` of 2^shift.
  __device__ __forceinline__ RowOfCodes(const QuantizedParams& p, const RowOfCodesShape& shape,
                                        int part, int shift, SharedRow row, Row has = Row::kOfPart)
      : p_(p), shape_(shape), row_(row), spread_(OpaqueZero(p)) {
    const int all = (shape.blocks + kUnitBlocks - 1) / kUnitBlocks;
    begin_ = all * part >> shift;
    count_ = (all * (part + 1) >> shift) - begin_;
    if (has == Row::kOfAll)
      row_.Skip(begin_);
    else
      row_.BeginWith(begin_);
  }

  // The warp puts its part of x there.
  __device__ __forceinline__ void TakePart(const T* x) const {
    Take(row_, begin_ * kUnitPieces, count_ * kUnitPieces, x, Lane(), 32);
    __syncwarp();
  }
  // So many threads, all of some warps, put x there, from piece `begin` on.
  __device__ __forceinline__ void Take(const SharedRow& to, int begin, int pieces, const void* x,
                                       int thread, int threads) const {
    constexpr int kBatch = 3;
    const auto* const from = static_cast<const Eight*>(x) + begin;
    const int end = min(static_cast<int>(p_.k) / 8 - begin, pieces);
#pragma unroll 1
    for (int first = thread; first - thread < pieces; first += threads * kBatch) {
      Eight eight[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int piece = first + threads * j;
        eight[j] = piece < end ? from[piece] : Eight{};
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) StorePiece(to, first + threads * j, pieces, eight[j]);
    }
  }

  // Each lane puts one piece there, if it is one of so many; all of a warp come here.
  __device__ __forceinline__ void StorePiece(const SharedRow& to, int piece, int pieces,
                                             const Eight& eight) const {
    uint4 bits;
    memcpy(&bits, &eight, sizeof bits);
    const int place = to.PlaceOf(piece);
    if (piece < pieces) to.pieces[place] = InOrder(bits);
    if (!HasZeros()) return;
    float sum = 0.0f;  // of a block's 32 numbers, of which four lanes have a piece each
#pragma unroll
    for (const T& number : eight.at) sum += cuda::ToFloat(number);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (piece < pieces && piece % kBlockPieces == 0) to.block_sums[place / kBlockPieces] = sum;
  }

  // Asks for the first codes and factors of tiles of matrix number `matrix`.
  __device__ __forceinline__ void AskForFirst(int matrix, const int (&tiles)[kTiles]) {
    PointAt(matrix, tiles);
    AskForFirst();
  }
  // The same in two steps, between which the codes may be prefetched.
  __device__ __forceinline__ void PointAt(int matrix, const int (&tiles)[kTiles]) {
    const int r = Lane() / 4;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int tile = matrix * static_cast<int>(p_.tiles) + tiles[t];
      codes_at_[t] = p_.packed + int64_t{tile} * shape_.blocks * kBlockBytes + OffsetInBlock();
      scales_at_[t] = static_cast<const char*>(p_.scales.data) +
                      int64_t{tile} * shape_.tile_scale_bytes + 2 * r * ScaleBytes();
      if (HasZeros())
        zeros_at_[t] = static_cast<const char*>(p_.zeros.data) +
                       int64_t{tile} * shape_.tile_zero_bytes + 2 * r * shape_.zero_bytes;
    }
  }
  // To the L2 cache, which all kernels share: so this may come before AwaitPrevious, though a
  // kernel that still runs writes the codes. It may pass the warp's share, but not the tile.
  __device__ __forceinline__ void PrefetchCodes() const {
    constexpr int kL2LineBytes = 128, kLines = kAhead * kUnitBlocks * kBlockBytes / kL2LineBytes;
    static_assert(kLines <= 32);  // one for each lane
    const int at = begin_ * kUnitBlocks * kBlockBytes + Lane() * kL2LineBytes;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      if (Lane() < kLines && at < shape_.blocks * kBlockBytes)
        cuda::PrefetchL2(codes_at_[t] + (at - OffsetInBlock()));
  }
  __device__ __forceinline__ void AskForFirst() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (i < count_) AskFor(ring_[i], i);
  }

  // In each lane: of rows 2r and 2r + 1 of each tile, r = lane / 4.
  __device__ __forceinline__ void Multiply(float2 (&sums)[kTiles]) {
    Sums all[2] = {};
#pragma unroll 1
    for (int first = 0; first < count_; first += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + i >= count_) break;
        Add(ring_[i], first + i, all);
        if (first + kAhead + i < count_) AskFor(ring_[i], first + kAhead + i);
      }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      sums[t] = {(all[0][t][0] + all[1][t][0]) / kUnit, (all[0][t][2] + all[1][t][2]) / kUnit};
  }

 private:
  using Sums = float[kTiles][4];
  static constexpr bool kIsE2M1 = kFormat == Format::kE2M1;
  static constexpr int kBits = static_cast<int>(BitsOf(kFormat));
  static_assert(kBits == 4 || kBits == 8);
  static constexpr float kUnit = SpreadCodes<kFormat, kType>::kUnit;
  static constexpr int kWords = kBits / 4;  // of a row in a lane
  static constexpr int kLaneBytes = kWords * static_cast<int>(kLineBytes);
  static constexpr int kBlockBytes = 4 * kLaneBytes;
  static constexpr int kGroups = kWide ? 1 : kUnitBlocks;
  static constexpr bool kMayHaveZeros = kFormat == Format::kU4;
  // Units in flight. With two tiles CTAs are many, and in flight together.
  static constexpr int kAhead = kTiles > 1 ? 1 : 4 / kWords / (kMayHaveZeros && !kWide ? 2 : 1);
  // Compilers convert all factors of two tiles first, for which they lack registers, unless there
  // is a branch: that for bytes, which scales never are here.
  static constexpr bool kBranches = kTiles > 1 && (!kWide || kMayHaveZeros);
  struct Unit {
    uint2 codes[kUnitBlocks][kTiles][kWords];
    RawPair scales[kGroups][kTiles], zeros[kGroups][kTiles];
  };

  static __device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x % 32); }
  // Of the lane's first codes.
  static __device__ __forceinline__ int OffsetInBlock() {
    return Lane() % 4 * kLaneBytes + Lane() / 4 * 8;
  }
  __device__ __forceinline__ bool HasZeros() const {
    return kMayHaveZeros && shape_.zero_bytes > 0;
  }

  __device__ __forceinline__ int ScaleBytes() const { return kIsE2M1 ? 1 : shape_.scale_bytes; }

  __device__ __forceinline__ void AskFor(Unit& to, int unit) const {
    const int first = min((begin_ + unit) * kUnitBlocks, shape_.blocks - kUnitBlocks);
#pragma unroll
    for (int b = 0; b < kUnitBlocks; ++b)
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int w = 0; w < kWords; ++w)
          to.codes[b][t][w] = cuda::LoadOnce8(codes_at_[t] + (first + b) * kBlockBytes +
                                              w * static_cast<int>(kLineBytes));
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      // The last unit's new blocks are its last ones.
      const int block = first + (kWide ? kUnitBlocks - 1 : g);
      const int at = static_cast<int>(shape_.blocks_of_group.Divide(block) * kTileRows);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if constexpr (kIsE2M1)
          to.scales[g][t].bits.x = *reinterpret_cast<const uint16_t*>(scales_at_[t] + at);
        else
          to.scales[g][t].template Load<false>(scales_at_[t] + at * ScaleBytes(), ScaleBytes());
        if (HasZeros())
          to.zeros[g][t].template Load<true>(zeros_at_[t] + at * shape_.zero_bytes,
                                             shape_.zero_bytes);
      }
    }
  }

  __device__ __forceinline__ void Add(const Unit& from, int unit, Sums (&all)[2]) {
    if constexpr (kIsE2M1)
      if (ArePlain(from)) return AddUnit<true>(from, unit, all);
    AddUnit<false>(from, unit, all);
  }
  // kPlain: scales are factors of the codes.
  template <bool kPlain>
  __device__ __forceinline__ void AddUnit(const Unit& from, int unit, Sums (&all)[2]) {
    Sums groups[2];
    float of_x = 0.0f;
#pragma unroll
    for (int b = 0; b < kUnitBlocks; ++b) {
      const int block = unit * kUnitBlocks + b, g = kWide ? 0 : b;
      const uint4 x = row_.pieces[kBlockPieces * block + Lane() % kBlockPieces];
      if (HasZeros()) of_x += row_.block_sums[block];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if constexpr (kPlain) {
          const uint32_t both = from.scales[g][t].bits.x;
          MultiplyAdd(from.codes[b][t], x, all[0][t], all[1][t],
                      decoding::E2M1Scale<kType>(both & 0xff),
                      decoding::E2M1Scale<kType>(both >> 8));
        } else {
          if (!kWide || b == 0)
#pragma unroll
            for (int i = 0; i < 4; ++i) groups[0][t][i] = groups[1][t][i] = 0.0f;
          MultiplyAdd(from.codes[b][t], x, groups[0][t], groups[1][t]);
          if (!kWide || b == kUnitBlocks - 1)
            AddGroup(from.scales[g][t], from.zeros[g][t], of_x,
                     {groups[0][t][0] + groups[1][t][0], groups[0][t][2] + groups[1][t][2]},
                     all[0][t]);
        }
      }
      if (!kWide) of_x = 0.0f;
    }
  }
  __device__ __forceinline__ void AddGroup(const RawPair& scales, const RawPair& zeros, float of_x,
                                           float2 sums, float (&all)[4]) const {
    float2 scale;
    if constexpr (kIsE2M1)
      scale = {PowerOf(scales.bits.x & 0xff), PowerOf(scales.bits.x >> 8)};
    else
      scale = scales.template Numbers<kBranches>(p_.scales.dtype);
    all[0] += scale.x * sums.x, all[2] += scale.y * sums.y;
    if (!HasZeros()) return;
    float2 zero = zeros.template Numbers<true>(p_.zeros.dtype);
    if (p_.points) zero = {-scale.x * zero.x, -scale.y * zero.y};
    all[0] += zero.x * kUnit * of_x, all[2] += zero.y * kUnit * of_x;
  }
  // Whether E2M1Scale is exact for all scales of a unit.
  __device__ __forceinline__ bool ArePlain(const Unit& unit) const {
    uint32_t odd = 0;
#pragma unroll
    for (const auto& of_group : unit.scales)
#pragma unroll
      for (const RawPair& pair : of_group) {
        odd |= pair.bits.x;
        if (kType == DType::kF16) odd |= ~((pair.bits.x | 0x8080u) - 104 * 0x0101u);
      }
    return !__any_sync(0xffffffffu, (odd & 0x8080u) != 0);
  }

  // scales: none, or decoding::E2M1Scale of rows 2r and 2r + 1.
  template <class... Scale>
  __device__ __forceinline__ void MultiplyAdd(const uint2 (&words)[kWords], const uint4& x,
                                              float (&even)[4], float (&odd)[4],
                                              Scale... scales) const {
    using M = cuda::Mma<kType>;
    uint32_t low[4], high[4];
    if constexpr (sizeof...(Scale) > 0) {
      const uint32_t both[] = {scales...};
      spread_.Decode(words[0].x, low, both[0]), spread_.Decode(words[0].y, high, both[1]);
    } else if constexpr (kBits == 4) {
      spread_.Decode(words[0].x, low), spread_.Decode(words[0].y, high);
    } else {
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        uint32_t first[2], second[2];
        Decode<kFormat, kType>({words[w].x, 0}, first);
        Decode<kFormat, kType>({words[w].y, 0}, second);
#pragma unroll
        for (int i = 0; i < 2; ++i) low[2 * w + i] = first[i], high[2 * w + i] = second[i];
      }
    }
    M::MultiplyAdd(even, {{low[0], high[0], low[1], high[1]}}, {{x.x, x.y}});
    M::MultiplyAdd(odd, {{low[2], high[2], low[3], high[3]}}, {{x.z, x.w}});
  }

  static __device__ __forceinline__ uint4 InOrder(const uint4& x) {
    if constexpr (kBits == 4) return SpreadCodes<kFormat, kType>::InOrder(x);
    return x;
  }

  const QuantizedParams& p_;
  const RowOfCodesShape& shape_;
  int begin_, count_;  // units
  SharedRow row_;
  const SpreadCodes<kFormat, kType> spread_;
  const uint8_t* codes_at_[kTiles];
  const char *scales_at_[kTiles], *zeros_at_[kTiles];
  Unit ring_[kAhead];
};

}  // namespace intarsia::matmul
