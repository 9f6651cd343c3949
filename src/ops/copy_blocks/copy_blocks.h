// blocks[to] = blocks[from] for each pair (from, to) of block_mapping, along `axis`, in place. A
// pair with a block that is not there is skipped. Where a block is copied to twice, or copied to
// and from, which of the copies comes first is not said.
#pragma once
#include "src/cache/blocks.h"
#include "src/core/op.h"

namespace intarsia {

struct CopyBlocks {
  TensorView blocks, block_mapping;
  std::string_view axis = "0";
  TensorView out;

  static constexpr auto kSpec = MakeSpec(
      "copy_blocks", "Copies blocks of a paged cache over others of the same cache.",
      "vLLM's _C_cache_ops::copy_blocks",
      In("blocks", &CopyBlocks::blocks, cache::kBlocksDims, "T|f8e4m3fn|f8e5m2|u8|i8",
         "a cache of p blocks"),
      In("block_mapping", &CopyBlocks::block_mapping, "pairs 2", "i32|i64",
         "from which block, to which one; negative: skip")
          .IndexesOrNegative("p"),
      Attr("axis", &CopyBlocks::axis, "that of the blocks").OneOf(cache::kAxisChoices),
      Out("blocks", &CopyBlocks::out, "=blocks", "blocks", "the same blocks").Alias("blocks"));

  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;

  cache::BlockCopies Copies() const {
    const IndexVector from = ToIndexVector(block_mapping);
    const char* second = block_mapping.as<const char>() + Bytes(block_mapping.dtype);
    cache::BlockCopies copies{.from_blocks = from,
                              .to_blocks = {second, from.wide},
                              .index_stride = 2,
                              .pairs = block_mapping.dim(0)};
    copies.Set(out, out, axis);
    return copies;
  }
};

}  // namespace intarsia
