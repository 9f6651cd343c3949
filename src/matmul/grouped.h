// Products of groups of rows, each with a matrix of its own (groups.h says which rows are whose):
//   out[r, :] = x[s(r), :] w[g] + bias[g]   for a row r of group g,
// where s(r) is rows[r], or r without `rows`. A row of no group gives 0, and so does one whose s(r)
// is no row of x. And the gradient of the weights:
//   out[g, :, :] = sum over the rows r of group g of x[r, :]^T d_out[r, :].
// Sums are f32, rounded once.
#pragma once
#include "src/activation/gating.h"
#include "src/core/context.h"
#include "src/core/dtype.h"
#include "src/core/status.h"
#include "src/matmul/groups.h"

namespace intarsia::matmul {

struct GroupedParams {
  DType dtype = DType::kF32, out_dtype = DType::kF32;  // the result's: dtype, or f32
  const void* x = nullptr;                             // [x_rows, k]
  const void* w = nullptr;                             // [count, k, n], or transposed [count, n, k]
  const void* bias = nullptr;                          // [count, n], or null
  void* out = nullptr;                                 // [m, columns()]
  int64_t k = 0, n = 0, x_rows = 0;
  bool transposed = false;
  GroupSizes groups;
  IndexVector rows = {};
  // With it, w gives a gate and an up for each of n / 2 results, both rounded to `dtype`.
  Gating gating = {};
  Await await = Await::kNothing;

  INTARSIA_HOST_DEVICE int64_t m() const { return groups.m; }
  INTARSIA_HOST_DEVICE int64_t columns() const { return gating.is_there ? n / 2 : n; }
};

struct GroupedGradientParams {
  DType dtype = DType::kF32, out_dtype = DType::kF32;
  const void* x = nullptr;      // [m, k]
  const void* d_out = nullptr;  // [m, n]
  void* out = nullptr;          // [count, k, n]
  int64_t k = 0, n = 0;
  GroupSizes groups;
};

Status Run(const GroupedParams& params, const CpuContext& context);
Status Run(const GroupedParams& params, const CudaContext& context);
Status Run(const GroupedGradientParams& params, const CpuContext& context);
Status Run(const GroupedGradientParams& params, const CudaContext& context);

}  // namespace intarsia::matmul
