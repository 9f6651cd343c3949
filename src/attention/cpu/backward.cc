// Plans the gradient of attention on the CPU: cuts the batch into items, and lets the best
// instruction set of the machine do them.
#include "src/attention/backward.h"

#include <algorithm>
#include <vector>

#include "src/attention/cpu/backward.h"
#include "src/core/cpu/aligned_floats.h"
#include "src/core/cpu/isa.h"
#include "src/core/round.h"

namespace intarsia::attention {
namespace {

// An item of all keys of a sequence and head may be this many times what each thread has to do.
constexpr double kLargestShare = 0.5;

// Whether dq can be made on the way: no item would keep one thread busy while the others wait.
bool Fuse(const std::vector<CpuSequence>& sequences, int64_t heads, int64_t threads) {
  if (threads == 1) return true;
  double total = 0, largest = 0;
  for (const CpuSequence& sequence : sequences) {
    const double cost =
        static_cast<double>(sequence.tokens.size()) * static_cast<double>(sequence.len_k);
    total += cost * static_cast<double>(heads);
    largest = std::max(largest, cost);
  }
  return largest <= kLargestShare * total / static_cast<double>(threads);
}

// Pieces of [0, count), of kBackwardTile each, or one.
void AddItems(const CpuSequence& sequence, int64_t count, bool whole,
              std::vector<BackwardItem>& items) {
  const int64_t step = whole ? std::max<int64_t>(count, 1) : kBackwardTile;
  for (int64_t begin = 0; begin < count; begin += step)
    items.push_back({sequence, begin, std::min(count, begin + step)});
}

}  // namespace

Status RunBackward(const BackwardParams& params, const CpuContext& context) {
  INTARSIA_RETURN_IF_ERROR(CheckWorkspace(params));
  const Params& p = params.forward;
  BackwardWork work{.params = params};
  work.group = params.group();
  work.padded_d = RoundUp(p.head_dim, kAlignFloats);
  const std::vector<CpuSequence> sequences = ReadSequences(p);
  if (!sequences.empty()) {
    work.first_token = sequences.front().tokens.begin;
    work.end_token = sequences.back().tokens.end;
  }
  work.fused = Fuse(sequences, p.num_kv_heads(), context.num_threads());
  std::vector<BackwardItem> key_items, row_items;
  for (const CpuSequence& sequence : sequences) {
    AddItems(sequence, sequence.len_k, work.fused, key_items);
    if (!work.fused) AddItems(sequence, sequence.tokens.size() * work.group, false, row_items);
  }
  work.key_items = key_items.data();
  work.num_key_items = static_cast<int64_t>(key_items.size());
  work.row_items = row_items.data();
  work.num_row_items = static_cast<int64_t>(row_items.size());
  work.num_workers = context.num_threads();
  const AlignedFloats scratch = MakeAligned(work.num_workers * work.scratch_floats());
  work.scratch = scratch.get();
  return RunOnCpu(work, context);
}

}  // namespace intarsia::attention
