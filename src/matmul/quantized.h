// A linear layer with weights in 8 bits or less:
//   out[.., j] = sum_i x[.., i] w[j, i] + bias[j],   sums in f32, rounded once,
// where row j's neighbors of a group share a scale and perhaps a zero:
//   w[j, i] = s (q[j, i] - z)   zeros are points
//   w[j, i] = s q[j, i] + z     zeros are minimums, or there are none and z = 0
// q is the number that a code stands for (Format), s = scales * outer_scales, z = zeros, of
// minimums times outer_zeros. docs/adr/0018-weights-in-codes.md says why codes lie as they do:
//
//   packed  u8 [c, r, bits, 16, 4]: c tiles of 16 rows of w, r blocks of 32 columns, which take
//           `bits` lines of 16 words of 32 bits, a word for each row. Bits count from a word's
//           lowest one (byte 0 is the lowest).
//     4 bits and above:   line l < 4 has the lower 4 bits of columns 8 l ... 8 l + 7
//     5 bits:             line 4 has the fifth bit of all 32 columns
//     6 bits:             line 4 + l has the upper 2 bits of columns 16 l ... 16 l + 15
//     8 bits:             line l has columns 4 l ... 4 l + 3 instead
//   scales  [c, g, 16]: of each group of each row; zeros likewise
//   outer_scales, outer_zeros  [c, o, 16]: of g / o groups each; or [1]: of all
//
// Codes of columns beyond k are multiplied by 0.
//
// A layer may end with a residual, which is added before results are rounded, or on GPUs with a
// gating: halves of the results are gates and ups (CanGate). There it may begin with a norm, too.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "src/activation/gating.h"
#include "src/core/context.h"
#include "src/core/dtype.h"
#include "src/core/round.h"
#include "src/core/status.h"
#include "src/core/tensor_view.h"
#include "src/matmul/groups.h"

namespace intarsia::matmul {

// What a code stands for. vLLM's names: u4b8 is an unsigned code less 8.
enum class Format { kU4, kU4B8, kE2M1, kU5, kU5B16, kU6B32, kI8, kE4M3 };
#define INTARSIA_FORMAT_NAMES "u4|u4b8|e2m1|u5|u5b16|u6b32|i8|e4m3"
inline constexpr std::string_view kFormatNames = INTARSIA_FORMAT_NAMES;

// The shape of codes in specs, with BitsOf(format) lines a block; `axes` are those before the
// lines. `word`: what comes before a format's name in the condition.
#define INTARSIA_PACKED_DIMS_IF(word, axes)                                             \
  word "u4: " axes " 4 16 4 | " word "u4b8: " axes " 4 16 4 | " word "e2m1: " axes      \
       " 4 16 4 | " word "u5: " axes " 5 16 4 | " word "u5b16: " axes " 5 16 4 | " word \
       "u6b32: " axes " 6 16 4 | " word "i8: " axes " 8 16 4 | " word "e4m3: " axes " 8 16 4"
#define INTARSIA_PACKED_DIMS(axes) INTARSIA_PACKED_DIMS_IF("format=", axes)

constexpr std::optional<Format> FormatOf(std::string_view name) {
  std::string_view names = kFormatNames;
  for (int i = 0;; ++i) {
    const size_t end = names.find('|');
    if (names.substr(0, end) == name) return static_cast<Format>(i);
    if (end == names.npos) return std::nullopt;
    names.remove_prefix(end + 1);
  }
}
constexpr int64_t BitsOf(Format format) {
  switch (format) {
    case Format::kU5:
    case Format::kU5B16:
      return 5;
    case Format::kU6B32:
      return 6;
    case Format::kI8:
    case Format::kE4M3:
      return 8;
    default:
      return 4;
  }
}

inline constexpr int64_t kTileRows = 16;      // of w, neighbors in a line
inline constexpr int64_t kBlockColumns = 32;  // of w
inline constexpr int64_t kLineBytes = 64;

// Columns of w, hence of x, that an instruction of the tensor cores sums, and that warps of a GPU
// take at a time: a stage of their ring, or a unit.
inline constexpr int kStepColumns = 16, kStageColumns = 128;
// Where groups of columns may end, which kernels have instances for: with each 16 columns, with
// each 32, or with each 128, of which longer ones have several.
enum class GroupEnds { kEach16, kEach32, kEach128 };
constexpr GroupEnds GroupEndsOf(int64_t group) {
  return group % kStageColumns == 0   ? GroupEnds::kEach128
         : group % kBlockColumns == 0 ? GroupEnds::kEach32
                                      : GroupEnds::kEach16;
}

// What a group's scales or zeros are made of: inner times outer.
struct Factors {
  const void* data = nullptr;  // absent
  DType dtype = DType::kF32;
  const void* outer = nullptr;  // absent, and then 1
  DType outer_dtype = DType::kF32;
  int64_t outers = 0;  // of a row; 0: one for all

