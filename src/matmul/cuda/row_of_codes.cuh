// One row of x, or up to 8, times tiles of w in codes (matmul/quantized.h), by a warp:
//   sums[t][row][r] = sum over units begin ... end - 1 of x[row, i] w[16 tiles[t] + r, i],
// a unit being 128 columns.
//
// Memory bounds it. Codes and factors go from there right into registers, some units ahead; codes
// are A of m16n8k16. The warp's part of x is in shared memory. Columns of B are the rows, the last
// of them several times: zeros would have to be made. Scales of groups multiply sums, those of
// nvfp4 codes: a lane's eight columns of a block are of one group of 16.
#pragma once
#include <type_traits>

#include "src/core/cuda/mma.cuh"
#include "src/matmul/cuda/codes.cuh"
#include "src/matmul/cuda/raised.cuh"
#include "src/matmul/cuda/raw_factors.cuh"
#include "src/matmul/cuda/row_of_codes.h"
#include "src/matmul/cuda/shared_rows.cuh"

namespace intarsia::matmul {

// kEnds: of groups; kEach16 is nvfp4. kRows: 1, or 8 for 2 to 8 rows.
template <DType kType, Format kFormat, GroupEnds kEnds, int kTiles, int kRows = 1>
class RowOfCodes {
 public:
  using T = cuda::DeviceT<kType>;
  using Eight = cuda::Pack<T, 8>;
  // Of a tile in a lane: of rows 2r and 2r + 1 of w, r = lane / 4; or of both for row 2c of x, c =
  // lane % 4, and for row 2c + 1, as in a C fragment.
  using Results = std::conditional_t<kRows == 1, float2, float4>;

  // Which columns of x are in shared memory.
  enum class Row { kOfPart, kOfAll };

  // Has part `part` of 2^shift.
  __device__ __forceinline__ RowOfCodes(const QuantizedParams& p, const RowOfCodesShape& shape,
                                        int part, int shift, SharedRows row, Row has = Row::kOfPart)
      : p_(p), shape_(shape), row_(row) {
    const int all = (shape.blocks + kUnitBlocks - 1) / kUnitBlocks;
    begin_ = all * part >> shift;
    count_ = (all * (part + 1) >> shift) - begin_;
    if (has == Row::kOfAll)
      row_.Skip(begin_);
    else
      row_.BeginWith(begin_);
    const auto row_of = [&](int i) { return kRows == 1 ? 0 : min(i, shape.rows - 1); };
    x_ = row_.Of(row_of(Lane() / 4)).pieces + Lane() % 4;
#pragma unroll
    for (int e = 0; e < kEach; ++e) sums_of_x_[e] = row_.Of(row_of(Lane() % 4 * 2 + e)).sums;
  }

  // The warp puts its part of x there.
  __device__ __forceinline__ void TakePart(const T* x) {
    do Take(row_, begin_ * kUnitPieces, count_ * kUnitPieces, x, Lane(), 32);
    while (Raised::kIsRaised &&
           raised_.LowerRaises(__any_sync(0xffffffffu, raised_.Overflowed() != 0)));
    __syncwarp();
  }
  // All threads of the CTA put x there, by take().
  template <class TakeAll>
  __device__ __forceinline__ void TakeTogether(TakeAll take) {
    if constexpr (Raised::kIsRaised) {
      do take();
      while (raised_.LowerRaises(OverflowedForAny()));
    } else {
      take();
      __syncthreads();
    }
  }
  // So many threads, all of some warps, put x there, from piece `begin` on.
  __device__ __forceinline__ void Take(const SharedRows& to, int begin, int pieces, const void* x,
                                       int thread, int threads) {
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
      for (int j = 0; j < kBatch; ++j) {
        if (first - thread + threads * j >= pieces) break;
        StorePiece(to, first + threads * j, pieces, eight[j]);
      }
    }
  }

  // All rows of x.
  __device__ __forceinline__ void TakeRows(const SharedRows& to, int pieces, int thread,
                                           int threads) {
    const auto* const x = static_cast<const Eight*>(p_.x);
    const int end = static_cast<int>(p_.k) / 8;
#pragma unroll 1
    for (int piece = thread; piece - thread < pieces; piece += threads) {
      Eight eight[kRows];
#pragma unroll
      for (int row = 0; row < kRows; ++row)
        eight[row] = row < shape_.rows && piece < end ? x[row * end + piece] : Eight{};
#pragma unroll
      for (int row = 0; row < kRows; ++row)
        if (row < shape_.rows) StorePiece(to.Of(row), piece, pieces, eight[row], row);
    }
  }

