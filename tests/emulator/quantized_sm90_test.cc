// Hopper's products with codes (sm90/warpgroups.cuh, sm90/grouped_codes.cuh,
// sm90/grouped_warpgroups.cuh), those of few rows (sm80/quantized_row.cuh) and experts of few
// tokens (few_tokens.cuh) in the emulator, against f64. A block runs alone here, so no sum is cut
// among the blocks of a cluster. Argument: cases of each kernel.
#include <array>
#include <cstdlib>
#include <optional>
#include <span>

#include "src/core/dispatch.h"
#include "src/matmul/cuda/sm80/quantized.h"
#include "src/matmul/cuda/sm90/grouped_codes.h"
#include "src/matmul/cuda/sm90/grouped_warpgroups.h"
#include "src/matmul/cuda/sm90/warpgroups.h"
#include "src/ops/fused_experts_quantized/few_tokens.h"
#include "tests/cuda/grouped_quantized_cases.cuh"
#include "tests/cuda/linear_quantized_on_device.cuh"
#include "tests/cuda/quantized_experts_cases.cuh"

namespace intarsia {

// run(pass, first product, second product) for each pass.
template <class Run>
Status ForEachPass(const FusedExpertsQuantized& op, Run run) {
  const FusedExperts plain = op.Plain();
  return ExpertsPasses(plain).ForEach([&](const ExpertsPass& pass) -> Status {
    return run(pass, op.GatedProduct(pass).each, op.SecondProduct(pass).each);
  });
}

Status FusedExpertsQuantized::Run(const CudaContext& context) const {
  return ForEachPass(*this, [&](const auto& pass, const auto& first, const auto& second) {
    return DispatchDType<kF16, kBF16>("x", x.dtype, [&]<DType kType>() {
      return cuda::RunFewTokens<kType>(pass, first, second, context);
    });
  });
}

// Of few tokens, by the rule that the library has.
QuantizedExpertsCase DrawFewTokens(std::mt19937& random) {
  for (;;) {
    const QuantizedExpertsCase layer(random);
    bool are_few = true, is_empty = true;
    attention::Require(ForEachPass(layer.Op(), [&](const auto& pass, const auto&... products) {
      are_few = are_few && cuda::CanRunFewTokens(pass, products...);
      is_empty = false;
      return Status();
    }));
    if (are_few && !is_empty) return layer;
  }
}

}  // namespace intarsia

