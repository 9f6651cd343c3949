// Plans attention on the CPU: reads the lengths, cuts the batch into tiles of about equal work, and
// lets the best instruction set of the machine do them.
#include "src/attention/cpu/forward.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "src/attention/attention.h"
#include "src/core/checked.h"
#include "src/core/cpu/aligned_floats.h"
#include "src/core/cpu/isa.h"
#include "src/core/round.h"

namespace intarsia::attention {
namespace {

// Work that a thread should find several pieces of, so that the last one to finish is not late.
constexpr int64_t kTilesPerThread = 4;
// Fewer keys than this are not worth a partial result.
constexpr int64_t kMinSplitKeys = 256;
// Multiply-adds below which another thread is not worth its wake-up, some microseconds.
constexpr int64_t kMinWorkerWork = 256 * 1024;
// A tile of fewer rows takes no less time: it waits for memory.
constexpr int64_t kMinCostRows = 8;

}  // namespace

std::vector<CpuSequence> ReadSequences(const Params& params) {
  std::vector<CpuSequence> sequences;
  int64_t begin = FirstToken<int64_t>(params), key_begin = FirstKey<int64_t>(params);
  const int64_t num_seqs = NumSeqs<int64_t>(params);
  for (int64_t i = 0; i < num_seqs; ++i) {
    sequences.push_back(SequenceAt(params, i, begin, key_begin));
    begin = sequences.back().tokens.end;
    key_begin = sequences.back().key_end;
  }
  return sequences;
}

namespace {

class Plan {
 public:
  Plan(const CpuWork& work, const std::vector<CpuSequence>& sequences, int64_t num_threads) {
    const int64_t num_kv_heads = work.params.num_kv_heads();
    for (const CpuSequence& sequence : sequences) AddRowTiles(work, sequence);
    for (const CpuTile& tile : tiles_)
      cost_ = BoundedSum({cost_, BoundedProduct({Cost(tile), num_kv_heads})});
    if (num_threads > 1) SplitAbove(CeilDiv(cost_, kTilesPerThread * num_threads));
    // The heaviest first: what is claimed last should be short.
    std::stable_sort(tiles_.begin(), tiles_.end(),
                     [](const CpuTile& a, const CpuTile& b) { return Cost(a) > Cost(b); });
  }

  // Lends its tiles to `work`, which must not outlive the plan.
  void LendTo(CpuWork& work) const {
    work.tiles = tiles_.data();
    work.num_tiles = static_cast<int64_t>(tiles_.size());
    work.merges = merges_.data();
    work.num_merges = static_cast<int64_t>(merges_.size());
    work.partial_rows = partial_rows_;
  }
  int64_t max_tile_rows() const { return max_tile_rows_; }
  int64_t cost() const { return cost_; }  // keys times query rows, of all heads

 private:
  static int64_t Cost(const CpuTile& tile) {
    return (tile.key_end - tile.key_begin) * std::max(tile.num_rows, kMinCostRows);
  }

  void AddRowTiles(const CpuWork& work, const CpuSequence& sequence) {
    const int64_t rows = sequence.tokens.size() * work.group;
    for (int64_t row = 0; row < rows; row += kTileRows) {
      CpuTile tile{.sequence = sequence, .row = row, .num_rows = std::min(kTileRows, rows - row)};
      const int64_t last_row = row + tile.num_rows - 1;
      tile.key_begin = VisibleKeysOfChunk(work.params, sequence, row / work.group).begin;
      tile.key_end = std::max(tile.key_begin,
                              VisibleKeysOfChunk(work.params, sequence, last_row / work.group).end);
      tiles_.push_back(tile);
      max_tile_rows_ = std::max(max_tile_rows_, tile.num_rows);
    }
  }

  void SplitAbove(int64_t cost) {
    std::vector<CpuTile> pieces;
    for (const CpuTile& tile : tiles_) {
      const int64_t keys = tile.key_end - tile.key_begin;
      const int64_t wanted =
          std::min(CeilDiv(Cost(tile), std::max<int64_t>(cost, 1)), keys / kMinSplitKeys);
      if (wanted < 2) {
        pieces.push_back(tile);
        continue;
      }
      const int64_t keys_each = RoundUp(CeilDiv(keys, wanted), kTileKeys);
      CpuMerge merge{.tile = tile, .splits = 0};
      merge.tile.partial_row = partial_rows_;
      for (int64_t key = tile.key_begin; key < tile.key_end; key += keys_each, ++merge.splits) {
        CpuTile piece = tile;
        piece.key_begin = key;
        piece.key_end = std::min(tile.key_end, key + keys_each);
        piece.partial_row = partial_rows_;
        partial_rows_ += tile.num_rows;
        pieces.push_back(piece);
      }
      merges_.push_back(merge);
    }
    tiles_ = std::move(pieces);
  }

