// The schedule of split-KV decode, run on the CPU as the kernel runs it on the device.
#include "src/attention/decode_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>
#include <vector>

namespace intarsia::attention::decode {
namespace {

int LineOf(const std::vector<SequenceWork>& works) {
  int line = 0;
  for (const SequenceWork& work : works) line += work.cost();
  return line;
}

struct Coverage {
  std::map<std::pair<size_t, int>, std::vector<int>> visits;  // of each granule of each item
  std::map<std::pair<size_t, int>, int> pieces;               // non-empty ones
  std::map<std::pair<size_t, int>, int> counts;               // as the pieces themselves say
  int longest_slice = 0;                                      // in granules
  int most_pieces = 0;                                        // non-empty ones of a slice
};

// Walks every slice, as decode.cuh does.
Coverage WalkOn(const std::vector<SequenceWork>& works, int slices, int payload) {
  Coverage coverage;
  const int line = LineOf(works);
  for (int slice = 0; slice < slices; ++slice) {
    const int begin = std::min(slice * payload, line), end = std::min(begin + payload, line);
    int sequence_begin = 0, granules = 0, pieces = 0;
    size_t seq = 0;
    while (seq < works.size() && sequence_begin + works[seq].cost() <= begin)
      sequence_begin += works[seq++].cost();
    for (int position = begin; position < end;) {
      while (position >= sequence_begin + works[seq].cost()) sequence_begin += works[seq++].cost();
      const Piece piece = PieceAt(works[seq], sequence_begin, position, end, payload);
      const auto key = std::make_pair(seq, piece.item);
      std::vector<int>& visits = coverage.visits[key];
      visits.resize(static_cast<size_t>(works[seq].granules));
      for (int g = piece.granule_begin; g < piece.granule_end; ++g)
        ++visits[static_cast<size_t>(g)];
      if (piece.granule_end > piece.granule_begin) {
        EXPECT_GE(slice, piece.first_slice);
        EXPECT_LT(slice, piece.first_slice + piece.count);
        EXPECT_EQ(slice == piece.first_slice, piece.granule_begin == 0);
        ++coverage.pieces[key], ++pieces;
      }
      coverage.counts[key] = piece.count;
      granules += piece.granule_end - piece.granule_begin;
      EXPECT_GT(piece.end, position);
      position = piece.end;
    }
    coverage.longest_slice = std::max(coverage.longest_slice, granules);
    coverage.most_pieces = std::max(coverage.most_pieces, pieces);
  }
  return coverage;
}
Coverage Walk(const std::vector<SequenceWork>& works, int slices) {
  return WalkOn(works, slices, Payload(LineOf(works), slices));
}

void ExpectEachGranuleOnce(const std::vector<SequenceWork>& works, const Coverage& coverage) {
  for (size_t seq = 0; seq < works.size(); ++seq) {
    for (int item = 0; item < works[seq].items; ++item) {
      const auto key = std::make_pair(seq, item);
      ASSERT_TRUE(coverage.visits.contains(key)) << "an item without keys must be visited, too";
      for (int visits : coverage.visits.at(key)) ASSERT_EQ(visits, 1);
      const auto pieces = coverage.pieces.find(key);
      ASSERT_EQ(coverage.counts.at(key), pieces == coverage.pieces.end() ? 1 : pieces->second);
    }
  }
}

TEST(DecodePlan, EveryGranuleIsComputedOnce) {
  std::mt19937 random(20261121);
  for (int round = 0; round < 200; ++round) {
    std::vector<SequenceWork> works(1 + random() % 40);
    for (SequenceWork& work : works) {
      const int items = random() % 4 == 0 ? 0 : 1 + static_cast<int>(random() % 9);
      work = WorkOfItems(items, random() % 5 == 0
                                    ? 0
                                    : static_cast<int>(random() % (random() % 7 == 0 ? 3000 : 60)));
    }
    const int slices = 1 + static_cast<int>(random() % kMaxCtas);
    const Coverage coverage = Walk(works, slices);
    ExpectEachGranuleOnce(works, coverage);
    EXPECT_LE(coverage.longest_slice, Payload(LineOf(works), slices));
  }
}

TEST(DecodePlan, OneLongSequenceAmongShortOnesIsSpreadOut) {
  std::vector<SequenceWork> works(64, WorkOfItems(8, 1));
  works[17] = WorkOfItems(8, 8192);  // 131072 keys
  const Coverage coverage = Walk(works, 264);
  EXPECT_LE(coverage.longest_slice, 1 + LineOf(works) / 264);
  EXPECT_GE(coverage.pieces.at({17, 3}), 30);
}

// As FindSliceOfFew gives all items one cost.
TEST(DecodePlan, ItemsOfAboutOneLengthAreCutIntoAsManyPieces) {
  std::mt19937 random(11);
  int even_ones = 0;
  for (int round = 0; round < 500; ++round) {
    const int slices = 1 + static_cast<int>(random() % kMaxCtas);
    const int granules = 1 + static_cast<int>(random() % 2000);
    std::vector<SequenceWork> works(1 + random() % 32);
    int items = 0, largest = 0;
    for (SequenceWork& work : works) {
      work = WorkOfItems(static_cast<int>(random() % 3),
                         granules - static_cast<int>(random() % (1 + granules / 10)));
      items += work.items;
      if (work.items > 0) largest = std::max(largest, work.item_cost);
    }
    const int line = LineOf(works);
    const EvenPieces even = EvenPiecesOf(line, items, largest, slices);
    if (even.payload == 0) continue;
    ++even_ones;
    EXPECT_GE(even.item_cost(), largest);
    for (SequenceWork& work : works) work.item_cost = even.item_cost();
    const Coverage coverage = WalkOn(works, slices, even.payload);
    ExpectEachGranuleOnce(works, coverage);
    EXPECT_LE(coverage.most_pieces, 1);
    EXPECT_LE(coverage.longest_slice, even.payload);
  }
  EXPECT_GT(even_ones, 100);
  EXPECT_EQ(EvenPiecesOf(16 * 262, 16, 262, 66).item_cost(), 264);   // 16 x 4096 keys
  EXPECT_EQ(EvenPiecesOf(15 * 38 + 8198, 16, 8198, 66).payload, 0);  // one is long
  EXPECT_EQ(EvenPiecesOf(64 * 262, 64, 262, 33).payload, 0);         // more items than slices
}

TEST(DecodePlan, MaxSplitsFollowsTheShape) {
  StaticShape shape{.num_tokens = 64,
                    .num_seqs = 64,
                    .num_heads = 32,
                    .num_kv_heads = 8,
                    .v_head_dim = 128,
                    .max_len_k = 4096};
  EXPECT_EQ(MaxSplits(shape), kMaxCtas);
  shape.num_heads = shape.num_kv_heads = 24;
  EXPECT_EQ(MaxSplits(shape), kMaxCtas / 24 * 24);
  shape.num_heads = shape.num_kv_heads = 200;  // more than half the CTAs: one slice a head
  EXPECT_EQ(MaxSplits(shape), 1);
  shape = {.num_tokens = 1,
           .num_seqs = 1,
           .num_heads = 1,
           .num_kv_heads = 1,
           .v_head_dim = 64,
           .max_len_k = 100};
  EXPECT_LT(MaxSplits(shape), 8);
  shape.num_tokens = 0;
  EXPECT_EQ(MaxSplits(shape), 1);
}

TEST(DecodePlan, NoLengthsExceedTheBounds) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    StaticShape shape;
    shape.num_seqs = 1 + random() % 20;
    shape.num_kv_heads = 1 + random() % 4;
    const int64_t group = 1 + random() % 20;
    shape.num_heads = group * shape.num_kv_heads;
    shape.v_head_dim = 64;
    shape.max_len_k = 1 + random() % 4000;
    const int granules = static_cast<int>(CeilDiv<int64_t>(shape.max_len_k, kMinGranuleKeys));
    int line = 0;
    for (int64_t seq = 0; seq < shape.num_seqs; ++seq) {
      const int64_t len_q = random() % 4;
      shape.num_tokens += len_q;
      line += WorkOfItems(static_cast<int>(CeilDiv<int64_t>(len_q * group, kTileRows)), granules)
                  .cost();
    }
    EXPECT_LE(line, MaxLine(shape, kMinGranuleKeys));
    const int64_t slices = NumSlices(shape.num_kv_heads, MaxSplits(shape));
    EXPECT_TRUE(slices == kMaxCtas / shape.num_kv_heads || line <= slices * kMinPayload);
  }
}

