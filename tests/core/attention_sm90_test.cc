// The arithmetic of the Hopper kernel, without a GPU: what the copy engine writes is read back
// through wgmma's descriptors as the PTX ISA defines them, and a whole row tile is computed so.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "src/attention/cuda/sm90/tiles.h"
#include "src/core/cuda/wgmma_layout.h"

namespace intarsia {
namespace {

using attention::sm90::BoxRows;
using attention::sm90::ClearTiles;
using attention::sm90::ClearTilesOf;
using attention::sm90::KeyTiles;
using attention::sm90::StrayRows;
using attention::sm90::StrayRowsOf;
using attention::sm90::TilesOf;
using attention::sm90::TokensPerTile;
using attention::sm90::TransposedRow;

// Shared memory whose 16-bit elements are numbers; -1: never written.
class SharedMemory {
 public:
  explicit SharedMemory(uint32_t bytes) : words_(bytes / 2, -1) {}
  int& At(uint32_t address) { return words_.at(address / 2); }
  // CUDA programming guide, "Tensor swizzle": bits 4-6 of the address XOR bits 7-9. A box of
  // `rows` rows of 64 elements goes to `address`.
  template <class Element>
  void CopyBox(uint32_t address, int rows, Element element) {
    EXPECT_EQ(address % 128, 0u);
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < 64; ++column) {
        const uint32_t plain = address + static_cast<uint32_t>(row * 128 + column * 2);
        At(plain ^ ((plain >> 7 & 7) << 4)) = element(row, column);
      }
    }
  }

 private:
  std::vector<int> words_;
};

// The fields of a descriptor. PTX ISA, "Matrix Descriptor Format".
struct Descriptor {
  explicit Descriptor(uint64_t bits)
      : start(static_cast<uint32_t>(bits & 0x3fff) << 4),
        leading(static_cast<uint32_t>(bits >> 16 & 0x3fff) << 4),
        stride(static_cast<uint32_t>(bits >> 32 & 0x3fff) << 4) {
    EXPECT_EQ(bits >> 62, 1u) << "the 128-byte swizzle";
    EXPECT_EQ(bits >> 49 & 7, 0u) << "panels begin at multiples of 1024 bytes";
  }
  uint32_t start, leading, stride;
};
uint32_t Swizzled(uint32_t plain) { return plain ^ ((plain >> 7 & 7) << 4); }

// Element (row, k) of a K-major operand with the 128-byte swizzle, and (k, column) of an MN-major
// one. PTX ISA, "Strides": 8 rows of 128 bytes are an atom; K-major, the stride goes to the next
// 8 rows; MN-major, the stride goes to the next 8 k, and the leading offset to the next 64 columns.
uint32_t KMajor(const Descriptor& d, int row, int k) {
  return Swizzled(d.start + static_cast<uint32_t>(row / 8) * d.stride +
                  static_cast<uint32_t>(row % 8 * 128 + k * 2));
}
uint32_t MnMajor(const Descriptor& d, int k, int column) {
  return Swizzled(d.start + static_cast<uint32_t>(k / 8) * d.stride +
                  static_cast<uint32_t>(column / 64) * d.leading +
                  static_cast<uint32_t>(k % 8 * 128 + column % 64 * 2));
}

