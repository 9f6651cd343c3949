// How the kernel of products of codes cuts its work.
#pragma once
#include "src/matmul/cuda/sm90/tiles.h"
#include "src/matmul/scaled.h"

namespace intarsia::matmul::sm90 {

// A tile has 64 kHalves rows of x for each warpgroup that multiplies, and the rows of w that share
// a scale; a stage is a block of the sum. kCtas: for which a multiprocessor has room.
template <int kWarpgroups, int kHalvesEach, int kStageCount, int kCtasEach>
struct ScaledShape {
  static constexpr int kConsumers = kWarpgroups, kHalves = kHalvesEach, kCtas = kCtasEach;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static constexpr int kRows = 64 * kHalves * kConsumers, kColumns = kScaleBlock;
  static constexpr int kStages = kStageCount;
  static constexpr int kBytesX = kRows * kScaleBlock, kBytesW = kColumns * kScaleBlock;
  // Results of 64 rows of a consumer on their way out, of 16 bits.
  static constexpr int kStagedBytes = 64 * kColumns * 2;
  static constexpr int kSharedBytes =
      kStages * (kBytesX + kBytesW) + kConsumers * kStagedBytes + 1024;
  static_assert(kSharedBytes <= kMaxSharedBytes / kCtas);
  static constexpr int kConsumerRegisters = kConsumers == 1 ? 216 : sm90::kConsumerRegisters;
  static_assert(kCtas * 128 * (kProducerRegisters + kConsumers * kConsumerRegisters) <= 65536);
};
using LargeScaledShape = ScaledShape<2, 2, 4, 1>;
using MiddleScaledShape = ScaledShape<2, 1, 6, 1>;
using SmallScaledShape = ScaledShape<1, 1, 4, 2>;

}  // namespace intarsia::matmul::sm90