  std::vector<CpuTile> tiles_;
  std::vector<CpuMerge> merges_;
  int64_t partial_rows_ = 0;
  int64_t max_tile_rows_ = 0;
  int64_t cost_ = 0;
};

// The rows [begin, end) of q that belong to no sequence.
void WritePadding(const Params& params, int64_t begin, int64_t end) {
  if (begin >= end) return;
  const int64_t row_bytes = params.num_heads * params.cache.v_head_dim * Bytes(params.out_dtype);
  std::memset(static_cast<char*>(params.out) + begin * row_bytes, 0,
              static_cast<size_t>((end - begin) * row_bytes));
  if (!params.lse) return;
  for (int64_t head = 0; head < params.num_heads; ++head) {
    float* lse = params.lse + head * params.num_tokens;
    std::fill(lse + begin, lse + end, -std::numeric_limits<float>::infinity());
  }
}

// K and V of the layer that the device names. False: there is no such layer.
bool ApplyLayer(CacheView& cache) {
  if (!cache.layer) return true;
  const int64_t layer = *cache.layer;
  if (layer < 0 || layer >= cache.num_layers) return false;
  const int64_t bytes = layer * Bytes(cache.dtype);
  for (auto [data, strides] : {std::pair(&cache.k, &cache.k_strides), {&cache.v, &cache.v_strides}})
    if (*data) *data = static_cast<char*>(*data) + bytes * strides->layer;  // null: it is empty
  return true;
}

}  // namespace

Status Run(const Params& params, const CpuContext& context) {
  return RunPlanned(params, context, RunOnCpu<CpuWork>);
}

Status RunPlanned(const Params& params, const CpuContext& context, CpuKernel& kernel) {
  if (params.num_tokens == 0 || params.num_heads == 0 || params.head_dim == 0) return {};

  CpuWork work{.params = params};
  // So that a position plus a window fits.
  const int64_t widest_window = params.max_len_k + params.num_tokens;
  work.params.window_left = std::min(params.window_left, widest_window);
  work.params.window_right = std::min(params.window_right, widest_window);
  // Without its layer no sequence has keys. Kernels count a sequence's keys in 32 bits.
  work.params.max_len_k =
      ApplyLayer(work.params.cache)
          ? std::min<int64_t>(params.max_len_k, std::numeric_limits<int32_t>::max() - kTileKeys)
          : 0;
  work.group = params.num_heads / params.num_kv_heads();
  work.padded_d = RoundUp(params.head_dim, kAlignFloats);
  work.padded_dv = RoundUp(params.cache.v_head_dim, kAlignFloats);

  const std::vector<CpuSequence> sequences = ReadSequences(work.params);
  const Plan plan(work, sequences, context.num_threads());
  plan.LendTo(work);
  if (sequences.empty()) {
    WritePadding(params, 0, params.num_tokens);
  } else {
    WritePadding(params, 0, sequences.front().tokens.begin);
    WritePadding(params, sequences.back().tokens.end, params.num_tokens);
  }

  // Per thread: a tile of K and of V, Q and the sums of the rows, and the scores of one panel.
  const int64_t rows = RoundUp(plan.max_tile_rows(), kMaxPanelRows);
  work.scratch_floats =
      (kTileKeys + rows) * (work.padded_d + work.padded_dv) + kTileKeys * kMaxPanelRows;
  const int64_t useful = 1 + BoundedProduct({plan.cost(), params.head_dim}) / kMinWorkerWork;
  work.num_workers = std::clamp<int64_t>(std::min(work.num_tiles * params.num_kv_heads(), useful),
                                         1, context.num_threads());
  const AlignedFloats scratch = MakeAligned(work.num_workers * work.scratch_floats);
  const AlignedFloats partials =
      MakeAligned(params.num_kv_heads() * work.partial_rows * (work.padded_dv + 2));
  work.scratch = scratch.get();
  work.partials = partials.get();
  return kernel(work, context);
}

}  // namespace intarsia::attention