  // Each lane puts one piece there, if it is one of so many; all of a warp come here.
  __device__ __forceinline__ void StorePiece(const SharedRows& to, int piece, int pieces,
                                             Eight eight, int row = 0) {
    uint4 bits;
    memcpy(&bits, &eight, sizeof bits);
    bits = raised_.Pairs(bits, row);
    memcpy(&eight, &bits, sizeof eight);
    const int place = to.PlaceOf(piece);
    if (piece < pieces) to.pieces[place] = Bare::InOrder(bits);
    if (!NeedsSums()) return;
    // Of a unit if kWide, else of a block, of which so many lanes have a piece each.
    float sum = 0.0f;
    constexpr int kLanes = kWide ? kUnitPieces : kBlockPieces;
#pragma unroll
    for (const T& number : eight.at) sum += cuda::ToFloat(number) * Raised::kHalfStep;
#pragma unroll
    for (int lanes = 1; lanes < kLanes; lanes *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (piece < pieces && piece % kLanes == 0)
      to.sums[place / kLanes * (kLanes / kBlockPieces)] = Raised::Stepped(sum);
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
                      int64_t{tile} * shape_.tile_scale_bytes + 2 * r * ScaleBytes() +
                      (kIsNvFp4 ? Lane() % 4 / 2 * kTile : 0);  // its columns' group
      outer_.PointAt(t, p_.scales, matrix, tile, r);
      KeepGlobal(codes_at_[t]), KeepGlobal(scales_at_[t]);
      if constexpr (!kMayHaveZeros) continue;
      zeros_at_[t] = HasZeros()
                         ? static_cast<const char*>(p_.zeros.data) +
                               int64_t{tile} * shape_.tile_zero_bytes + 2 * r * shape_.zero_bytes
                         : scales_at_[t];
      KeepGlobal(zeros_at_[t]);
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
    outer_.Load(p_.scales);
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (i < count_) AskFor(ring_[i], i);
  }

  __device__ __forceinline__ void Multiply(Results (&sums)[kTiles]) {
    float all[kTiles][4] = {};
    if constexpr (kIsNvFp4)
      AddUnits<DType::kF8E4M3>(all);
    else if constexpr (kIsE2M1)
      AddUnits<DType::kF8E8M0>(all);
    else if (p_.scales.dtype == DType::kF16)
      AddUnits<DType::kF16>(all);
    else if (p_.scales.dtype == DType::kBF16)
      AddUnits<DType::kBF16>(all);
    else
      AddUnits<DType::kF32>(all);
    if constexpr (kIsE2M1 && !kIsNvFp4) powers_.PutNaNs(all);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const auto lowered = [&](int i) {
        const float sum = raised_.Lowered(all[t][i], kRows == 1 ? 0 : Lane() % 4 * 2 + i % 2);
        return outer_.Times(t, i / 2, sum);
      };
      if constexpr (kRows == 1)
        sums[t] = {lowered(0), lowered(2)};
      else
        sums[t] = {lowered(0), lowered(1), lowered(2), lowered(3)};
    }
  }

 private:
  static constexpr bool kIsE2M1 = kFormat == Format::kE2M1, kWide = kEnds == GroupEnds::kEach128;
  static constexpr bool kIsNvFp4 = kEnds == GroupEnds::kEach16;
  static constexpr int kBits = static_cast<int>(BitsOf(kFormat));
  static_assert(kBits == 4 || kBits == 8);
  using Bare = std::conditional_t<kIsNvFp4, NvFp4Codes<kType>, BareCodes<kFormat, kType>>;
  using Raised = RaisedX<kType, Bare::kStep>;
  static constexpr int kWords = kBits / 4;  // of a row in a lane
  static constexpr int kLaneBytes = kWords * static_cast<int>(kLineBytes);
  static constexpr int kBlockBytes = 4 * kLaneBytes;
  static constexpr int kGroups = kWide ? 1 : kUnitBlocks;
  static constexpr bool kMayHaveZeros = kFormat == Format::kU4;
  // Units in flight. With two tiles CTAs are many, and in flight together.
  static constexpr int kAhead = kTiles > 1 ? 1 : 4 / kWords / (kMayHaveZeros && !kWide ? 2 : 1);
  struct Unit {
    uint2 codes[kUnitBlocks][kTiles][kWords];
    RawPair scales[kGroups][kTiles], zeros[kGroups][kTiles];
  };

