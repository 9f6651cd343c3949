#include "src/matmul/grouped.h"

#include <cstring>
#include <vector>

#include "src/matmul/cpu/product.h"
#include "src/matmul/cpu/row_ranges.h"

namespace intarsia::matmul {

Status Run(const GroupedParams& params, const CpuContext& context) {
  if (params.gating.is_there) return Internal("a product with gates runs on GPUs alone");
  const int64_t k = params.k, n = params.n, bytes = params.m() * n * Bytes(params.out_dtype);
  if (bytes == 0) return {};
  if (k == 0 && !params.bias) {  // w has no elements, so that it may have any number of groups
    std::memset(params.out, 0, static_cast<size_t>(bytes));
    return {};
  }
  std::vector<Group> products;
  RowRange covered;
  for (int64_t i = 0; const RowRange& rows : ReadGroups(params.groups)) {
    if (i == 0) covered.begin = rows.begin;
    covered.end = rows.end;
    products.push_back({.x = rows.begin * k,
                        .w = i * k * n,
                        .bias = i * n,
                        .out = rows.begin * n,
                        .first = rows.begin,
                        .rows = rows.end - rows.begin,
                        .count = k});
    ++i;
  }
  const int64_t row_bytes = n * Bytes(params.out_dtype);
  char* const out = static_cast<char*>(params.out);
  const auto clear = [&](int64_t begin, int64_t end) {
    const size_t bytes = static_cast<size_t>((end - begin) * row_bytes);
    if (bytes) std::memset(out + begin * row_bytes, 0, bytes);
  };
  clear(0, covered.begin);
  clear(covered.end, params.m());
  return Run({.dtype = params.dtype,
              .out_dtype = params.out_dtype,
              .order = params.transposed ? Order::kRows : Order::kColumns,
              .x = params.x,
              .x_row = k,
              .rows = params.rows,
              .x_rows = params.x_rows,
              .w = params.w,
              .w_row = params.transposed ? k : n,
              .bias = params.bias,
              .out = params.out,
              .n = n},
             products, context);
}

Status Run(const GroupedGradientParams& params, const CpuContext& context) {
  const int64_t k = params.k, n = params.n;
  if (k == 0 || n == 0) return {};  // no elements, of any number of groups
  std::vector<Group> products;
  for (int64_t i = 0; const RowRange& rows : ReadGroups(params.groups)) {
    products.push_back({.x = rows.begin * k,
                        .w = rows.begin * n,
                        .out = i * k * n,
                        .rows = k,
                        .count = rows.end - rows.begin});
    ++i;
  }
  return Run({.dtype = params.dtype,
              .out_dtype = params.out_dtype,
              .order = Order::kColumns,
              .x = params.x,
              .x_row = 1,
              .x_column = k,
              .w = params.d_out,
              .w_row = n,
              .out = params.out,
              .n = n},
             products, context);
}

}  // namespace intarsia::matmul