TEST(WgmmaLayout, DescriptorsFindWhatBoxesBrought) {
  constexpr uint32_t kBase = 3 * 1024;
  for (const int rows : {64, 80, 128, 176, 192}) {
    for (const int columns : {64, 96, 128, 192, 256}) {
      for (const int box : {4, 8, 16, rows}) {
        const int panels = (columns + 63) / 64;
        SharedMemory memory(kBase + static_cast<uint32_t>(panels * rows * 128));
        const auto element = [](int row, int column) { return row * 1000 + column; };
        for (int panel = 0; panel < panels; ++panel) {
          for (int first = 0; first < rows; first += box) {
            memory.CopyBox(kBase + static_cast<uint32_t>((panel * rows + first) * 128), box,
                           [&](int r, int c) { return element(first + r, panel * 64 + c); });
          }
        }
        for (int row = 0; row < rows; ++row)
          for (int column = 0; column < columns; ++column)
            ASSERT_EQ(memory.At(kBase + cuda::PanelOffset(rows, row, column)),
                      element(row, column));
        for (int step = 0; step < columns / 16; ++step) {
          const Descriptor d(cuda::ColumnsSummed(kBase + cuda::ColumnStepBytes(rows, step)));
          for (int row = 0; row < rows; ++row)
            for (int k = 0; k < 16; ++k)
              ASSERT_EQ(memory.At(KMajor(d, row, k)), element(row, 16 * step + k));
        }
        for (int step = 0; step < rows / 16; ++step) {
          const Descriptor d(cuda::RowsSummed(kBase + cuda::RowStepBytes(step), rows));
          for (int k = 0; k < 16; ++k)
            for (int column = 0; column < columns; ++column)
              ASSERT_EQ(memory.At(MnMajor(d, k, column)), element(16 * step + k, column));
        }
      }
    }
  }
}

TEST(WgmmaLayout, ARegisterForEveryElementAndBackAsOperand) {
  constexpr int kColumns = 128;
  std::set<std::pair<int, int>> seen;
  for (int thread = 0; thread < 128; ++thread) {
    for (int i = 0; i < kColumns / 2; ++i) {
      const int row = cuda::AccumulatorRow(thread, i), column = cuda::AccumulatorColumn(thread, i);
      EXPECT_TRUE(row >= 0 && row < 64 && column >= 0 && column < kColumns);
      EXPECT_TRUE(seen.insert({row, column}).second);
      // PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16", A: register j of step s has the
      // row of the lane's group, 8 on for odd j, and from column 8 (j / 2) + 2 (lane % 4) on a
      // pair.
      const int step = i / 8, j = i % 8 / 2;
      EXPECT_EQ(row, thread / 32 * 16 + thread % 32 / 4 + j % 2 * 8);
      EXPECT_EQ(column, 16 * step + j / 2 * 8 + thread % 4 * 2 + i % 2);
    }
  }
  EXPECT_EQ(seen.size(), size_t{64} * kColumns);
}

TEST(Sm90Tiles, BoxesCrossNeitherPagesNorTiles) {
  for (const int tile : {64, 80, 96, 128}) {
    for (int64_t page = 4; page <= 512; page += 4) {
      const int box = BoxRows(true, page, tile);
      EXPECT_GE(box, 4);
      EXPECT_EQ(page % box, 0);
      EXPECT_EQ(tile % box, 0);  // so the boxes are as many bytes as their barrier expects
      EXPECT_LE(tile / box, 32) << "a box a lane";
      EXPECT_EQ(box & (box - 1), 0);
      EXPECT_TRUE(page % (2 * box) || tile % (2 * box)) << "the largest one";
    }
    EXPECT_EQ(BoxRows(false, 12345, tile), tile);
  }
}

TEST(Sm90Tiles, TilesCoverWhatIsVisible) {
  for (const int tile : {80, 128}) {
    for (int lead = 0; lead < 200; lead += 7) {
      for (int begin = 0; begin < 300; begin += 11) {
        for (int end = 0; end < 500; end += 13) {
          const KeyTiles tiles = TilesOf(begin, end, lead, tile);
          if (end <= begin) {
            EXPECT_EQ(tiles.count, 0);
            continue;
          }
          const int first = tiles.last_key - (tiles.count - 1) * tile;
          EXPECT_TRUE(first <= begin && begin < first + tile);
          EXPECT_TRUE(tiles.last_key < end && end <= tiles.last_key + tile);
          EXPECT_EQ((first + lead) % tile, 0);
          EXPECT_GE(first + lead, 0);
        }
      }
    }
  }
  for (const int begin : {-300, 0, 128, 129, 1000}) {
    for (const int end : {-10, 0, 127, 128, 255, 256, 257, 1300}) {
      const ClearTiles clear = ClearTilesOf(begin, end, 128);
      for (int first = -400; first < 1400; ++first)
        ASSERT_EQ(clear.Has(first), first >= begin && first + 128 <= end) << begin << " " << end;
    }
  }
}

