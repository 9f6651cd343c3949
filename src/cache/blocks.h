// Blocks of an array, copied whole: what copy_blocks and swap_blocks share.
#pragma once
#include <string_view>

#include "src/core/context.h"
#include "src/core/index_vector.h"
#include "src/core/status.h"
#include "src/core/tensor_view.h"

namespace intarsia::cache {

// Shapes of caches in specs: blocks on axis 0, 1 or 2, up to four axes behind them. Not one with
// all other axes made one: XLA copies an array that it reshapes before it is written in place.
inline constexpr const char* kBlocksDims =
    "axis=0: p n | axis=0: p m n | axis=0: p k m n | axis=0: p i k m n | "
    "axis=1: o p n | axis=1: o p m n | axis=1: o p k m n | axis=1: o p i k m n | "
    "axis=2: l o p n | axis=2: l o p m n | axis=2: l o p k m n | axis=2: l o p i k m n";
// The same, with a number of blocks of their own.
inline constexpr const char* kSourceDims =
    "axis=0: ps n | axis=0: ps m n | axis=0: ps k m n | axis=0: ps i k m n | "
    "axis=1: o ps n | axis=1: o ps m n | axis=1: o ps k m n | axis=1: o ps i k m n | "
    "axis=2: l o ps n | axis=2: l o ps m n | axis=2: l o ps k m n | axis=2: l o ps i k m n";
inline constexpr std::string_view kAxisChoices = "0|1|2";

// For each pair i and each o: to[o, to_blocks[i]] = from[o, from_blocks[i]]. A pair with a block
// that is not there is skipped. Where a block is copied to twice, or copied to and from, which of
// the copies comes first is not said.
struct BlockCopies {
  const void* from = nullptr;  // [outer, num_from, block], dense
  void* to = nullptr;          // [outer, num_to, block], dense
  int64_t outer = 1, num_from = 0, num_to = 0;
  int64_t block_bytes = 0;
  IndexVector from_blocks, to_blocks;
  int64_t index_stride = 1;  // of both
  int64_t pairs = 0;

  // The arrays. `axis`: one of kAxisChoices. Of those without elements nothing is copied, however
  // long their other axes are.
  void Set(const TensorView& source, const TensorView& target, std::string_view axis) {
    if (source.size() == 0 || target.size() == 0) {
      outer = 0;
      return;
    }
    const int at = axis[0] - '0';
    from = source.data;
    to = target.data;
    num_from = source.dim(at);
    num_to = target.dim(at);
    block_bytes = Bytes(target.dtype);
    for (int i = 0; i < at; ++i) outer *= target.dim(i);
    for (int i = at + 1; i < target.rank; ++i) block_bytes *= target.dim(i);
  }

  // Where a pair's blocks lie, in blocks; false if one of them does not exist.
  [[gnu::always_inline]] INTARSIA_HOST_DEVICE bool Find(int64_t pair, int64_t& from_block,
                                                        int64_t& to_block) const {
    from_block = from_blocks.At(pair * index_stride);
    to_block = to_blocks.At(pair * index_stride);
    return from_block >= 0 && from_block < num_from && to_block >= 0 && to_block < num_to;
  }
};

Status Launch(const CudaContext& context, const BlockCopies& copies);

}  // namespace intarsia::cache