  static constexpr uint32_t kTile = kTileRows;
  static constexpr int kEach = kRows == 1 ? 1 : 2;  // rows of x that a lane's sums are of
  static_assert(RowOfCodesShape::NeedsSums(kFormat, false) == (Bare::kBias > 0.0f));

  static __device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x % 32); }
  // Of the lane's first codes.
  static __device__ __forceinline__ int OffsetInBlock() {
    return Lane() % 4 * kLaneBytes + Lane() / 4 * 8;
  }
  __device__ __forceinline__ bool HasZeros() const {
    return kMayHaveZeros && shape_.zero_bytes > 0;
  }
  __device__ __forceinline__ bool NeedsSums() const {
    return RowOfCodesShape::NeedsSums(kFormat, HasZeros());
  }
  __device__ __forceinline__ int ScaleBytes() const { return kIsE2M1 ? 1 : shape_.scale_bytes; }

  // kScale, kZero: types of factors, or kOther where they may be any.
  template <DType kScale = DType::kOther, DType kZero = DType::kOther>
  __device__ __forceinline__ void AskFor(Unit& to, int unit) const {
    const int first = min((begin_ + unit) * kUnitBlocks, shape_.blocks - kUnitBlocks);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const uint8_t* const from = codes_at_[t] + static_cast<uint32_t>(first * kBlockBytes);
#pragma unroll
      for (int b = 0; b < kUnitBlocks; ++b)
#pragma unroll
        for (int w = 0; w < kWords; ++w)
          to.codes[b][t][w] =
              cuda::LoadOnce8(from + b * kBlockBytes + w * static_cast<int>(kLineBytes));
    }
    const int bytes = kScale == DType::kOther ? ScaleBytes() : Bytes(kScale);
    const int zero_bytes = kZero == DType::kOther ? shape_.zero_bytes : Bytes(kZero);
    if (kIsE2M1 || (!kWide && shape_.is_block_group)) {  // known offsets, and no division
      const uint32_t of_scales = kTile * (kIsNvFp4 ? 2 : bytes), of_zeros = kTile * zero_bytes;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const char* const scales = scales_at_[t] + first * of_scales;
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
          to.scales[g][t].template Load<kIsE2M1>(scales + g * of_scales, bytes);
        if (!HasZeros()) continue;
        const char* const zeros = zeros_at_[t] + first * of_zeros;
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
          to.zeros[g][t].template Load<true>(zeros + g * of_zeros, zero_bytes);
      }
    } else {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        // The last unit's new blocks are its last ones.
        const int block = first + (kWide ? kUnitBlocks - 1 : g);
        const uint32_t group = shape_.blocks_of_group.Divide(block);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          to.scales[g][t].template Load<false>(scales_at_[t] + group * (kTile * bytes), bytes);
          if (HasZeros())
            to.zeros[g][t].template Load<true>(zeros_at_[t] + group * (kTile * zero_bytes),
                                               zero_bytes);
        }
      }
    }
  }

  // Rows that overflowed for any thread of the CTA, when all have come here.
  __device__ __forceinline__ uint32_t OverflowedForAny() const {
    const uint32_t own = raised_.Overflowed();
    if (!__syncthreads_or(own != 0)) return 0;
    uint32_t any = 0;
#pragma unroll 1
    for (int row = 0; row < kRows; ++row)
      if (__syncthreads_or(static_cast<int>(own >> row & 1))) any |= 1u << row;
    return any;
  }

  // A loop for each type of scales, and for the zeros that files have, bytes and those of the type
  // of scales.
  template <DType kScale>
  __device__ __forceinline__ void AddUnits(float (&all)[kTiles][4]) {
    if constexpr (kMayHaveZeros) {
      if (p_.zeros.dtype == DType::kU8) return AddUnits<kScale, DType::kU8>(all);
      if (p_.zeros.dtype == kScale) return AddUnits<kScale, kScale>(all);
    }
    AddUnits<kScale, DType::kOther>(all);
  }
  // kZero: kOther where it may be any.
  template <DType kScale, DType kZero>
  __device__ __forceinline__ void AddUnits(float (&all)[kTiles][4]) {
#pragma unroll 1
    for (int first = 0; first < count_; first += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + i >= count_) break;
        AddUnit<kScale, kZero>(ring_[i], first + i, all);
        if constexpr (kIsE2M1 && !kIsNvFp4) powers_.Note(ring_[i].scales);
        if (first + kAhead + i < count_) AskFor<kScale, kZero>(ring_[i], first + kAhead + i);
      }
    }
  }
  template <DType kScale, DType kZero>
  __device__ __forceinline__ void AddUnit(const Unit& from, int unit,
                                          float (&all)[kTiles][4]) const {
    float even[kTiles][4], odd[kTiles][4];  // of a group, as C fragments
    float of_x[kEach] = {};
#pragma unroll
    for (int b = 0; b < kUnitBlocks; ++b) {
      const int block = unit * kUnitBlocks + b, g = kWide ? 0 : b;
      const uint4 x = x_[kBlockPieces * block];
      if (NeedsSums() && b == g)
#pragma unroll
        for (int e = 0; e < kEach; ++e) of_x[e] = sums_of_x_[e][block];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if constexpr (kIsNvFp4) {
          MultiplyAdd(from.codes[b][t], x, all[t], all[t],
                      NvFp4Scales<kType>(from.scales[g][t].bits.x));
        } else {
          if (b == g)
#pragma unroll
            for (int i = 0; i < 4; ++i) even[t][i] = odd[t][i] = 0.0f;
          MultiplyAdd(from.codes[b][t], x, even[t], odd[t]);
          if (!kWide || b == kUnitBlocks - 1)
            AddGroup<kScale, kZero>(from.scales[g][t], from.zeros[g][t], of_x, even[t], odd[t],
                                    all[t]);
        }
      }
    }
  }
  template <DType kScale, DType kZero>
  __device__ __forceinline__ void AddGroup(const RawPair& scales, const RawPair& zeros,
                                           const float (&of_x)[kEach], const float (&even)[4],
                                           const float (&odd)[4], float (&all)[4]) const {
    float2 scale, zero = {};
    if constexpr (kIsE2M1)
      scale = E8M0Scales<kTiles>::PairOf(scales.bits.x);
    else
      scale = scales.template Numbers<false>(kScale);
    if (HasZeros()) {
      zero = zeros.template Numbers<true>(kZero == DType::kOther ? p_.zeros.dtype : kZero);
      if (p_.points) zero = {-scale.x * zero.x, -scale.y * zero.y};
    }
#pragma unroll
    for (int i = 0; i < 4; i += 2 / kEach) {
      float sum = even[i] + Bare::kOddWeight * odd[i];
      if (Bare::kBias > 0.0f) sum -= Bare::kBias * of_x[i % kEach];
      all[i] += (i < 2 ? scale.x : scale.y) * sum;
      if (HasZeros()) all[i] += (i < 2 ? zero.x : zero.y) * of_x[i % kEach];
    }
  }
  // scales: none, or of rows 2r and 2r + 1, which multiply codes.
  template <class... Scales>
  __device__ __forceinline__ void MultiplyAdd(const uint2 (&words)[kWords], const uint4& x,
                                              float (&even)[4], float (&odd)[4],
                                              Scales... scales) const {
    using M = cuda::Mma<kType>;
    uint32_t low[4], high[4];
    constexpr int kPairs = 4 / kWords;  // of a word
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      uint32_t first[kPairs], second[kPairs];
      Bare::Decode(words[w].x, scales.x..., first), Bare::Decode(words[w].y, scales.y..., second);
#pragma unroll
      for (int i = 0; i < kPairs; ++i)
        low[kPairs * w + i] = first[i], high[kPairs * w + i] = second[i];
    }
    M::MultiplyAdd(even, {{low[0], high[0], low[1], high[1]}}, {{x.x, x.y}});
    M::MultiplyAdd(odd, {{low[2], high[2], low[3], high[3]}}, {{x.z, x.w}});
  }

  const QuantizedParams& p_;
  const RowOfCodesShape& shape_;
  int begin_, count_;  // units
  SharedRows row_;
  const uint4* x_;  // the lane's first piece of each block
  const float* sums_of_x_[kEach];
  Raised raised_;
  E8M0Scales<kTiles> powers_;  // of mxfp4
  NvFp4OuterScales<kIsNvFp4 ? kTiles : 0> outer_;
  const uint8_t* codes_at_[kTiles];
  const char *scales_at_[kTiles], *zeros_at_[kTiles];
  Unit ring_[kAhead];
};

}  // namespace intarsia::matmul