  // Of stacked matrices, those of one with so many tiles. f32, f16 or bf16: Bytes(dtype), which
  // knows all types, would be a trap in a kernel.
  constexpr int64_t outer_bytes(int64_t tiles) const {
    return (outers == 0 ? 1 : tiles * outers * kTileRows) * (outer_dtype == DType::kF32 ? 4 : 2);
  }
};

// What a row of x is normed by before it is multiplied: x / sqrt(mean(x^2) + eps) weight, rounded
// to x's type.
struct RowNorm {
  const void* weight = nullptr;  // [k], or absent
  DType dtype = DType::kF32;     // of x, or f32
  float eps = 0.0f;
};

struct QuantizedParams {
  DType dtype = DType::kF32, out_dtype = DType::kF32;  // of x and bias; of the result
  Format format = Format::kU4;
  const void* x = nullptr;
  IndexVector rows = {};  // absent, or which row of x each row takes; on GPUs of groups alone
  int64_t m = 0, k = 0, tiles = 0;
  const uint8_t* packed = nullptr;
  int64_t group = 0, groups = 0;  // columns of a group: 16 or a multiple of 32; groups of a row
  Factors scales, zeros;
  bool points = false;
  const void* bias = nullptr;
  void* out = nullptr;
  const void* residual = nullptr;  // [m, n] of x's type, or absent; of a layer, not of groups
  RowNorm norm = {};               // on GPUs alone (CanNorm)
  // On GPUs alone. With a gating a matrix gives a gate and an up for each of n / 2 results, both
  // rounded to x's type.
  Gating gating = {};
  // Whether each 32 numbers of a row of x are rounded to int8 first: q = x / s to the nearest, s =
  // max |x| / 127; on CPUs alone.
  bool int8_activations = false;

  int64_t RowOf(int64_t i) const { return rows.data ? rows.At(i) : i; }
  constexpr int64_t blocks() const { return CeilDiv(k, kBlockColumns); }
  constexpr int64_t n() const { return tiles * kTileRows; }
  constexpr int64_t results() const { return gating.is_there ? n() / 2 : n(); }  // of a row
  constexpr int64_t tile_bytes() const { return blocks() * BitsOf(format) * kLineBytes; }
};

// nvfp4: e2m1 with scales in e4m3 of 16 columns, and perhaps one outer factor for all, or for each
// row.
inline bool IsNvFp4(const QuantizedParams& p) {
  return p.format == Format::kE2M1 && p.group == kStepColumns && p.scales.dtype == DType::kF8E4M3 &&
         p.scales.outers <= 1 && !p.zeros.data;
}

// The rows of x that are worked on at a time, as f32 with zeros up to a whole block, and the sums
// of each of their groups.
struct QuantizedPass {
  const QuantizedParams& params;
  int64_t first, rows;
  float *x, *sums;  // [rows, blocks * 32], [rows, groups]; sums: null without zeros
  // Of x in int8, for each block: codes, scales, and sums of codes; null where x is as it is.
  int8_t* codes = nullptr;
  float* code_scales = nullptr;
  int32_t* code_sums = nullptr;
};

Status Run(const QuantizedParams& params, const CpuContext& context);
Status Run(const QuantizedParams& params, const CudaContext& context);

// Products of groups of rows (groups.h), each with a matrix of its own, of which `each` has the
// first: they lie one after the other in packed, all factors, and bias [groups.count, n]. Rows
// are those of grouped.h: one of no group gives 0, and so does one that takes no row of x.
struct QuantizedGroupsParams {
  QuantizedParams each;  // x [x_rows, k], out [groups.m, results()]; m is each group's own
  int64_t x_rows = 0;
  GroupSizes groups;
  Await await = Await::kNothing;  // on GPUs alone
};
Status Run(const QuantizedGroupsParams& params, const CpuContext& context);
Status Run(const QuantizedGroupsParams& params, const CudaContext& context);
// Whether the kernel on the device makes gates and ups results.
bool CanGate(const QuantizedParams& params, const CudaContext& context);
bool CanGate(const QuantizedGroupsParams& params, const CudaContext& context);

// Whether it norms rows of x.
bool CanNorm(const QuantizedParams& params, const CudaContext& context);

}  // namespace intarsia::matmul