namespace intarsia::matmul {

// As the library does for such calls, but for the height of warpgroups' tiles, which is either.
Status Run(const QuantizedGroupsParams& params, const CudaContext& context) {
  QuantizedPlan plan = PlanForGroups(params, *context.device);
  const bool warpgroups = plan.kernel == QuantizedKernelKind::kGroupsWarpgroups;
  if (!warpgroups && plan.kernel != QuantizedKernelKind::kGroupsHopper)
    return Internal("another kernel than Hopper's is planned");
  if (warpgroups) plan.shape = params.groups.m % 2 ? kFewWarpgroupsRows : kManyWarpgroupsRows;
  return DispatchDType<kF16, kBF16>("x", params.each.dtype, [&]<DType kType>() {
    return warpgroups ? sm90::LaunchGroupedWarpgroupsOf<kType>(params, plan, context)
                      : sm90::LaunchGroupsHopperOf<kType>(params, plan, context);
  });
}

bool CanGate(const QuantizedGroupsParams&, const CudaContext&) { return true; }

namespace {

// Formats that warpgroups multiply, with groups that end with a stage, or may end before; nvfp4.
struct WarpgroupsFormat {
  Format format;
  bool wide, nv = false;
};
constexpr WarpgroupsFormat kPlainFormats[] = {{Format::kU4B8, true}, {Format::kU4, true}};
constexpr WarpgroupsFormat kOtherFormats[] = {
    {Format::kI8, true},    {Format::kI8, false},         {Format::kU4B8, false},
    {Format::kE2M1, false}, {Format::kE2M1, false, true}, {Format::kU4, false},
    {Format::kE4M3, true},
};
constexpr auto kFewRowsFormats = std::span(kOtherFormats).first(5);  // beside those of files

void SetFormat(WarpgroupsFormat of, QuantizedCase& c, std::mt19937& random) {
  constexpr std::array kScales = {kF32, kF16, kBF16};
  if (of.nv) return c.DrawNvFp4(random);
  c.format = of.format;
  if (of.wide)
    c.group = std::array{128, 256, 1280}[random() % 3];
  else
    c.group = of.format == Format::kE2M1 ? 32 : 32 << random() % 2;
  c.scale = kScales[random() % 3];
  if (of.format == Format::kE2M1) c.scale = DType::kF8E8M0;
  if (of.format == Format::kU4) c.zero = of.wide ? DType::kU8 : kScales[random() % 3];
  c.points = of.wide;
}

// of: none for GGUF's.
QuantizedCase DrawCase(DType dtype, int rows, std::optional<WarpgroupsFormat> of,
                       std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  QuantizedCase c{.dtype = dtype};
  c.out = dtype == kF16 || random() % 2 ? kF32 : dtype;  // f16's range is too small
  c.m = pick({1, rows - 3, rows, rows + 1});
  c.c = pick({1, 15, 16, 17});
  c.k = pick({128, 384, 1280, 2816});  // the longest: more than two rounds of any ring
  c.bias = random() % 2;
  if (of)
    SetFormat(*of, c, random);
  else
    c.DrawGguf(random);
  c.DrawEnd(random);
  return c;
}

// Whether launch(params) gives the results of a case.
template <class Launch>
bool Check(const QuantizedOperands& o, const QuantizedPlan& plan, Launch launch) {
  const QuantizedOnDevice device(o);
  attention::Require(launch(device.Params()));
  const std::vector<char> out = device.Read();
  const double error = out.empty() ? INFINITY : WorstError(o, Widened(o.c.out, out));
  if (error <= 1.0) return true;
  std::printf("FAILED %s: error %.2f, rows %d, tiles %d, warps %d x %d\n", o.c.Name().c_str(),
              error, plan.shape.rows, plan.shape.tiles, plan.tile_warps, plan.k_warps);
  return false;
}

template <DType kType>
bool CheckWarpgroups(QuantizedShape shape, int parts, std::optional<WarpgroupsFormat> format,
                     std::mt19937& random) {
  const QuantizedOperands o(DrawCase(kType, shape.rows, format, random), random);
  const bool few = shape.rows <= kMostRowsByWarps;
  const QuantizedPlan plan{
      .kernel = QuantizedKernelKind::kWarpgroups,
      .shape = shape,
      .k_warps = few ? std::max(parts, LeastParts(shape.rows, o.c.format, o.c.points)) : 1,
      .stage_groups = std::max(kStageColumns / static_cast<int>(o.c.group), 1),
      .scale_bytes = static_cast<int>(kTileRows * Bytes(o.c.scale)),
      .zero_bytes = static_cast<int>(o.zeros.empty() ? 0 : kTileRows * Bytes(o.c.zero)),
  };
  return Check(o, plan, [&](const QuantizedParams& params) {
    return sm90::LaunchWarpgroupsOf<kType>(params, plan, attention::ContextOn());
  });
}

bool CheckRow(std::mt19937& random) {
  for (;;) {
    QuantizedCase c = RandomQuantizedCase(random);
    if (c.m > kMostRowsOfCodes || c.m * c.c * c.k > 200000) continue;
    if (c.m > 1) c.norm = DType::kOther;
    const QuantizedOperands o(c, random);
    const CudaContext context = attention::ContextOn();
    QuantizedPlan plan = PlanFor(QuantizedOnDevice(o).Params(), *context.device);
    if (plan.kernel != QuantizedKernelKind::kRow) continue;
    // Any cut, not only that of this number of multiprocessors.
    const int units = static_cast<int>(CeilDiv<int64_t>(c.k, kStageColumns));
    do plan.k_warps = 1 << random() % 4, plan.tile_warps = 1 + static_cast<int>(random() % 16);
    while (plan.k_warps > units || plan.k_warps * plan.tile_warps > kMostRowWarps ||
           (c.gated && plan.tile_warps % 2));
    return Check(o, plan, [&](const QuantizedParams& params) {
      return DispatchDType<kF16, kBF16>(
          "x", c.dtype, [&]<DType kType>() { return LaunchRowOf<kType>(params, plan, context); });
    });
  }
}

// One that does not take long. is_infinite: of many rows, which must be zeros.
QuantizedGroupsCase DrawGroups(std::mt19937& random, bool is_infinite = false) {
  for (;;) {
    QuantizedGroupsCase g = RandomQuantizedGroups(random, true);
    if (g.all.c * g.rows >= 4000) continue;
    if (!is_infinite || (g.is_infinite && g.rows >= 12 * g.experts)) return g;
  }
}

}  // namespace
}  // namespace intarsia::matmul

