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

LineTasks CausalTasks(int tokens, int len_k, bool few = false) {
  return LineTasksOf(tokens, len_k, kOpenWindow, 0, 32, Divisor(32), few);
}

TEST(AttentionLine, PositionsFindTheirTasks) {
  const LineTasks tasks = CausalTasks(1000, 5000);
  const Divisor tile(32);
  ASSERT_EQ(tasks.count, 32);
  EXPECT_EQ(tasks.total(), tasks.Before<int64_t>(32));
  for (int t = 0; t < tasks.count; ++t) {
    const auto before = static_cast<int>(tasks.Before(t));
    EXPECT_EQ(tasks.At(before), t);
    EXPECT_EQ(tasks.At(before + tasks.CostOf(t) - 1), t);
    EXPECT_EQ(tasks.CountFrom(tasks.CostOf(t), tile), tasks.count - t);
    EXPECT_EQ(tasks.CountFrom(tasks.CostOf(t) + 1, tile), tasks.count - t - 1);
  }
  EXPECT_EQ(tasks.CountFrom(tasks.CostOf(31) + 1, tile), 0);
  EXPECT_EQ(CausalTasks(0, 5000).total(), 0);
  EXPECT_LT(CausalTasks(5, 4096, true).total(), CausalTasks(5, 4096).total());
}

TEST(AttentionLine, WindowsBoundTheCost) {
  const auto first = [](int left, int right) {
    return LineTasksOf(64, 5000, left, right, 32, Divisor(32), false).first - kEndCost;
  };
  EXPECT_EQ(first(100, 0), 133);
  EXPECT_EQ(first(100, 20), 153);
  EXPECT_EQ(first(kOpenWindow, 5), 5000);
  EXPECT_EQ(first(100, kOpenWindow), 5000);
  EXPECT_EQ(first(kOpenWindow, kOpenWindow), 5000);
  EXPECT_EQ(first(6000, 0), 5000);
}

// By floats, which are at most one off.
TEST(AttentionLine, SlicesCoverTheLine) {
  std::mt19937 random(27);
  for (int round = 0; round < 20000; ++round) {
    const auto below = [&](uint32_t n) { return static_cast<int>(1 + random() % n); };
    const int head = below(1u << (1 + random() % 30)), heads = below(128), slices = below(160);
    const int64_t total = int64_t{head} * heads;
    if (total > kMaxHeadLine * slices) continue;
    const int payload = CeilDivWide(total, slices);
    ASSERT_EQ(payload, (total + slices - 1) / slices) << total << " / " << slices;
    const Line line{head, heads, slices, payload};
    for (const int slice : {0, 1, slices / 2, slices - 1}) {
      const int64_t begin = int64_t{slice} * payload;
      ASSERT_EQ(line.HeadOf(slice), begin / head) << begin << " / " << head;
      ASSERT_EQ(line.SizeOf(slice), std::clamp<int64_t>(total - begin, 0, payload));
    }
  }
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
  const LineTasks few = CausalTasks(64, 32768);
  const Line line = DrawLine(few.total(), 8, few.CostOf(1), 2, 132);
  EXPECT_EQ(line.slices, 132);
  EXPECT_GE(int64_t{line.payload} * line.slices, few.total() * 8);
  // A prompt of 4096: 1024 tasks, the longest of which are short beside a CTA's work.
  const LineTasks prompt = CausalTasks(4096, 4096);
  EXPECT_EQ(DrawLine(prompt.total(), 8, prompt.CostOf(127), 30, 132).slices, 0);
  EXPECT_EQ(DrawLine(0, 8, 0, 0, 132).slices, 0);
  EXPECT_EQ(DrawLine(kMaxHeadLine, 8, 1 << 29, 1, 132).slices, 0);
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
