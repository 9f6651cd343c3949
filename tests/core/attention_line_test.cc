// How Hopper's attention cuts tasks into pieces: every tile of keys is in one piece, and no slice
// leaves two partial results in one place.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "src/attention/prefill_line.h"
#include "src/attention/workspace.h"

namespace intarsia {
namespace {

using namespace attention::sm90;

TEST(AttentionLine, PositionsFindTheirTasks) {
  const LineTasks tasks = LineTasksOf(1000, 5000, -1, 0, 32, false);
  ASSERT_EQ(tasks.count, 32);
  EXPECT_EQ(tasks.total(), tasks.Before(32));
  for (int t = 0; t < tasks.count; ++t) {
    EXPECT_EQ(tasks.At(tasks.Before(t)), t);
    EXPECT_EQ(tasks.At(tasks.Before(t) + tasks.CostOf(t) - 1), t);
    EXPECT_EQ(tasks.CountFrom(tasks.CostOf(t)), tasks.count - t);
  }
  EXPECT_EQ(tasks.CountFrom(tasks.CostOf(31) + 1), 0);
  EXPECT_EQ(LineTasksOf(0, 5000, -1, 0, 32, false).total(), 0);
  EXPECT_LT(LineTasksOf(5, 4096, -1, 0, 32, true).total(),
            LineTasksOf(5, 4096, -1, 0, 32, false).total());
}

// Lays random tasks on a line of random slices and walks over them as the CTAs do.
TEST(AttentionLine, PiecesCoverEachTaskOnce) {
  std::mt19937 random(18);
  for (int round = 0; round < 2000; ++round) {
    const int payload = kMinSlice + static_cast<int>(random() % 5000);
    std::vector<std::pair<int, int>> tasks;  // tiles, cost
    int total = 0;
    for (int i = 1 + static_cast<int>(random() % 12); i > 0; --i) {
      const int tiles = static_cast<int>(random() % (random() % 3 ? 300 : 6));
      const int cost = random() % 2 ? tiles * 128 + kEndCost : tiles * 64 + kFewEndCost;
      tasks.emplace_back(tiles, cost);
      total += cost;
    }
    std::map<std::pair<int, int>, int> places;  // slice, place: of how many pieces
    int begin = 0;
    for (const auto& [tiles, cost] : tasks) {
      int covered = 0, pieces = 0, expected = -1, first = -1;
      for (int slice = begin / payload; slice * payload < begin + cost; ++slice) {
        const LinePiece piece = PieceOf(payload, slice, slice * payload - begin, cost, tiles);
        if (piece.begin == piece.end) continue;
        EXPECT_EQ(piece.begin, covered);
        covered = piece.end;
        ++pieces;
        if (expected < 0) expected = piece.count, first = piece.first_slice;
        EXPECT_EQ(piece.count, expected);
        EXPECT_EQ(piece.first_slice, first);
        EXPECT_EQ(slice, first + pieces - 1) << "no piece between others is empty";
        if (piece.count > 1) ++places[{slice, PlaceOfPiece(piece.begin == 0)}];
      }
      EXPECT_EQ(covered, tiles);
      EXPECT_EQ(pieces, std::max(expected, 0));
      begin += cost;
    }
    for (const auto& [place, count] : places) EXPECT_EQ(count, 1);
  }
}

TEST(AttentionLine, SlicesAreForTasksThatWouldLeaveCtasIdle) {
  // 64 tokens over 32k keys: 16 tasks for 132 CTAs.
  const LineTasks few = LineTasksOf(64, 32768, -1, 0, 32, false);
  const Line line = DrawLine(few.total(), 8, few.CostOf(1), 2, 132);
  EXPECT_EQ(line.slices, 132);
  EXPECT_GE(int64_t{line.payload} * line.slices, few.total() * 8);
  // A prompt of 4096: 1024 tasks, the longest of which are short beside a CTA's work.
  const LineTasks prompt = LineTasksOf(4096, 4096, -1, 0, 32, false);
  EXPECT_EQ(DrawLine(prompt.total(), 8, prompt.CostOf(127), 30, 132).slices, 0);
  EXPECT_EQ(DrawLine(0, 8, 0, 0, 132).slices, 0);
  EXPECT_EQ(DrawLine(kMaxHeadLine, 8, kMaxHeadLine, 1, 132).slices, 0);
}

TEST(AttentionLine, AWorkspaceHasRoomForPieces) {
  attention::Params p;
  p.dtype = p.cache.dtype = DType::kBF16;
  p.num_heads = 32, p.cache.num_kv_heads = 8;
  p.head_dim = p.cache.v_head_dim = 128;
  p.num_tokens = 64, p.num_seqs = 1, p.max_len_k = 32768;
  ASSERT_TRUE(attention::WantsPieces(p));
  const auto [splits, floats] = attention::WorkspaceDims(p);
  EXPECT_GE(splits * floats, kMaxLineCtas * PieceRoom::kPlaces * LargestPiece(128, 128).floats());
  EXPECT_EQ(floats % 4, 0);
  p.dtype = p.cache.dtype = DType::kF8E4M3;
  EXPECT_TRUE(attention::WantsPieces(p));
  p.cache.dtype = DType::kF8E5M2;  // which the portable kernel takes
  EXPECT_FALSE(attention::WantsPieces(p));
  p.dtype = DType::kBF16;  // over a cache in fp8
  EXPECT_TRUE(attention::WantsPieces(p));
  p.dtype = DType::kF32;  // which the portable kernel takes
  EXPECT_FALSE(attention::WantsPieces(p));
  p.dtype = DType::kBF16;
  p.cache.dtype = DType::kBF16;
  p.max_len_k = 128;  // a prompt without a past
  EXPECT_FALSE(attention::WantsPieces(p));
  p.max_len_k = 32768, p.num_tokens = p.num_seqs = 16;  // decode alone
  EXPECT_FALSE(attention::WantsPieces(p));
}

}  // namespace
}  // namespace intarsia