TEST(DecodePlan, GranulesGrowWithTheShapeOnly) {
  StaticShape shape{.num_tokens = 1024,
                    .num_seqs = 1024,
                    .num_heads = 64,
                    .num_kv_heads = 8,
                    .v_head_dim = 128,
                    .max_len_k = 1 << 20};
  EXPECT_EQ(GranuleKeys(shape), kMinGranuleKeys);
  shape.num_tokens = 1 << 22;
  shape.max_len_k = 1 << 30;
  EXPECT_GT(GranuleKeys(shape), kMinGranuleKeys);
  EXPECT_LE(MaxLine(shape, GranuleKeys(shape)), kMaxLine);
}

TEST(DecodePlan, LinesBeyond32BitsAreRefused) {
  StaticShape shape{.num_tokens = 280'000'000,
                    .num_seqs = 280'000'000,
                    .num_heads = 1,
                    .num_kv_heads = 1,
                    .v_head_dim = 8,
                    .max_len_k = 16};
  EXPECT_TRUE(FitLine(shape).ok());
  shape.num_tokens = shape.num_seqs = 400'000'000;
  const Status status = FitLine(shape);
  EXPECT_EQ(status.code, Code::kUnimplemented);
  EXPECT_EQ(status.message,
            "cu_seqlens_q has 400000000 sequences of 400000000 tokens in all, whose decoding may "
            "take 2975000000 steps, expected at most 2147418112 on GPUs");
  shape.num_tokens = 1 << 20;  // of which most sequences have none
  EXPECT_TRUE(FitLine(shape).ok());
  // A long prompt makes granules larger.
  shape = {.num_tokens = 1 << 22,
           .num_seqs = 4,
           .num_heads = 256,
           .num_kv_heads = 1,
           .v_head_dim = 128,
           .max_len_k = 1 << 30};
  EXPECT_TRUE(FitLine(SplitHeads(shape)).ok());
}

