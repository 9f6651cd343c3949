// The tiles of the Hopper kernels of grouped products, on a CPU.
#include <gtest/gtest.h>

#include "src/matmul/cuda/choose.h"
#include "src/matmul/cuda/sm90/tiles.h"

namespace intarsia::matmul::sm90 {
namespace {

template <class Tiles>
void CheckTiles(int rows) {
  const int tiles = Tiles::Count(rows);
  ASSERT_LE(tiles, CeilDiv(rows, Tiles::kRows)) << rows;
  int steps = 0, least = Tiles::kRows, most = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    const int begin = Tiles::Begin(rows, tile), end = Tiles::Begin(rows, tile + 1);
    ASSERT_LT(begin, end) << rows << " " << tile;
    ASSERT_LE(end - begin, Tiles::kRows) << rows << " " << tile;
    const int of_tile = Tiles::Steps(end - begin);
    steps += of_tile, least = std::min(least, of_tile), most = std::max(most, of_tile);
  }
  EXPECT_EQ(Tiles::Begin(rows, 0), 0);
  EXPECT_EQ(Tiles::Begin(rows, tiles), rows);
  EXPECT_EQ(steps, Tiles::Steps(rows)) << "no step more than the rows need: " << rows;
  EXPECT_LE(most - least, 1) << rows;
}

TEST(GroupedSm90, TilesOfAGroupAreEven) {
  for (int rows = 1; rows < 2000; ++rows) {
    CheckTiles<GroupedShape::Tiles>(rows);
    CheckTiles<NarrowShape::Tiles>(rows);
    CheckTiles<EvenTiles<16>>(rows);
  }
  for (const int rows : {(1 << 30) - 1, (1 << 29) + 17})
    EXPECT_EQ(GroupedShape::Tiles::Begin(rows, GroupedShape::Tiles::Count(rows)), rows);
}

TEST(GroupedSm90, AGroupWithoutRowsHasNoTiles) { EXPECT_EQ(GroupedShape::Tiles::Count(0), 0); }

}  // namespace
}  // namespace intarsia::matmul::sm90
