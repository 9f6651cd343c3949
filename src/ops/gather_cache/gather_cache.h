// out[cu_seqlens[i] + j] = cache[slot start_i + j of sequence i] for each j below the length of
// sequence i, in place; slot k of a sequence lies on page block_table[i, k / s] at k % s. Rows that
// are of no sequence, and those whose page is not there, stay as they are.
//
// As they are stored where dtypes are the same; else cache holds fp8 and out is
// round(scale * cache[...]).
#pragma once
#include "src/core/index_vector.h"
#include "src/core/op.h"

namespace intarsia {

struct GatherCache {
  TensorView cache, dst, block_table, cu_seqlens;
  Optional seq_starts, scale;
  std::string_view kv_cache_dtype = "auto";
  TensorView out;

  static constexpr auto kSpec = MakeSpec(
      "gather_cache", "Gathers the keys or values of sequences from a paged cache.",
      "vLLM's _C_cache_ops::cp_gather_cache and gather_and_maybe_dequant_cache",
      In("cache", &GatherCache::cache, "p s n", "f32|f16|bf16|u8|f8e5m2|f8e4m3fn",
         "pages of s slots, each of n elements"),
      In("dst", &GatherCache::dst, "rows n", "f32|f16|f8e4m3fn|f8e5m2|u8|bf16",
         "what is written: the cache's dtype, or that to which its fp8 is converted"),
      In("block_table", &GatherCache::block_table, "seqs m", "i32|i64", "pages of each sequence")
          .IndexesOrNegative("p"),
      In("cu_seqlens", &GatherCache::cu_seqlens, "seqs+1", "i32|i64",
         "where each sequence starts in dst; never falling"),
      In("seq_starts", &GatherCache::seq_starts, "seqs", "i32|i64",
         "each sequence's first slot that is gathered; default 0"),
      In("scale", &GatherCache::scale, "1", "f32", "what fp8 is to be multiplied by; default 1"),
      Attr("kv_cache_dtype", &GatherCache::kv_cache_dtype, "how a cache of dtype u8 is to be read")
          .OneOf("auto|fp8|fp8_e4m3|fp8_e5m2"),
      Out("dst", &GatherCache::out, "=dst", "dst", "the same rows").Alias("dst"));

  Status Check() const;
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;

  // Of the elements of cache: uint8 arrays that are converted hold one of the fp8 types.
  DType stored() const;
  bool converts() const { return cache.dtype != dst.dtype; }
};

// Where the rows of dst come from, for the host and for kernels.
struct GatherPlaces {
  IndexVector block_table, cu_seqlens, seq_starts;
  int64_t seqs, pages_per_seq, num_pages, page_size;

  explicit GatherPlaces(const GatherCache& op)
      : block_table(ToIndexVector(op.block_table)),
        cu_seqlens(ToIndexVector(op.cu_seqlens)),
        seq_starts(ToIndexVector(op.seq_starts)),
        seqs(op.block_table.dim(0)),
        pages_per_seq(op.block_table.dim(1)),
        num_pages(op.cache.dim(0)),
        page_size(op.cache.dim(1)) {}

  // The slot of a row of dst, counted through all pages; -1 if there is none.
  [[gnu::always_inline]] INTARSIA_HOST_DEVICE int64_t SlotOf(int64_t row) const {
    int64_t low = 0, high = seqs;  // the first sequence that ends behind the row
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (cu_seqlens.At(middle + 1) > row)
        high = middle;
      else
        low = middle + 1;
    }
    if (low == seqs) return -1;
    const int64_t begin = cu_seqlens.At(low);
    if (begin > row) return -1;
    const int64_t first = seq_starts.data ? seq_starts.At(low) : 0;
    // Unsigned, since both may be any numbers.
    const auto slot = static_cast<int64_t>(
        static_cast<uint64_t>(first) + static_cast<uint64_t>(row) - static_cast<uint64_t>(begin));
    if (slot < 0 || page_size == 0 || slot / page_size >= pages_per_seq) return -1;
    const int64_t page = block_table.At(low * pages_per_seq + slot / page_size);
    if (page < 0 || page >= num_pages) return -1;
    return page * page_size + slot % page_size;
  }
};

}  // namespace intarsia