TEST(DecodePlan, LargeGroupsAreSplit) {
  for (int64_t group : {1, 4, 7, 8, 15, 16, 17, 19}) EXPECT_EQ(HeadParts(group), 1) << group;
  EXPECT_EQ(HeadParts(20), 2);
  EXPECT_EQ(HeadParts(24), 2);
  EXPECT_EQ(HeadParts(32), 2);
  EXPECT_EQ(HeadParts(48), 3);
  EXPECT_EQ(HeadParts(71), 1);
  EXPECT_EQ(HeadParts(128), 8);
  // Equal parts of at most 16 heads and at least 8: the fewest there are.
  for (int64_t group = 1; group <= 4096; ++group) {
    int64_t parts = CeilDiv<int64_t>(group, kTileRows);
    while (group % parts != 0) ++parts;
    ASSERT_EQ(HeadParts(group), group / parts >= kTileRows / 2 ? parts : 1) << group;
  }
}

// Inference of shapes asks for it, and must not take time in the number of heads.
TEST(DecodePlan, LargePrimeGroupsTakeNoTime) {
  constexpr int64_t kPrime = (int64_t{1} << 61) - 1;
  EXPECT_EQ(HeadParts(kPrime), 1);
}

TEST(DecodePlan, PartsOfAPieceAreAligned) {
  for (int64_t rows : {1, 3, 4, 16}) {
    for (int64_t d : {8, 24, 128, 256}) {
      const PieceLayout layout{rows, d};
      EXPECT_GE(layout.record_offset(), layout.lse_offset() + rows);
      EXPECT_EQ(layout.record_offset() % 4, 0);
      EXPECT_EQ(layout.floats() % 4, 0);
    }
  }
}

TEST(DecodePlan, WorkspaceIsSmall) {
  const StaticShape shape{.num_tokens = 256,
                          .num_seqs = 256,
                          .num_heads = 32,
                          .num_kv_heads = 8,
                          .v_head_dim = 128,
                          .max_len_k = 131072};
  const auto [ctas, floats] = WorkspaceDims(shape);
  EXPECT_LE(ctas * floats * 4, 6 << 20);
}

TEST(DecodePlan, SlicesFitTheDevice) {
  EXPECT_EQ(NumSlices(8, 264), 33);
  EXPECT_EQ(NumSlices(128, 264), 2);
  EXPECT_EQ(NumSlices(200, 264), 1);
  EXPECT_EQ(NumSlices(1000, 264), 1);
}

}  // namespace
}  // namespace intarsia::attention::decode
