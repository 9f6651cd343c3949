// Where products of groups find the codes of a stage and their factors, and how they copy them: two
// boxes of tiles, of neighbors, or of gates and of their ups. A box has at most 128 columns of 4
// bits a tile; of more bits there are two, one after the other, each with all tiles.
#pragma once
#include <array>

#include "src/core/cuda/tensor_map.h"
#include "src/core/cuda/tma.cuh"
#include "src/core/round.h"
#include "src/matmul/cuda/quantized_plan.h"
#include "src/matmul/cuda/units.cuh"

namespace intarsia::matmul::sm90 {

// Boxes of a stage's codes, and the bytes of a tile in each of them.
constexpr int TileBoxes(Format format) { return BitsOf(format) > 4 ? 2 : 1; }
constexpr int TileBoxBytes(Format format) {
  return static_cast<int>(kStageColumns * kTileRows * BitsOf(format)) / 8 / TileBoxes(format);
}
inline constexpr int kOuterBytes = static_cast<int>(kTileRows) * 2;  // outer factors of a tile

// The factors of a stage of kTiles tiles. kEnds: of groups. u4 has points with kEach128, else
// minimums; kEach16 is nvfp4, or 6 bits. kInF16: whether minimums and their scales are in f16.
template <Format kFormat, GroupEnds kEnds, int kTiles, bool kInF16 = false>
struct StageFactors {
  static constexpr bool kOfSteps = kEnds == GroupEnds::kEach16;
  static constexpr bool kIsNvFp4 = kFormat == Format::kE2M1 && kOfSteps;
  static constexpr bool kPoints = kFormat == Format::kU4 && kEnds == GroupEnds::kEach128;
  static constexpr bool kMinimums = !kPoints && (kFormat == Format::kU4 || kFormat == Format::kU5);
  // GGUF's: bytes times outer factors in f16, in K-quants, or f16.
  static constexpr bool kIsGguf = kMinimums || kFormat == Format::kU6B32;
  static constexpr bool kOuters = kIsGguf && !kInF16;
  static constexpr DType kFactor = kInF16 ? DType::kF16 : kOfSteps ? DType::kI8 : DType::kU8;
  static_assert(kMinimums || !kInF16);
  static_assert(kFormat == Format::kE2M1 || kOfSteps == (kFormat == Format::kU6B32));
  static constexpr int kBoxTiles = kTiles / 2;
  static constexpr int kMostScaleBytes =  // of a tile
      kInF16 ? 128 : MostStageScaleBytes(kFormat, kEnds);
  // Zeros of a tile's group, of a tile, those of a box, and the room of a box.
  static constexpr int kGroupZeroBytes = static_cast<int>(kTileRows) * (kInF16 ? 2 : 1);
  static constexpr int kTileZeroBytes =
      kGroupZeroBytes * (kPoints     ? 1
                         : kMinimums ? kStageColumns / static_cast<int>(kBlockColumns)
                                     : 0);
  static constexpr int kZeroBytes = kBoxTiles * kTileZeroBytes;
  static constexpr int kZeroBoxBytes = RoundUp<int>(kZeroBytes, 128);
  // Where they lie behind scales. Boxes begin at multiples of 128 bytes, and only those of points
  // leave room behind them.
  static constexpr int kZerosAt = kTiles * kMostScaleBytes;
  static constexpr int kOuterScalesAt = kZerosAt + 2 * kZeroBoxBytes;
  static constexpr int kOuterZerosAt = kOuterScalesAt + (kOuters ? kTiles * kOuterBytes : 0);
  static constexpr int kFactorBytes =
      kOuterZerosAt + (kOuters && kMinimums ? kTiles * kOuterBytes : 0);
};

struct GroupedCodesMaps {
  CUtensorMap codes, scales, zeros, outer_scales, outer_zeros;  // word of a tile, tile, group
};

// What tasks have in common.
struct GroupedCodesCut {
  bool pairs;        // whether a task's boxes are of gates and of their ups
  int column_tiles;  // of a group's columns
  int parts;         // columns of w that make a result
  int stages;
  // Bytes of scales of a tile, in a stage and of one group, and how many of a stage's blocks share
  // them, as a power of two.
  int stage_scale_bytes, group_scale_bytes, group_shift;
  int outer_stages;  // that share outer factors

  // What a stage's boxes have.
  template <class S>
  __device__ __forceinline__ int StageBytes() const {
    constexpr int kCodes = TileBoxes(S::kFormat) * TileBoxBytes(S::kFormat);
    return S::kTiles * (kCodes + stage_scale_bytes) + 2 * S::kZeroBytes + S::kFactorBytes -
           S::kOuterScalesAt;
  }

