// Matrix products on the CPU, one for each group of rows:
//   out[i, j] = sum_q a(i, q) w[q, j] + bias[j],   sums in f32, rounded once,
// where a(i, q) is an element of x, and w and bias are the group's own. A linear layer is a product
// of one group. product.cc plans the work for product_cpu.cc, which does it and is compiled once
// for each instruction set.
#pragma once
#include <cstdint>
#include <span>

#include "src/core/context.h"
#include "src/core/cpu/aligned_floats.h"
#include "src/core/dtype.h"
#include "src/core/index_vector.h"
#include "src/core/round.h"
#include "src/core/status.h"

namespace intarsia::matmul {

// How a matrix of weights lies: kRows is [n, k], a row for each result, as checkpoints have it;
// kColumns is [k, n].
enum class Order { kRows, kColumns };

struct Product {
  DType dtype = DType::kF32, out_dtype = DType::kF32;  // the result's: dtype, or f32
  Order order = Order::kRows;
  const void* x = nullptr;
  // Elements of x from row to row of a product, and along the sum. One of them is 1.
  int64_t x_row = 0, x_column = 1;
  // Absent, or which row of x each row of the results takes. One outside of x gives zeros.
  IndexVector rows = {};
  int64_t x_rows = 0;
  const void* w = nullptr;
  int64_t w_row = 0;  // elements between rows of w
  const void* bias = nullptr;
  void* out = nullptr;
  int64_t n = 0;  // columns of out, whose rows are dense
};

// One product of those that a call makes.
struct Group {
  int64_t x = 0, w = 0, bias = 0, out = 0;  // where its parts begin, in elements
  int64_t first = 0;                        // its first row, where Product::rows is given
  int64_t rows = 0, count = 0;              // of the product; of the sum
  // Set by the plan: where its packed rows begin, columns of a tile, tiles of the groups before.
  int64_t packed = 0, columns = 0, tile = 0;
};

// Rows that share a tile's weights, and are packed together. A multiple of every panel's width.
inline constexpr int64_t kBlockRows = 128;

// Elements between what is packed for successive rows: no power of two, so that rows do not
// displace each other in a cache.
constexpr int64_t PackedRow(const Product& product, int64_t count) {
  return RoundUp(count, kAlignFloats) + (product.order == Order::kColumns ? kAlignFloats : 0);
}
// Floats that a block of at most kBlockRows rows is packed into. A panel may be a third wider than
// the rows in it (panels.h).
constexpr int64_t BlockFloats(const Product& product, int64_t rows, int64_t count) {
  if (product.order == Order::kRows) return (rows + rows / 3) * PackedRow(product, count);
  if (product.x_column == 1) return rows * PackedRow(product, count);
  return count * PackedRow(product, rows);
}

// Groups whose packed rows are in memory at the same time.
struct Pass {
  const Product& product;
  std::span<Group> groups;
  float* packed;  // aligned to 64 bytes
};

// Makes the products of all groups. Groups without rows are left alone; a sum of no numbers is the
// bias.
Status Run(const Product& product, std::span<const Group> groups, const CpuContext& context);

}  // namespace intarsia::matmul