TEST(Sm90Tiles, StrayRowsAreThoseCopiedBesideTheKeys) {
  constexpr int kTile = 128;
  for (const int box : {4, 16, 64, 128}) {
    for (int len_k = 0; len_k < 400; ++len_k) {
      for (int first_key = -127; first_key < len_k; first_key += 9) {
        const StrayRows stray = StrayRowsOf(first_key, 0, len_k, kTile, box);
        for (int row = 0; row < kTile; ++row) {
          const int key = first_key + row, box_first = key - row % box;
          const bool copied = box_first < len_k && box_first + box > 0;
          const bool cleared = row < stray.head || (row >= stray.tail && row < stray.tail_end);
          const bool is_key = key >= 0 && key < len_k;
          ASSERT_FALSE(is_key && cleared);
          ASSERT_TRUE(is_key || !copied || cleared);
        }
        EXPECT_EQ(stray.any(),
                  first_key < 0 || (len_k - first_key < kTile && (len_k - first_key) % box != 0));
      }
    }
  }
}

TEST(Sm90Tiles, WhatIsLeftOfAWindowIsStray) {
  EXPECT_EQ(StrayRowsOf(256, 300, 1000, 128, 16).head, 44);
  EXPECT_FALSE(StrayRowsOf(384, 300, 1000, 128, 16).any());
}

TEST(Sm90Tiles, TransposedColumnsComeBackToTheirThreads) {
  for (int parity = 0; parity < 2; ++parity) {
    std::set<int> banks;  // rows of a matrix of stmatrix must differ in their place
    for (int column = parity; column < 16; column += 2) banks.insert(TransposedRow(column) % 8);
    EXPECT_EQ(banks.size(), 8u);
  }
  // Registers i and i + 3, for i = 1 and 3, change places behind the sums.
  for (int column = 0; column < 16; ++column) {
    for (int thread = 0; thread < 4; ++thread) {
      for (int i = 0; i < 8; ++i) {
        const int sorted = i == 1 || i == 3 ? i + 3 : i == 4 || i == 6 ? i - 3 : i;
        if (cuda::AccumulatorColumn(thread, i) != TransposedRow(column)) continue;
        EXPECT_EQ(cuda::AccumulatorColumn(thread, sorted), column);
      }
    }
  }
}

