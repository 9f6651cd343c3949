// Which kernels multiply weights in codes on a GPU: what `intarsia doctor` shows.
#include "src/matmul/cuda/quantized_plan.h"

namespace intarsia::matmul {
namespace {

// A layer's matrix of 4096 columns, as files have it.
QuantizedParams CommonCall(Format format) {
  QuantizedParams p;
  p.dtype = p.out_dtype = DType::kBF16;
  p.format = format;
  p.k = 4096, p.tiles = 4096 / kTileRows;
  p.group = format == Format::kE2M1 ? kBlockColumns : format == Format::kI8 ? p.k : 128;
  p.groups = CeilDiv(p.k, p.group);
  alignas(16) static float factor = 0;  // only its address counts
  p.scales.data = p.zeros.data = &factor;
  p.scales.dtype = format == Format::kE2M1 ? DType::kF8E8M0 : DType::kF16;
  if (format == Format::kU4)
    p.zeros.dtype = DType::kU8, p.points = true;
  else
    p.zeros = {};
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
  constexpr struct {
    Format format;
    const char* name;
  } kFormats[] = {{Format::kU4B8, "int4"},
                  {Format::kU4, "int4 with zeros"},
                  {Format::kE2M1, "mxfp4"},
                  {Format::kI8, "int8"}};
  std::vector<cuda::KernelChoice> choices;
  for (const auto& [format, name] : kFormats) {
    QuantizedGroupsParams groups;
    groups.each = CommonCall(format);
    groups.groups.count = groups.groups.all = 128;
    const auto add = [&](std::string_view what, int64_t rows, QuantizedKernelKind kernel) {
      choices.push_back({Text(what, name, ", rows: ", rows), std::string(Name(kernel))});
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
