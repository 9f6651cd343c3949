// Random products of groups of rows with weights in codes, checked against f64. The matrices of all
// groups are one long matrix (linear_quantized_cases.h), of which each group has some tiles.
#pragma once
#include <array>

#include "src/matmul/cuda/quantized_plan.h"
#include "tests/cuda/attention_batch.cuh"
#include "tests/cuda/linear_quantized_cases.h"

namespace intarsia::matmul {

struct QuantizedGroupsCase {
  QuantizedCase all;  // c: tiles of all matrices; m: rows of x
  int64_t count = 1, experts = 1, offset = 0, rows = 0;
  std::vector<int32_t> sizes, taken;  // taken: empty, or which row of x each row has
  bool is_infinite = false;           // whether all scales are; then no row has one of x
  std::string Name() const {
    return Text(count, " of ", experts, " groups from ", offset, " on, rows ", rows,
                taken.empty() ? "" : ", gathered", ": ", all.Name());
  }
};

// Changed to one that sm90/grouped_codes.cuh takes, or with many rows sm90/grouped_warpgroups.cuh;
// returns the tiles of a matrix.
inline int64_t DrawForHopper(QuantizedCase& c, std::mt19937& random) {
  const bool integers = random() % 3, points = integers && random() % 2, many = random() % 6 == 0;
  const bool bytes = !points && random() % 2;
  c.dtype = random() % 2 ? kBF16 : kF16;
  c.out = c.dtype == kBF16 && random() % 2 ? kBF16 : kF32;
  c.format = points     ? Format::kU4
             : integers ? (bytes ? Format::kI8 : Format::kU4B8)
                        : (bytes ? Format::kE4M3 : Format::kE2M1);
  c.group = points || (bytes && !integers) ? 128 << random() % 2
            : integers                     ? 32 << random() % 4
                                           : 32;
  c.scale = c.format == Format::kE2M1 ? DType::kF8E8M0 : random() % 2 ? kBF16 : kF16;
  if (c.format != Format::kE2M1 && c.group >= 128 && random() % 3 == 0) c.scale = kF32;
  c.zero = points ? DType::kU8 : DType::kOther;
  c.points = points;
  c.outer = DType::kOther, c.outers = c.shift = 0;
  if (c.format == Format::kE2M1 && random() % 2) c.DrawNvFp4(random);
  c.k = std::array{32, 96, 128, 320, 544, 1024}[random() % (many ? 3 : 6)];
  if (random() % 3 == 0) {                   // those of GGUF's files
    if (c.k % 128) c.k = many ? 128 : 1408;  // several rounds of a ring
    do c.DrawGguf(random);
    while (c.group > 32);
  }
  return many ? 700 : 1 + random() % 40;
}

inline QuantizedGroupsCase RandomQuantizedGroups(std::mt19937& random, bool for_hopper) {
  QuantizedGroupsCase g;
  g.all = RandomQuantizedCase(random);
  g.all.gated = g.all.residual = false, g.all.norm = DType::kOther, g.all.power = 0;
  g.all.k = std::min<int64_t>(g.all.k, 1000);
  g.all.DrawOuters(random);
  int64_t tiles = 1 + random() % 9;
  if (for_hopper) tiles = DrawForHopper(g.all, random);
  // A product of a gate and an up is beyond f16.
  g.all.gated = g.all.dtype == kBF16 && tiles % 2 == 0 && random() % 3 == 0;
  if (g.all.gated) g.all.out = kBF16, g.all.by_gelu = random() % 2;
  g.count = 1 + random() % 7, g.experts = g.count;
  if (random() % 3 == 0) {
    g.experts += random() % 4;
    g.offset = static_cast<int64_t>(random() % (g.experts + 2)) - 1;
  }
  g.all.c = tiles * g.count, g.all.outer_tiles = tiles;
  g.rows = 1 + random() % (random() % 3 ? 40 : 300);
  g.all.m = g.rows;
  for (int64_t i = 0; i < g.experts; ++i)
    g.sizes.push_back(static_cast<int32_t>(random() % (2 * g.rows / g.experts + 2)) - 1);
  if (random() % 2) {
    g.all.m = 1 + random() % 20;
    g.is_infinite = g.all.scale == kF32 && g.all.zero == DType::kOther &&
                    g.all.outer == DType::kOther && random() % 2;
    for (int64_t i = 0; i < g.rows; ++i)
      g.taken.push_back(g.is_infinite ? -1 : static_cast<int32_t>(random() % (g.all.m + 2)) - 1);
  }
  return g;
}

// The worst error of results, as a share of what is allowed.
inline double WorstGroupedError(const QuantizedGroupsCase& g, const QuantizedOperands& o,
                                const std::vector<float>& out) {
  const QuantizedCase& c = g.all;
  const int64_t n = c.results() / g.count, of_matrix = c.c / g.count * kTileRows;
  const double rounding = c.out == kF32 ? 0x1p-23 : c.out == kF16 ? 0x1p-10 : 0x1p-7;
  std::vector<int64_t> group_of(g.rows, -1);
  int64_t at = 0;
  for (int64_t i = 0; i < g.experts; ++i)
    for (int32_t j = 0; j < g.sizes[i] && at < g.rows; ++j) group_of[at++] = i - g.offset;
  std::vector<double> w(c.k), size(c.k), ups(c.k), size_of_ups(c.k);
  double worst = 0.0;
  const auto check = [&](int64_t row, int64_t column, const Wanted& want) {
    const double allowed = want.allowed + rounding * std::abs(want.value) + 1e-30;
    const double error = std::abs(out[row * n + column] - want.value) / allowed;
    if (!(error <= worst)) worst = error;
  };
  for (int64_t r = 0; r < g.rows; ++r) {
    const int64_t taken = g.taken.empty() ? r : g.taken[r];
    if (group_of[r] >= 0 && group_of[r] < g.count && taken >= 0 && taken < c.m) continue;
    for (int64_t column = 0; column < n; ++column) check(r, column, {});
  }
  for (int64_t i = 0; i < g.count * n; ++i) {
    const int64_t group = i / n, column = i % n, row = group * of_matrix + column;
    o.Row(row, w, size);
    if (c.gated) o.Row(row + n, ups, size_of_ups);
    for (int64_t r = 0; r < g.rows; ++r) {
      const int64_t taken = g.taken.empty() ? r : g.taken[r];
      if (group_of[r] != group || taken < 0 || taken >= c.m) continue;
      Wanted want = SumOf(o, taken, row, w, size);
      if (c.gated)
        want = Gated(want, SumOf(o, taken, row + n, ups, size_of_ups), c.by_gelu, rounding);
      check(r, column, want);
    }
  }
  return worst;
}

inline bool CheckQuantizedGroups(QuantizedGroupsCase g, std::mt19937& random, double& worst) {
  using attention::DeviceArray;
  QuantizedOperands o(g.all, random);
  const QuantizedCase& c = g.all;
  if (g.is_infinite)
    for (int64_t i = 0; i < c.c * c.groups() * kTileRows; ++i) o.scales.Set(i, INFINITY);
  const DeviceArray<char> x(o.x.bits()), packed(o.packed), scales(o.scales.bits()),
      zeros(o.zeros.bits()), bias(o.bias.bits()), outer_scales(o.outer_scales.bits()),
      outer_zeros(o.outer_zeros.bits());
  const DeviceArray<int32_t> sizes(g.sizes), taken(g.taken),
      offset(std::vector<int32_t>{static_cast<int32_t>(g.offset)});
  QuantizedGroupsParams p;
  p.each.dtype = c.dtype, p.each.out_dtype = c.out, p.each.format = c.format;
  p.each.x = x.data() + c.shift * Bytes(c.dtype);
  p.each.k = c.k, p.each.tiles = c.c / g.count;
  p.each.packed = reinterpret_cast<const uint8_t*>(packed.data());
  p.each.group = c.group, p.each.groups = c.groups();
  p.each.scales = {.data = scales.data(), .dtype = c.scale};
  if (!o.zeros.empty()) p.each.zeros = {.data = zeros.data(), .dtype = c.zero};
  p.each.scales.outer_dtype = p.each.zeros.outer_dtype = c.outer;
  p.each.scales.outers = p.each.zeros.outers = c.outers;
  if (!o.outer_scales.empty()) p.each.scales.outer = outer_scales.data();
  if (!o.outer_zeros.empty()) p.each.zeros.outer = outer_zeros.data();
  p.each.points = c.points;
  if (c.bias) p.each.bias = bias.data();
  if (!g.taken.empty()) p.each.rows = {taken.data(), false};
  p.x_rows = c.m;
  p.groups = {.sizes = {sizes.data(), false}, .all = g.experts, .count = g.count, .m = g.rows};
  if (g.experts > g.count || g.offset) p.groups.offset = {offset.data(), false};
  g.all.gated = c.gated && CanGate(p, attention::ContextOn());
  if (c.gated) p.each.gating = Gating::Of(c.by_gelu ? "gelu_tanh" : "silu", 0.0f, 0.0f);
  DeviceArray<char> out(g.rows * (c.results() / g.count) * Bytes(c.out));
  p.each.out = out.data();
  const auto run = [&] {
    out.Poison();
    attention::Require(Run(p, attention::ContextOn()));
    attention::Await(nullptr, g.Name(), 20);
    return out.ToHost();
  };
  const std::vector<char> bits = run();
  const attention::Elements elements(c.out, bits);
  const double error =
      WorstGroupedError(g, o, {elements.values(), elements.values() + bits.size() / Bytes(c.out)});
  if (!(error <= 1.0) || run() != bits) {
    const QuantizedPlan plan = PlanForGroups(p, *attention::ContextOn().device);
    std::printf("FAILED %s: error %.2f, kernel %d, rows %d, warps %d x %d\n", g.Name().c_str(),
                error, static_cast<int>(plan.kernel), plan.shape.rows, plan.tile_warps,
                plan.k_warps);
    return false;
  }
  worst = std::max(worst, error);
  return true;
}

}  // namespace intarsia::matmul