// The consumer's walk over a paged sequence, on a CPU: boxes of pages, products through
// descriptors, masks by register, the online sums. Small whole numbers, so that sums are exact.
TEST(Sm90Tiles, ARowTileOfAPagedSequence) {
  constexpr int kTile = 128, kD = 128, kGroup = 3, kPage = 48, kLead = 21, kLenK = 413, kLenQ = 50;
  constexpr int kStrange = 12345;  // what lies where no key is
  std::mt19937 random(7);
  const auto draw = [&] { return static_cast<int>(random() % 5) - 2; };
  std::vector<std::vector<int>> k(kLenK, std::vector<int>(kD)), v = k;
  for (auto* rows : {&k, &v})
    for (auto& row : *rows)
      for (int& x : row) x = draw();
  const int tokens = TokensPerTile(128, kGroup), first_token = 5;
  std::vector<std::vector<int>> q(128, std::vector<int>(kD));
  for (auto& row : q)
    for (int& x : row) x = draw();
  const auto position = [&](int row) {
    return std::min(first_token + row / kGroup, kLenQ - 1) + kLenK - kLenQ;
  };
  const int end = position(tokens * kGroup - 1) + 1;
  const KeyTiles tiles = TilesOf(0, end, kLead, kTile);
  const int box = BoxRows(true, kPage, kTile);
  EXPECT_EQ(box, 16);

  std::vector<std::vector<int64_t>> got(128, std::vector<int64_t>(kD));
  SharedMemory memory(2 * 32 * 1024 + 32 * 1024);
  const uint32_t q_at = 0, k_at = 32 * 1024, v_at = 64 * 1024;
  for (int panel = 0; panel < 2; ++panel)
    memory.CopyBox(q_at + static_cast<uint32_t>(panel * 128 * 128), 128, [&](int r, int c) {
      return q[static_cast<size_t>(r)][static_cast<size_t>(panel * 64 + c)];
    });
  for (int i = 0, first_key = tiles.last_key; i < tiles.count; ++i, first_key -= kTile) {
    const StrayRows stray = StrayRowsOf(first_key, 0, kLenK, kTile, box);
    for (int at = 0; at < kTile; at += box) {
      const bool needed = first_key + at < kLenK && first_key + at + box > 0;
      const auto bring = [&](const auto& from, uint32_t to, int panel) {
        memory.CopyBox(
            to + static_cast<uint32_t>((panel * kTile + at) * 128), box, [&](int r, int c) {
              const int key = first_key + at + r;
              if (!needed) return 0;
              return key < 0 || key >= kLenK
                         ? kStrange
                         : from[static_cast<size_t>(key)][static_cast<size_t>(panel * 64 + c)];
            });
      };
      for (int panel = 0; panel < 2; ++panel) bring(k, k_at, panel), bring(v, v_at, panel);
    }
    for (int row = 0; row < kTile; ++row)
      for (int c = 0; c < kD; ++c)
        if (row < stray.head || (row >= stray.tail && row < stray.tail_end))
          memory.At(v_at + cuda::PanelOffset(kTile, row, c)) = 0;
    for (int consumer = 0; consumer < 2; ++consumer) {
      for (int thread = 0; thread < 128; ++thread) {
        for (int j = 0; j < kTile / 2; ++j) {
          const int row = cuda::AccumulatorRow(thread, j),
                    column = cuda::AccumulatorColumn(thread, j);
          int s = 0;
          for (int step = 0; step < kD / 16; ++step) {
            const Descriptor a(cuda::ColumnsSummed(q_at +
                                                   static_cast<uint32_t>(consumer * 64 * 128) +
                                                   cuda::ColumnStepBytes(128, step)));
            const Descriptor b(cuda::ColumnsSummed(k_at + cuda::ColumnStepBytes(kTile, step)));
            for (int x = 0; x < 16; ++x)
              s += memory.At(KMajor(a, row, x)) * memory.At(KMajor(b, column, x));
          }
          const int tile_row = consumer * 64 + row, key = first_key + column;
          const bool seen = key >= 0 && key < std::min(kLenK, position(tile_row) + 1);
          const int weight = seen ? s : 0;
          // Unseen keys are multiplied by 0: where they do not exist, V has to be 0, too.
          const Descriptor d(cuda::RowsSummed(v_at + cuda::RowStepBytes(column / 16), kTile));
          for (int x = 0; x < kD; ++x) {
            const int value = memory.At(MnMajor(d, column % 16, x));
            ASSERT_NE(value, kStrange);
            got[static_cast<size_t>(tile_row)][static_cast<size_t>(x)] += int64_t{weight} * value;
          }
        }
      }
    }
  }
  for (int row = 0; row < tokens * kGroup; ++row) {
    for (int x = 0; x < kD; ++x) {
      int64_t expected = 0;
      for (int key = 0; key <= std::min(position(row), kLenK - 1); ++key) {
        int64_t s = 0;
        for (size_t y = 0; y < kD; ++y)
          s += q[static_cast<size_t>(row)][y] * k[static_cast<size_t>(key)][y];
        expected += s * v[static_cast<size_t>(key)][static_cast<size_t>(x)];
      }
      ASSERT_EQ(got[static_cast<size_t>(row)][static_cast<size_t>(x)], expected);
    }
  }
}

}  // namespace
}  // namespace intarsia
