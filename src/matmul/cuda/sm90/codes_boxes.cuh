// Where products of groups find the codes of a stage, and how they copy them: two boxes of tiles,
// of neighbors, or of gates and of their ups. A box has at most 128 columns of 4 bits a tile; those
// of 8 bits have two, one after the other, each with all tiles. S has kTiles, kBoxTiles, kFormat,
// kPoints, kPointBytes and kPointBoxBytes.
#pragma once
#include <array>

#include "src/core/cuda/tensor_map.h"
#include "src/core/cuda/tma.cuh"
#include "src/matmul/cuda/quantized_plan.h"
#include "src/matmul/cuda/units.cuh"

namespace intarsia::matmul::sm90 {

// Bytes of a tile in a box, and boxes of a stage.
inline constexpr int kTileBoxBytes = kStageColumns * static_cast<int>(kTileRows) / 2;
constexpr int TileBoxes(Format format) { return static_cast<int>(BitsOf(format)) / 4; }

struct GroupedCodesMaps {
  CUtensorMap codes, scales, points;  // word of a tile, tile, group
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

  // What a stage's boxes have.
  template <class S>
  __device__ __forceinline__ int StageBytes() const {
    return S::kTiles * (TileBoxes(S::kFormat) * kTileBoxBytes + stage_scale_bytes) +
           (S::kPoints ? 2 * S::kPointBytes : 0);
  }

  template <class S>
  static INTARSIA_HOST_DEVICE GroupedCodesCut Of(const QuantizedGroupsParams& p,
                                                 const QuantizedPlan& plan) {
    const bool pairs = p.each.gating.is_there && !p.each.gating.in_turn;
    const auto tiles = static_cast<int>(p.each.tiles);
    return {pairs,
            pairs ? CeilDiv(tiles / 2, S::kBoxTiles) : CeilDiv(tiles, S::kTiles),
            p.each.gating.is_there ? 2 : 1,
            CeilDiv(static_cast<int>(p.each.k), kStageColumns),
            plan.stage_groups * plan.scale_bytes,
            plan.scale_bytes,
            p.each.group == 2 * kBlockColumns ? 1 : 0};
  }
};

// Places of a stage: the second box of scales lies scale_pitch behind the first one.
struct CodesPlace {
  char *codes, *scales, *points;
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
#pragma unroll
  for (int box = 0; box < 2; ++box) {
    const int first = tile + box * step;
#pragma unroll
    for (int i = 0; i < TileBoxes(S::kFormat); ++i)
      cuda::CopyBox<3>(
          to.codes + (i * S::kTiles + box * S::kBoxTiles) * kTileBoxBytes, maps.codes,
          {(stage * TileBoxes(S::kFormat) + i) * (kTileBoxBytes / 4), first, unit.group}, full);
    cuda::CopyBox<3>(to.scales + box * to.scale_pitch, maps.scales,
                     {group * (cut.group_scale_bytes / 4), first, unit.group}, full);
    if constexpr (S::kPoints)
      cuda::CopyBox<3>(to.points + box * S::kPointBoxBytes, maps.points,
                       {group * (static_cast<int>(kTileRows) / 4), first, unit.group}, full);
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
  INTARSIA_RETURN_IF_ERROR(map(each.packed, each.tile_bytes() / 4, kTileBoxBytes / 4, maps.codes));
  INTARSIA_RETURN_IF_ERROR(map(each.scales.data, each.groups * plan.scale_bytes / 4,
                               cut.stage_scale_bytes / 4, maps.scales));
  if (!S::kPoints) return {};
  return map(each.zeros.data, each.groups * plan.zero_bytes / 4, plan.zero_bytes / 4, maps.points);
}

}  // namespace intarsia::matmul::sm90
