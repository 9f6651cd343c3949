#include "src/matmul/quantized.h"

#include <algorithm>
#include <cstring>

#include "src/core/cpu/aligned_floats.h"
#include "src/core/cpu/isa.h"
#include "src/matmul/cpu/row_ranges.h"

namespace intarsia::matmul {
namespace {

constexpr int64_t kMostRows = 512;  // of x, at a time

const void* Beyond(const void* data, int64_t bytes) {
  return data ? static_cast<const char*>(data) + bytes : nullptr;
}

// The matrix behind `i` others of these sizes.
QuantizedParams MatrixAt(const QuantizedParams& first, int64_t i) {
  const int64_t factors = i * first.tiles * first.groups * kTileRows;
  QuantizedParams params = first;
  params.packed += i * first.tiles * first.tile_bytes();
  params.scales.data = Beyond(first.scales.data, factors * Bytes(first.scales.dtype));
  params.zeros.data = Beyond(first.zeros.data, factors * Bytes(first.zeros.dtype));
  for (Factors* of : {&params.scales, &params.zeros})
    of->outer = Beyond(of->outer, i * of->outer_bytes(first.tiles));
  params.bias = Beyond(first.bias, i * first.n() * Bytes(first.dtype));
  return params;
}

}  // namespace

Status Run(const QuantizedParams& params, const CpuContext& context) {
  if (params.m == 0 || params.tiles == 0) return {};
  const int64_t rows = std::min(params.m, kMostRows);
  const int64_t row_floats = params.blocks() * kBlockColumns;
  const AlignedFloats memory = MakeAligned(rows * (row_floats + params.groups));
  // Codes, four to a float, scales and sums of each block.
  const int64_t blocks = rows * params.blocks();
  const AlignedFloats of_codes =
      MakeAligned(params.int8_activations ? blocks * (kBlockColumns / 4 + 2) : 0);
  for (int64_t first = 0; first < params.m; first += rows) {
    QuantizedPass pass{params, first, std::min(rows, params.m - first), memory.get(),
                       params.zeros.data ? memory.get() + rows * row_floats : nullptr};
    if (params.int8_activations) {
      pass.codes = reinterpret_cast<int8_t*>(of_codes.get());
      pass.code_scales = of_codes.get() + blocks * (kBlockColumns / 4);
      pass.code_sums = reinterpret_cast<int32_t*>(pass.code_scales + blocks);
    }
    INTARSIA_RETURN_IF_ERROR(RunOnCpu(pass, context));
  }
  return {};
}

Status Run(const QuantizedGroupsParams& params, const CpuContext& context) {
  const QuantizedParams& each = params.each;
  const int64_t m = params.groups.m, row_bytes = each.n() * Bytes(each.out_dtype);
  if (m * row_bytes == 0) return {};
  char* const out = static_cast<char*>(each.out);
  const auto clear = [&](int64_t begin, int64_t end) {
    if (begin < end)
      std::memset(out + begin * row_bytes, 0, static_cast<size_t>((end - begin) * row_bytes));
  };
  const auto exists = [&](int64_t row) {
    if (!each.rows.data) return true;
    const int64_t from = each.rows.At(row);
    return from >= 0 && from < params.x_rows;
  };
  if (each.k == 0 && each.groups == 0 && !each.bias) {  // no elements, of any number of groups
    clear(0, m);
    return {};
  }
  int64_t done = 0, i = 0;
  for (const RowRange& rows : ReadGroups(params.groups)) {
    QuantizedParams matrix = MatrixAt(each, i++);
    clear(done, rows.begin);
    done = std::max(done, rows.end);
    // Runs of rows that take some of x.
    for (int64_t begin = rows.begin; begin < rows.end;) {
      int64_t end = begin;
      while (end < rows.end && exists(end)) ++end;
      matrix.m = end - begin;
      matrix.rows.data = Beyond(each.rows.data, begin * (each.rows.wide ? 8 : 4));
      matrix.x = each.rows.data ? each.x : Beyond(each.x, begin * each.k * Bytes(each.dtype));
      matrix.out = out + begin * row_bytes;
      INTARSIA_RETURN_IF_ERROR(Run(matrix, context));
      for (begin = end; begin < rows.end && !exists(begin); ++begin) clear(begin, begin + 1);
    }
  }
  clear(done, m);
  return {};
}

}  // namespace intarsia::matmul