  template <class S>
  static INTARSIA_HOST_DEVICE GroupedCodesCut Of(const QuantizedGroupsParams& p,
                                                 const QuantizedPlan& plan) {
    const bool pairs = p.each.gating.is_there && !p.each.gating.in_turn;
    const auto tiles = static_cast<int>(p.each.tiles);
    const int64_t outer_columns =
        S::kOuters ? p.each.group * (p.each.groups / p.each.scales.outers) : kStageColumns;
    return {pairs,
            pairs ? CeilDiv(tiles / 2, S::kBoxTiles) : CeilDiv(tiles, S::kTiles),
            p.each.gating.is_there ? 2 : 1,
            CeilDiv(static_cast<int>(p.each.k), kStageColumns),
            plan.stage_groups * plan.scale_bytes,
            plan.scale_bytes,
            p.each.group == 2 * kBlockColumns ? 1 : 0,
            static_cast<int>(outer_columns / kStageColumns)};
  }
};

// Places of a stage: the second box of scales lies scale_pitch behind the first one, and others as
// StageFactors says.
struct CodesPlace {
  char *codes, *factors;
  int scale_pitch;
};

// By one thread. Boxes end with zeros where a matrix ends.
template <class S>
__device__ __forceinline__ void CopyCodeBoxes(const QuantizedParams& each,
                                              const GroupedCodesMaps& maps,
                                              const GroupedCodesCut& cut, const Unit& unit,
                                              int stage, const CodesPlace& to,
                                              cuda::Barrier& full) {
  const int tile = unit.column_tile * (cut.pairs ? S::kBoxTiles : S::kTiles);
  const int step = cut.pairs ? static_cast<int>(each.tiles) / 2 : S::kBoxTiles;
  const int group = stage * kStageColumns / static_cast<int>(each.group);
  constexpr int kBytes = TileBoxBytes(S::kFormat), kBoxes = TileBoxes(S::kFormat);
#pragma unroll
  for (int box = 0; box < 2; ++box) {
    const auto copy = [&](char* place, const CUtensorMap& map, int word) {
      cuda::CopyBox<3>(place, map, {word, tile + box * step, unit.group}, full);
    };
#pragma unroll
    for (int i = 0; i < kBoxes; ++i)
      copy(to.codes + (i * S::kTiles + box * S::kBoxTiles) * kBytes, maps.codes,
           (stage * kBoxes + i) * (kBytes / 4));
    copy(to.factors + box * to.scale_pitch, maps.scales, group * (cut.group_scale_bytes / 4));
    if constexpr (S::kZeroBytes > 0)
      copy(to.factors + S::kZerosAt + box * S::kZeroBoxBytes, maps.zeros,
           group * (S::kGroupZeroBytes / 4));
    if constexpr (S::kOuters) {
      const int outer = stage / cut.outer_stages * (kOuterBytes / 4);
      constexpr int kBoxOuters = S::kBoxTiles * kOuterBytes;
      copy(to.factors + S::kOuterScalesAt + box * kBoxOuters, maps.outer_scales, outer);
      if constexpr (S::kMinimums)
        copy(to.factors + S::kOuterZerosAt + box * kBoxOuters, maps.outer_zeros, outer);
    }
  }
}

template <class S>
Status MakeCodesMaps(const QuantizedGroupsParams& p, const QuantizedPlan& plan,
                     const GroupedCodesCut& cut, GroupedCodesMaps& maps) {
  const QuantizedParams& each = p.each;
  const auto map = [&](const void* data, int64_t words, int box, CUtensorMap& to) {
    const std::array<cuda::MapAxis, 2> axes{
        {{each.tiles, words, S::kBoxTiles}, {p.groups.count, each.tiles * words}}};
    return cuda::MakeWordMap(data, words, box, axes, to);
  };
  INTARSIA_RETURN_IF_ERROR(
      map(each.packed, each.tile_bytes() / 4, TileBoxBytes(S::kFormat) / 4, maps.codes));
  INTARSIA_RETURN_IF_ERROR(map(each.scales.data, each.groups * plan.scale_bytes / 4,
                               cut.stage_scale_bytes / 4, maps.scales));
  if constexpr (S::kZeroBytes > 0)
    INTARSIA_RETURN_IF_ERROR(
        map(each.zeros.data, each.groups * plan.zero_bytes / 4, S::kTileZeroBytes / 4, maps.zeros));
  const auto outer = [&](const Factors& of, CUtensorMap& to) {
    return map(of.outer, of.outers * kOuterBytes / 4, kOuterBytes / 4, to);
  };
  if constexpr (S::kOuters) INTARSIA_RETURN_IF_ERROR(outer(each.scales, maps.outer_scales));
  if constexpr (S::kOuters && S::kMinimums)
    INTARSIA_RETURN_IF_ERROR(outer(each.zeros, maps.outer_zeros));
  return {};
}

}  // namespace intarsia::matmul::sm90
