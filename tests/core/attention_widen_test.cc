// How Hopper's attention widens codes in shared memory (attention/cuda/sm90/widen.cuh), without a
// GPU: where a lane reads and writes, and that no two want the same banks.
#include <gtest/gtest.h>

#include <set>

#include "src/attention/cuda/sm90/tiles.h"
#include "src/core/cuda/wgmma_layout.h"

namespace intarsia::attention::sm90 {
namespace {

TEST(Sm90Widening, MovesEveryCodeAndLanesDifferInBanks) {
  constexpr int kRow = 128;
  for (const bool pair : {true, false}) {
    std::set<uint32_t> read, written;
    for (int step = 0; step < (pair ? 2 : 1); ++step) {
      for (const uint32_t other : {0, 1}) {
        std::set<uint32_t> read_banks, written_banks;  // of the accesses that happen at once
        for (int lane = 0; lane < 32; ++lane) {
          const auto place = WideningLaneOf(lane, pair, step);
          const uint32_t from = place.read ^ other * kOtherHalfRead;
          const uint32_t to = place.write ^ other * kOtherHalfWrite;
          // The eight codes, and the unit of f16 that has the same columns.
          const uint32_t row = from / kRow, column = cuda::Swizzle128(from) % kRow;
          EXPECT_EQ(to / kRow, row);
          EXPECT_EQ(cuda::Swizzle128(to) % kRow / 2 + static_cast<uint32_t>(place.panel) * 64,
                    column);
          EXPECT_TRUE(read.insert(from).second);
          EXPECT_TRUE(written.insert(to + static_cast<uint32_t>(place.panel) * 8 * kRow).second);
          // 8 bytes of 16 lanes at once, 16 bytes of 8 lanes.
          if (lane % 16 == 0) read_banks.clear();
          if (lane % 8 == 0) written_banks.clear();
          EXPECT_TRUE(read_banks.insert(from % kRow / 8).second) << lane;
          EXPECT_TRUE(written_banks.insert(to % kRow / 16).second) << lane;
        }
      }
    }
    EXPECT_EQ(read.size(), pair ? 8 * 16u : 8 * 8u);
  }
}

TEST(Sm90Widening, LoadsAheadDivideTheRows) {
  for (int own = 1; own <= 8; ++own) {
    for (int steps = 1; steps <= 4; ++steps) {
      const int at_once = EightsAtOnce(own, steps);
      EXPECT_EQ(own % at_once, 0);
      EXPECT_TRUE(at_once == 1 || at_once * steps <= 4);
    }
  }
}

}  // namespace
}  // namespace intarsia::attention::sm90
