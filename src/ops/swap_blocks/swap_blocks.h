// blocks[to_blocks[i]] = source[from_blocks[i]] for each pair i, along `axis`, in place. A pair
// with a block that is not there is skipped. Where a block is copied to twice, which of the copies
// comes first is not said.
#pragma once
#include "src/cache/blocks.h"
#include "src/core/op.h"

namespace intarsia {

struct SwapBlocks {
  TensorView source, blocks, from_blocks, to_blocks;
  std::string_view axis = "0";
  TensorView out;

  static constexpr auto kSpec = MakeSpec(
      "swap_blocks", "Copies blocks of a paged cache to blocks of another one.",
      "vLLM's _C_cache_ops::swap_blocks",
      In("source", &SwapBlocks::source, cache::kSourceDims, "T|f8e4m3fn|f8e5m2|u8|i8",
         "a cache of ps blocks"),
      In("blocks", &SwapBlocks::blocks, cache::kBlocksDims, "source",
         "that of p blocks that is written"),
      In("from_blocks", &SwapBlocks::from_blocks, "pairs", "i32|i64",
         "from which block of source; negative: skip")
          .IndexesOrNegative("ps"),
      In("to_blocks", &SwapBlocks::to_blocks, "pairs", "i32|i64",
         "to which block of blocks; negative: skip")
          .IndexesOrNegative("p"),
      Attr("axis", &SwapBlocks::axis, "that of the blocks").OneOf(cache::kAxisChoices),
      Out("blocks", &SwapBlocks::out, "=blocks", "blocks", "the same blocks").Alias("blocks"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;

  cache::BlockCopies Copies() const {
    cache::BlockCopies copies{.from_blocks = ToIndexVector(from_blocks),
                              .to_blocks = ToIndexVector(to_blocks),
                              .pairs = from_blocks.dim(0)};
    copies.Set(source, out, axis);
    return copies;
  }
};

}  // namespace intarsia
