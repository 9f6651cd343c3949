#include <cmath>

#include "src/core/cpu/rows.h"
#include "src/core/cpu/simd.h"
#include "src/core/dispatch.h"
#include "src/ops/topk_router/topk_router.h"

namespace intarsia {
namespace {

constexpr int kMost = TopkRouter::kMostExperts;
constexpr float kNone = -INFINITY;

// One row: scores, and what experts are compared by.
struct Row {
  alignas(64) float scores[kMost], keys[kMost];
};

// The score of each logit, and its key: with NaN as the lowest.
template <class T>
void ReadRow(const TopkRouter& op, const T* logits, int64_t e, Row& row) {
  const float* const bias = op.bias ? op.bias->as<const float>() : nullptr;
  float largest = kNone;
  ForLanes(e,
           [&](int64_t i, int lanes) { StoreN(row.scores + i, LoadN(logits + i, lanes), lanes); });
  for (int64_t i = 0; i < e; ++i) {
    row.keys[i] = row.scores[i];
    if (row.scores[i] > largest) largest = row.scores[i];
  }
  const bool softmax = op.scoring == "softmax", sigmoid = op.scoring == "sigmoid";
  ForLanes(e, [&](int64_t i, int lanes) {
    const VecF x = LoadN(row.scores + i, lanes);
    VecF y;
    if (softmax) {
      y = Exp(x - largest);
    } else if (sigmoid) {
      y = 1.0f / (1.0f + Exp(-x));
    } else {
      // sqrt(log(1 + e^x)), lane by lane: there is no logarithm of registers.
      float lane[kLanes];
      Store(lane, x);
      for (float& z : lane) z = std::sqrt((z > 0 ? z : 0) + std::log1p(std::exp(-std::fabs(z))));
      y = Load(lane);
    }
    StoreN(row.scores + i, y, lanes);
  });
  if (softmax) {
    VecF sums = {};
    ForLanes(e, [&](int64_t i, int lanes) { sums += LoadN(row.scores + i, lanes); });
    const float sum = Sum(sums);
    for (int64_t i = 0; i < e; ++i) row.scores[i] /= sum;
  }
  for (int64_t i = 0; i < e; ++i) {
    if (bias) row.keys[i] = row.scores[i] + bias[i];
    if (!(row.keys[i] >= kNone)) row.keys[i] = kNone;
  }
}

// The largest key in [begin, end) that is not taken, the first of them; bit i of `taken`: i is.
int64_t Best(const float* keys, const uint64_t* taken, int64_t begin, int64_t end) {
  int64_t best = -1;
  for (int64_t i = begin; i < end; ++i)
    if (!(taken[i / 64] >> (i % 64) & 1) && (best < 0 || keys[i] > keys[best])) best = i;
  return best;
}

void Take(uint64_t* taken, int64_t i) { taken[i / 64] |= uint64_t{1} << (i % 64); }

// Takes the experts of all groups but the best out of the choice.
void DropGroups(const TopkRouter& op, int64_t e, const Row& row, uint64_t* taken) {
  const int64_t each = e / op.num_groups;
  float scores[TopkRouter::kMostGroups];
  for (int64_t group = 0; group < op.num_groups; ++group) {
    uint64_t seen[kMost / 64] = {};
    const int64_t begin = group * each, best = Best(row.keys, seen, begin, begin + each);
    scores[group] = row.keys[best];
    Take(seen, best);
    if (op.bias && each > 1) scores[group] += row.keys[Best(row.keys, seen, begin, begin + each)];
    if (!(scores[group] >= kNone)) scores[group] = kNone;  // the sum of both infinities
  }
  uint64_t kept = 0;
  for (int64_t i = 0; i < op.topk_groups; ++i) Take(&kept, Best(scores, &kept, 0, op.num_groups));
  for (int64_t i = 0; i < e; ++i)
    if (!(kept >> (i / each) & 1)) Take(taken, i);
}

void ChooseExperts(const TopkRouter& op, int64_t e, const Row& row, float* weights, int32_t* ids) {
  uint64_t taken[kMost / 64] = {};
  if (op.topk_groups < op.num_groups) DropGroups(op, e, row, taken);
  float sum = 0.0f;
  for (int64_t i = 0; i < op.top_k; ++i) {
    const int64_t best = Best(row.keys, taken, 0, e);
    Take(taken, best);
    ids[i] = static_cast<int32_t>(best);
    weights[i] = row.scores[best];
    sum += weights[i];
  }
  const float factor = op.renormalize && sum != 0.0f ? op.scale / sum : op.scale;
  for (int64_t i = 0; i < op.top_k; ++i) weights[i] *= factor;
}

}  // namespace

template <>
Status RunCpu<kIsa>(const TopkRouter& op, const CpuContext& context) {
  const int64_t e = op.logits.dim(-1), k = op.top_k;
  return DispatchDType<kF32, kF16, kBF16>("logits", op.logits.dtype, [&]<DType kType>() -> Status {
    ForRows(context, Rows(op.logits, e), e * k, [&](int64_t i) {
      Row row;
      ReadRow(op, op.logits.as<const CpuT<kType>>() + i * e, e, row);
      ChooseExperts(op, e, row, op.weights.as<float>() + i * k, op.ids.as<int32_t>() + i * k);
    });
    return {};
  });
}

}  // namespace intarsia
