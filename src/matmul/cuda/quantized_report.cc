// Which kernels multiply weights in codes on a GPU: what `intarsia doctor` shows.
#include "src/matmul/cuda/quantized_plan.h"

namespace intarsia::matmul {
namespace {

// How files have a layer's matrix of 4096 columns.
struct CommonFormat {
  const char* name;
  Format format;
  int64_t group;
  DType scale, zero = DType::kOther;
  bool points = false;
  int64_t outer_columns = 0;  // that share outer factors, in f16; 0: there are none
};
constexpr int64_t kColumns = 4096;
constexpr CommonFormat kFormats[] = {
    {"int4", Format::kU4B8, 128, DType::kF16},
    {"int4 with zeros", Format::kU4, 128, DType::kF16, DType::kU8, true},
    {"mxfp4", Format::kE2M1, kBlockColumns, DType::kF8E8M0},
    {"nvfp4", Format::kE2M1, 16, DType::kF8E4M3},
    {"int8", Format::kI8, kColumns, DType::kF16},
    {"Q4_K", Format::kU4, 32, DType::kU8, DType::kU8, false, 256},
    {"Q6_K", Format::kU6B32, 16, DType::kI8, DType::kOther, false, 256},
};

QuantizedParams CommonCall(const CommonFormat& of) {
  QuantizedParams p;
  p.dtype = p.out_dtype = DType::kBF16;
  p.format = of.format;
  p.k = kColumns, p.tiles = kColumns / kTileRows;
  p.group = of.group, p.groups = CeilDiv(p.k, p.group);
  alignas(16) static float factor = 0;  // only its address counts
  const auto set = [&](Factors& factors, DType dtype) {
    if (dtype == DType::kOther) return;
    factors = {.data = &factor, .dtype = dtype};
    if (of.outer_columns == 0) return;
    factors.outer = &factor, factors.outer_dtype = DType::kF16;
    factors.outers = kColumns / of.outer_columns;
  };
  set(p.scales, of.scale), set(p.zeros, of.zero);
  p.points = of.points;
  return p;
}

}  // namespace

std::string_view Name(QuantizedKernelKind kernel) {
  switch (kernel) {
    case QuantizedKernelKind::kStream:
    case QuantizedKernelKind::kWideStream:
      return "portable, codes streamed past rows";
    case QuantizedKernelKind::kRow:
      return "portable, up to 8 rows";
    case QuantizedKernelKind::kResident:
    case QuantizedKernelKind::kWideResident:
      return "Hopper, few rows";
    case QuantizedKernelKind::kWarpgroups:
    case QuantizedKernelKind::kGroupsHopper:
      return "Hopper";
    case QuantizedKernelKind::kGroupsWarpgroups:
      return "Hopper, many rows";
    case QuantizedKernelKind::kAny:
      break;
  }
  return "portable, any codes";
}

std::vector<cuda::KernelChoice> ReportQuantizedChoices(const cuda::Device& device) {
  std::vector<cuda::KernelChoice> choices;
  for (const CommonFormat& format : kFormats) {
    QuantizedGroupsParams groups;
    groups.each = CommonCall(format);
    groups.groups.count = groups.groups.all = 128;
    const auto add = [&](std::string_view what, int64_t rows, QuantizedKernelKind kernel) {
      choices.push_back({Text(what, format.name, ", rows: ", rows), std::string(Name(kernel))});
    };
    for (const int64_t rows : {1, 16, 64, 256}) {  // JAX has more of them decoded first
      groups.each.m = rows;
      add("weights in ", rows, PlanFor(groups.each, device).kernel);
    }
    for (const int64_t rows : {1, 16, 64, 2048}) {
      groups.each.m = groups.groups.m = groups.x_rows = rows;
      add("128 experts in ", rows, PlanForGroups(groups, device).kernel);
    }
  }
  return choices;
}

}  // namespace intarsia::matmul
