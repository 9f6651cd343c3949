// The work of one attention call on the CPU, cut into tiles: forward.cc plans it,
// forward_cpu.cc does it, once for each instruction set.
//
// The G = h / hk query heads that share a KV head are handled together, so that K and V are read
// and converted once for all of them: row r of a sequence is its token r / G under the (r % G)-th
// of them.
#pragma once
#include <cstdint>
#include <vector>

#include "src/attention/ragged.h"

namespace intarsia::attention {

inline constexpr int64_t kTileRows = 128;     // at most, of one sequence
inline constexpr int64_t kTileKeys = 64;      // at most, taken at a time
inline constexpr int64_t kMaxPanelRows = 32;  // see panel.h

using CpuSequence = SequenceOf<int64_t>;
using KeyRange = RangeOf<int64_t>;

// The sequences that count, from index vectors that may hold anything.
std::vector<CpuSequence> ReadSequences(const Params& params);

// Rows [row, row + num_rows) of a sequence against its keys [key_begin, key_end), in every KV head.
struct CpuTile {
  CpuSequence sequence;
  int64_t row = 0, num_rows = 0;
  int64_t key_begin = 0, key_end = 0;
  // Where partial results go if other tiles hold the rest of the keys: num_rows rows of CpuWork's
  // partials here, the other tiles' behind them. Negative: this tile has all keys.
  int64_t partial_row = -1;
};

// The keys of `tile` were split in `splits`.
struct CpuMerge {
  CpuTile tile;
  int64_t splits = 1;
};

struct CpuWork {
  Params params;      // layer applied, windows clamped
  int64_t group = 1;  // G
  // d and V's rounded up to whole registers of any instruction set.
  int64_t padded_d = 0, padded_dv = 0;
  const CpuTile* tiles = nullptr;
  int64_t num_tiles = 0;
  const CpuMerge* merges = nullptr;
  int64_t num_merges = 0;
  // f32 [hk, partial_rows, padded_dv + 2]: sum_j exp(s_j - max) v_j, max, sum_j exp(s_j - max).
  float* partials = nullptr;
  int64_t partial_rows = 0;
  // f32 [num_workers, scratch_floats], aligned to 64 bytes.
  float* scratch = nullptr;
  int64_t num_workers = 1, scratch_floats = 0;

  float* partial(int64_t head, int64_t row) const {
    return partials + (head * partial_rows + row) * (padded_dv + 2);
  }
};

// Plans `params` and hands the work to `kernel`: to RunOnCpu, or in a test to RunCpu of one set.
using CpuKernel = Status(const CpuWork& work, const CpuContext& context);
Status RunPlanned(const Params& params, const CpuContext& context, CpuKernel& kernel);

}  // namespace intarsia::attention
