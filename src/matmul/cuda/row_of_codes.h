// How products of few rows with weights in codes (row_of_codes.cuh) are cut.
#pragma once
#include <algorithm>

#include "src/core/divisor.h"
#include "src/matmul/quantized.h"

namespace intarsia::matmul {

// A warp's share is a number of units of 128 columns: blocks of 32, and pieces of 8.
inline constexpr int kUnitBlocks = 4, kBlockPieces = 4, kUnitPieces = kUnitBlocks * kBlockPieces;
static_assert(kUnitBlocks * kBlockColumns == kStageColumns);
inline constexpr int kMostRowsOfCodes = 8;  // of x: what an mma has columns for
// Several rows of x lie so far apart, for the banks, in pieces.
inline constexpr int kRowPadPieces = 4, kPieceBytes = 16;

// What warps that share the columns of w need.
struct RowOfCodesShape {
  int blocks, tile_scale_bytes, tile_zero_bytes;  // of a tile
  Divisor blocks_of_group;
  bool is_block_group;          // whether a group is a block
  int scale_bytes, zero_bytes;  // of one; 0: there are no zeros
  GroupEnds ends;
  int rows;   // of x
  int units;  // of a warp, at most
  int bytes;  // of its shared memory

  constexpr int pitch() const {  // of rows, in pieces
    return units * kUnitPieces + (rows > 1 ? kRowPadPieces : 0);
  }

  static bool CanTake(const QuantizedParams& p) {
    constexpr int64_t kEnd = 1 << 20;  // of columns: far more than shared memory holds
    const bool powers = p.scales.dtype == DType::kF8E8M0, e2m1 = p.format == Format::kE2M1;
    if (p.blocks() < kUnitBlocks || p.k >= kEnd || p.group >= int64_t{1} << 30) return false;
    if (IsNvFp4(p)) return p.k % kBlockColumns == 0;
    return (BitsOf(p.format) == 4 || BitsOf(p.format) == 8) && p.group % kBlockColumns == 0 &&
           powers == e2m1 && (powers ? p.group == kBlockColumns : Bytes(p.scales.dtype) > 1) &&
           !p.scales.outer && (!p.zeros.data || (p.format == Format::kU4 && !p.zeros.outer));
  }
  // Whether sums of x are needed, also to take a bias away (BareCodes::kBias).
  static constexpr bool NeedsSums(Format format, bool has_zeros) {
    return has_zeros || format == Format::kU4B8 || format == Format::kI8;
  }
  // 2^shift warps share the columns.
  static RowOfCodesShape Of(const QuantizedParams& p, int shift, int rows = 1) {
    constexpr auto kTile = static_cast<int>(kTileRows);
    const int scale = Bytes(p.scales.dtype), zero = p.zeros.data ? Bytes(p.zeros.dtype) : 0;
    const auto blocks = static_cast<int>(p.blocks()), groups = static_cast<int>(p.groups);
    const int units = CeilDiv(CeilDiv(blocks, kUnitBlocks), 1 << shift);
    RowOfCodesShape shape{.blocks = blocks,
                          .tile_scale_bytes = groups * kTile * scale,
                          .tile_zero_bytes = groups * kTile * zero,
                          .blocks_of_group = Divisor(std::max<int64_t>(p.group / kBlockColumns, 1)),
                          .is_block_group = p.group == kBlockColumns,
                          .scale_bytes = scale,
                          .zero_bytes = zero,
                          .ends = GroupEndsOf(p.group),
                          .rows = rows,
                          .units = units,
                          .bytes = 0};
    const bool sums = NeedsSums(p.format, p.zeros.data);
    shape.bytes = rows * (shape.pitch() * kPieceBytes +
                          (sums ? int{sizeof(float)} * units * kUnitBlocks : 0));
    return shape;
  }
};

}  // namespace intarsia::matmul
