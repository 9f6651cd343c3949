// The arithmetic of the Hopper kernels' tiles. Host and device, so that tests check it on a CPU.
#pragma once
#include <cstdint>

#include "src/core/cuda/device.h"
#include "src/core/index_vector.h"  // INTARSIA_HOST_DEVICE

namespace intarsia::matmul::sm90 {

inline constexpr int kConsumers = 2;  // warpgroups that multiply
inline constexpr int kThreads = 128 * (1 + kConsumers);
inline constexpr int kPanelDepth = 64;  // elements of the sum in a row of a panel
inline constexpr int kMaxSharedBytes = cuda::MostSharedBytes(cuda::kHopper);
inline constexpr int kControlBytes = 3 * 1024;
// Registers a thread, of 65536: multiples of 8. If consumers took more than the producers release,
// they would wait forever.
inline constexpr int kProducerRegisters = 40;
constexpr int RegistersOfConsumers(int consumers, int of_producers = kProducerRegisters) {
  const int at_start = 65536 / (128 * (1 + consumers)) / 8 * 8;
  return (at_start + (at_start - of_producers) / consumers) / 8 * 8;
}
inline constexpr int kConsumerRegisters = RegistersOfConsumers(kConsumers);

// Rows of a group in tiles of at most kMostSteps steps of kStepRows rows. Tiles of a group differ
// by at most a step, and only the group's last step may lack rows: the tensor cores compute fewer
// than kStepRows rows too many a group.
template <int kMostSteps>
struct EvenTiles {
  static constexpr int kStepRows = 16;
  static constexpr int kRows = kMostSteps * kStepRows;

  static INTARSIA_HOST_DEVICE constexpr int Steps(int rows) {
    return (rows + kStepRows - 1) / kStepRows;
  }
  static INTARSIA_HOST_DEVICE constexpr int Count(int rows) {
    return (Steps(rows) + kMostSteps - 1) / kMostSteps;
  }
  // The first row of a tile, or, behind the last tile, `rows`.
  static INTARSIA_HOST_DEVICE constexpr int Begin(int rows, int tile) {
    const int steps = Steps(rows), tiles = Count(rows);
    const int each = steps / tiles, longer = steps % tiles;
    const int row = (tile * each + (tile < longer ? tile : longer)) * kStepRows;
    return row < rows ? row : rows;
  }
};

// How the kernels of products cut their work: a tile has kColumns columns of w and up to kRows
// rows, a stage kDepth elements of the sum. Columns of w are the rows of wgmma's result, 64 an
// instruction, and rows of x its columns, since groups have any number of rows.
struct GroupedSizes {
  int most_steps;  // of 16 rows
  int blocks;      // of 64 columns, each consumer's
  int panels;      // of a stage
  int stages;
  int box_rows;  // of x, that a copy takes
  int consumers = kConsumers;
  int staged_steps = 1;  // of results on their way out, for each consumer twice
  int weight_bytes = 0;  // of a stage, where w is not of 16 bits
  bool pairs = false;    // whether rows r and r + 8 of 16 of wgmma's are columns 2r and 2r + 1
};
template <GroupedSizes kSizes>
struct GroupedShapeOf {
  using Tiles = EvenTiles<kSizes.most_steps>;
  static constexpr int kConsumers = kSizes.consumers, kThreads = 128 * (1 + kConsumers);
  // Three consumers leave some over, which the rows that GatherRows has in flight need.
  static constexpr int kProducerRegisters = kConsumers == 3 ? 56 : sm90::kProducerRegisters;
  static constexpr int kConsumerRegisters = RegistersOfConsumers(kConsumers, kProducerRegisters);
  static constexpr int kBlocks = kSizes.blocks;
  static constexpr bool kPairs = kSizes.pairs;
  static constexpr int kColumns = 64 * kBlocks * kConsumers;
  static constexpr int kRows = Tiles::kRows, kSteps = kRows / Tiles::kStepRows;
  static constexpr int kPanels = kSizes.panels, kDepth = kPanels * kPanelDepth;
  static constexpr int kBoxRows = kSizes.box_rows;
  static constexpr int kStages = kSizes.stages;
  static constexpr int kWeightBytes =
      kSizes.weight_bytes ? kSizes.weight_bytes : kColumns * kDepth * 2;
  static constexpr int kRowBytes = kRows * kDepth * 2;
  static constexpr int kStagedSteps = kSizes.staged_steps;
  static constexpr int kStagedBytes = kStagedSteps * Tiles::kStepRows * 64 * kBlocks * 2;
  static constexpr int kSharedBytes =
      kStages * (kWeightBytes + kRowBytes) + 2 * kConsumers * kStagedBytes + kControlBytes;
  static_assert(kSharedBytes <= kMaxSharedBytes && kRows % kBoxRows == 0);
  static_assert(kColumns <= 256);  // a box has at most 256 rows
};
using GroupedShape = GroupedShapeOf<GroupedSizes{
    .most_steps = 10, .blocks = 2, .panels = 1, .stages = 4, .box_rows = 32}>;
// For groups of few rows, bound by the memory that holds w [n, k]: 256 neighboring bytes of a row.
using NarrowShape = GroupedShapeOf<GroupedSizes{
    .most_steps = 2, .blocks = 1, .panels = 2, .stages = 5, .box_rows = 16}>;

// How the kernel of the gradient does: a tile is kRows of k times kColumns of n.
inline constexpr int kStageRows = 64;  // of a group, which are summed
struct GradientShape {
  static constexpr int kRows = 64 * kConsumers, kColumns = 256;
  static constexpr int kStages = 4;
  static constexpr int kBytesX = kRows * kStageRows * 2, kBytesD = kColumns * kStageRows * 2;
  static constexpr int kWarps = 4 * kConsumers;
  static constexpr int kStagedBytes = 16 * 128;  // 16 rows of a panel
  static constexpr int kSharedBytes =
      kStages * (kBytesX + kBytesD) + 2 * kWarps * kStagedBytes + kControlBytes;
  static_assert(kSharedBytes <= kMaxSharedBytes);
};

}  // namespace intarsia::matmul::sm90
