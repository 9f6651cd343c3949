// The order in which CTAs of Hopper's attention take tasks, and what windows leave of a tile.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "src/attention/cuda/sm90/tiles.h"

namespace intarsia {
namespace {

using namespace attention::sm90;

// `around`: CTAs begin with different rounds (RoundOrder).
void CheckEveryTaskOnce(int heads, int section, int ctas, bool around) {
  Schedule schedule(17, heads, ctas);
  schedule.SetSections(section, ctas);
  std::map<std::pair<int, int>, int> seen;
  for (int cta = 0; cta < ctas; ++cta) {
    const RoundOrder order = around ? RoundOrder(schedule.rounds, ctas, cta) : RoundOrder();
    for (int round = 0;; ++round) {
      const Schedule::Task task = schedule.At(round, ctas, cta, order);
      if (task.kind == Schedule::Task::kEnd) {  // a CTA ends there: none later may be a task
        for (int later = round; later < round + 3; ++later)
          EXPECT_EQ(schedule.At(later, ctas, cta, order).kind, Schedule::Task::kEnd);
        break;
      }
      if (task.kind == Schedule::Task::kNone) continue;
      EXPECT_TRUE(task.row_tile >= 0 && task.row_tile < 17 && task.kv_head >= 0 &&
                  task.kv_head < heads);
      ++seen[{task.row_tile, task.kv_head}];
    }
  }
  EXPECT_EQ(static_cast<int>(seen.size()), 17 * heads);
  for (const auto& [task, count] : seen) EXPECT_EQ(count, 1);
}

TEST(AttentionSchedule, EveryTaskOnce) {
  for (const int heads : {1, 2, 6, 8}) {
    for (int section = 1; section <= heads; ++section) {
      if (heads % section) continue;
      for (const int ctas : {1, 5, 132}) {
        for (const bool around : {false, true}) CheckEveryTaskOnce(heads, section, ctas, around);
      }
    }
  }
  EXPECT_EQ(Schedule{}.At(0, 132, 0).kind, Schedule::Task::kEnd);
}

// Under a causal mask, row tile t of `tiles` is as heavy as the number of tiles behind it.
TEST(AttentionSchedule, CtasGetEqualWork) {
  for (const int tiles : {64, 128, 256, 512}) {
    for (const int section : {1, 2, 4, 8}) {
      Schedule schedule(tiles, 8, 132);
      schedule.SetSections(section, 132);
      int64_t most = 0, all = 0;
      for (int cta = 0; cta < 132; ++cta) {
        int64_t work = 0;
        for (int round = 0;; ++round) {
          const Schedule::Task task = schedule.At(round, 132, cta);
          if (task.kind == Schedule::Task::kEnd) break;
          if (task.kind == Schedule::Task::kTask) work += tiles - task.row_tile;
        }
        most = std::max(most, work);
        all += work;
      }
      if (tiles * section < 4 * 132) continue;  // sections are longer
      EXPECT_LT(most * 132, all * 1.05) << tiles << " " << section;
    }
  }
}

TEST(AttentionSchedule, BandsAreWindows) {
  constexpr int kMost = 1 << 30;
  for (const int len_q : {1, 7, kMost - 1}) {
    for (const int len_k : {0, 1, 5, 300, kMost}) {
      for (const int left : {0, 4, kOpenWindow}) {
        for (const int right : {0, 9, kOpenWindow}) {
          const Band band = BandOf(len_q, len_k, left, right);
          for (const int token : {0, len_q / 2, len_q - 1}) {
            const int64_t position = int64_t{token} + len_k - len_q;
            const int64_t begin = left == kOpenWindow ? 0 : std::max<int64_t>(position - left, 0);
            const int64_t end =
                right == kOpenWindow ? len_k : std::min<int64_t>(position + right + 1, len_k);
            EXPECT_EQ(band.BeginOf(token), begin) << len_q << " " << len_k << " " << token;
            EXPECT_EQ(band.EndOf(token, len_k), end) << len_q << " " << len_k << " " << token;
          }
        }
      }
    }
  }
}

TEST(AttentionSchedule, OwnColumns) {
  for (int below = -3; below < 140; ++below) {
    for (int bit = 0; bit < 32; ++bit) {
      const int column = bit / 2 * 8 + bit % 2;
      EXPECT_EQ(OwnColumnsBelow(below) >> bit & 1, column < below ? 1u : 0u) << below << " " << bit;
    }
  }
}

TEST(AttentionSchedule, SectionsOfHeads) {
  const auto heads = [](int num_kv_heads, int row_tiles, float head_bytes) {
    return SectionHeads(Schedule(row_tiles, num_kv_heads, 132), 132, head_bytes, 32e6f);
  };
  EXPECT_EQ(heads(8, 2000, 4e6f), 8);
  EXPECT_EQ(heads(8, 2000, 5e6f), 4);
  EXPECT_EQ(heads(6, 2000, 10e6f), 3);
  EXPECT_EQ(heads(7, 2000, 10e6f), 1);
  EXPECT_EQ(heads(8, 2000, 1e9f), 1);
  EXPECT_EQ(heads(8, 300, 1e9f), 4);  // eight rounds at least
  EXPECT_EQ(heads(8, 32, 1e9f), 8);
}

}  // namespace
}  // namespace intarsia