int main(int argc, char** argv) {
  using namespace intarsia;
  const int cases = argc > 1 ? std::atoi(argv[1]) : 3;
  std::mt19937 random(20261126);
  int count = 0, failures = 0;
  for (const int rows : {8, 16, 32, 64}) {
    for (const auto format : matmul::kPlainFormats) {
      for (int i = 0; i < cases; ++i, count += 2) {
        // Both ways in which such calls are cut.
        const bool few = rows <= 16;
        const int tiles = few     ? matmul::kFewRowsTiles
                          : i % 2 ? matmul::kNarrowTiles
                                  : matmul::kWideTiles;
        const int parts = few ? 1 + i % 2 : 1;
        failures += !matmul::CheckWarpgroups<DType::kF16>({rows, tiles}, parts, format, random);
        failures += !matmul::CheckWarpgroups<DType::kBF16>({rows, tiles}, parts, format, random);
      }
    }
  }
  for (const int rows : {8, 16, 32, 64}) {
    const bool few = rows <= 16;
    const auto check = [&](std::optional<matmul::WarpgroupsFormat> format) {
      const int parts = few ? 1 + static_cast<int>(random() % 2) : 1;
      const int tiles = few            ? matmul::kFewRowsTiles
                        : random() % 2 ? matmul::kNarrowTiles
                                       : matmul::kWideTiles;
      const matmul::QuantizedShape shape{rows, tiles};
      failures += !matmul::CheckWarpgroups<DType::kBF16>(shape, parts, format, random), ++count;
      if (format && format->format == matmul::Format::kE2M1) return;
      failures += !matmul::CheckWarpgroups<DType::kF16>(shape, parts, format, random), ++count;
    };
    for (int i = 0; i < cases; ++i) {
      if (few)
        for (const auto format : matmul::kFewRowsFormats) check(format);
      for (int of_file = 0; of_file < 6; ++of_file) check({});
    }
  }
  for (const int rows : {32, 64}) {
    for (const auto format : matmul::kOtherFormats) {
      for (int i = 0; i < cases; ++i, count += 2) {
        // Minimums of any types have kNarrowTiles alone.
        const bool is_narrow = i % 2 || (format.format == matmul::Format::kU4 && !format.wide);
        const matmul::QuantizedShape shape{rows,
                                           is_narrow ? matmul::kNarrowTiles : matmul::kWideTiles};
        failures += !matmul::CheckWarpgroups<DType::kBF16>(shape, 1, format, random);
        if (format.format != matmul::Format::kE2M1)
          failures += !matmul::CheckWarpgroups<DType::kF16>(shape, 1, format, random);
      }
    }
  }
  for (int i = 0; i < 32 * cases; ++i, ++count) failures += !matmul::CheckRow(random);
  for (int i = 0; i < 32 * cases; ++i, ++count) {
    double worst = 0.0;
    const bool is_infinite = i % 16 == 0;
    failures +=
        !matmul::CheckQuantizedGroups(matmul::DrawGroups(random, is_infinite), random, worst);
  }
  for (int i = 0; i < 16 * cases; ++i, ++count) {
    const QuantizedExpertsCase layer = DrawFewTokens(random);
    const double error = layer.Error(random);
    if (error <= 1.0) continue;
    ++failures;
    std::printf("FAILED %s: error %.2f\n", layer.Name().c_str(), error);
  }
  std::printf("%d cases, %d failures\n", count, failures);
  return failures == 0 ? 0 : 1;
}
