// The arithmetic of the Hopper kernels' tiles. Host and device, so that tests check it on a CPU.
#pragma once
#include <cstdint>

#include "src/core/index_vector.h"  // INTARSIA_HOST_DEVICE

namespace intarsia::matmul::sm90 {

inline constexpr int kConsumers = 2;  // warpgroups that multiply
inline constexpr int kThreads = 128 * (1 + kConsumers);
inline constexpr int kPanelDepth = 64;  // elements of the sum in a row of a panel
inline constexpr int kMaxSharedBytes = 227 * 1024, kControlBytes = 3 * 1024;
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
// instruction, and rows of x its columns, since groups have any number of rows. kBytesOfWeights: of
// a stage, where w is not of 16 bits.
template <int kMostSteps, int kBlocksEach, int kPanelsEach, int kStageCount, int kBoxOfX,
          int kWarpgroups = sm90::kConsumers, int kStepsStaged = 1, int kBytesOfWeights = 0,
          bool kHasPairs = false>
struct GroupedShapeOf {
  using Tiles = EvenTiles<kMostSteps>;
  static constexpr int kConsumers = kWarpgroups, kThreads = 128 * (1 + kConsumers);
  // Three consumers leave some over, which the rows that GatherRows has in flight need.
  static constexpr int kProducerRegisters = kConsumers == 3 ? 56 : sm90::kProducerRegisters;
  static constexpr int kConsumerRegisters = RegistersOfConsumers(kConsumers, kProducerRegisters);
  static constexpr int kBlocks = kBlocksEach;  // of 64 columns, each consumer's
  // Whether row r of each 16 of wgmma's is column 2r, and row r + 8 column 2r + 1.
  static constexpr bool kPairs = kHasPairs;
  static constexpr int kColumns = 64 * kBlocks * kConsumers;
  static constexpr int kRows = Tiles::kRows, kSteps = kRows / Tiles::kStepRows;
  static constexpr int kPanels = kPanelsEach, kDepth = kPanels * kPanelDepth;
  static constexpr int kBoxRows = kBoxOfX;  // of x: rows that a copy takes
  static constexpr int kStages = kStageCount;
  static constexpr int kWeightBytes = kBytesOfWeights ? kBytesOfWeights : kColumns * kDepth * 2;
  static constexpr int kRowBytes = kRows * kDepth * 2;
  // Results on their way out: two times some steps of each consumer.
  static constexpr int kStagedSteps = kStepsStaged;
  static constexpr int kStagedBytes = kStagedSteps * Tiles::kStepRows * 64 * kBlocks * 2;
  static constexpr int kSharedBytes =
      kStages * (kWeightBytes + kRowBytes) + 2 * kConsumers * kStagedBytes + kControlBytes;
  static_assert(kSharedBytes <= kMaxSharedBytes && kRows % kBoxRows == 0);
  static_assert(kColumns <= 256);  // a box has at most 256 rows
};
using GroupedShape = GroupedShapeOf<10, 2, 1, 4, 32>;
// For groups of few rows, bound by the memory that holds w [n, k]: 256 neighboring bytes of a row.
using NarrowShape = GroupedShapeOf<2, 1, 2, 5, 16>;

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
