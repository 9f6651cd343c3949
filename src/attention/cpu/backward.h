// The gradient of attention on the CPU, cut into items: backward.cc plans it, backward_cpu.cc does
// it, once for each instruction set.
//
// Rows are packed as in forward.h. An item of keys walks over the rows that see them and
// makes dk and dv; an item of rows walks over the keys that they see and makes dq. That computes S
// and dP twice, but items never meet in a result. Where there are KV heads and sequences enough for
// all threads, an item is all keys of one sequence and head instead, and adds up dq on its way
// (`fused`). Both ways add in the same order, so any number of threads gives the same bits.
#pragma once
#include "src/attention/backward.h"
#include "src/attention/cpu/forward.h"

namespace intarsia::attention {

inline constexpr int64_t kBackwardTile = 64;  // rows or keys, at most, taken at a time

struct BackwardItem {
  CpuSequence sequence;
  int64_t begin = 0, end = 0;  // keys, or packed rows
};

struct BackwardWork {
  BackwardParams params;  // windows clamped
  int64_t group = 1;      // G
  int64_t padded_d = 0;   // d rounded up to whole registers of any instruction set
  bool fused = false;
  int64_t first_token = 0, end_token = 0;  // of all sequences
  const BackwardItem* key_items = nullptr;
  const BackwardItem* row_items = nullptr;  // none if fused
  int64_t num_key_items = 0, num_row_items = 0;
  // f32 [num_workers, scratch_floats], aligned to 64 bytes.
  float* scratch = nullptr;
  int64_t num_workers = 1;

  int64_t scratch_floats() const {
    return 8 * kBackwardTile * padded_d + (2 * kBackwardTile + 4) * kBackwardTile;
  }
};

}  // namespace intarsia::attention
