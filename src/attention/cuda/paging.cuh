// Where keys and values lie in the cache.
#pragma once

#include "src/attention/cuda/ragged.cuh"
#include "src/core/cuda/ptx.cuh"
#include "src/core/divisor.h"

namespace intarsia::attention {

// A key's page and its slot there. The page number is as it lies in memory: nothing is computed
// from it until it is used, so the load can be asked for long before.
struct KeyPlace {
  uint32_t page_low = 0, page_high = 0;
  uint32_t slot = 0;
  // Whether the page is in [0, n); a negative number is large when taken as unsigned.
  __device__ bool PageBelow(int64_t n) const {
    return page_high == 0 && page_low < static_cast<uint32_t>(n);
  }
};

// K and V of one KV head in the layer that the device names.
struct HeadRows {
  const void *k = nullptr, *v = nullptr;
  bool exist = false;  // if not, no key does
};
// `bytes`: of an element.
__device__ __forceinline__ HeadRows HeadRowsOf(const Params& p, int kv_head, int bytes) {
  const int64_t layer = p.cache.layer ? *p.cache.layer : 0;
  if (layer < 0 || layer >= p.cache.num_layers) return {};
  const auto at = [&](const void* rows, const CacheStrides& strides) {
    return static_cast<const char*>(rows) + strides.At(layer, 0, 0, kv_head) * bytes;
  };
  return {at(p.cache.k, p.cache.k_strides), at(p.cache.v, p.cache.v_strides), true};
}

// The pages of all sequences.
class Pages {
 public:
  __device__ Pages(const Params& p, const Divisor& page_size) : p_(p), page_size_(page_size) {}

  // Finds a slot of a sequence's pages.
  __device__ __forceinline__ KeyPlace Find(int sequence, uint32_t slot) const {
    KeyPlace place;
    place.slot = slot;
    if (!p_.paged) return place;
    const uint32_t entry = page_size_.Divide(place.slot);
    place.slot -= entry * static_cast<uint32_t>(p_.cache.page_size);
    const int64_t word = WordOf(sequence, entry);
    const auto* const table = static_cast<const uint32_t*>(p_.page_table.data);
    if (p_.page_table.wide) {
      place.page_low = __ldg(table + 2 * word);
      place.page_high = __ldg(table + 2 * word + 1);
    } else {
      place.page_low = __ldg(table + word);
    }
    return place;
  }

  __device__ __forceinline__ bool Exists(const KeyPlace& place) const {
    return place.PageBelow(p_.cache.num_pages);
  }
  // In elements from where the rows of the head begin, if the key exists.
  __device__ __forceinline__ int64_t KeyOffset(const KeyPlace& place) const {
    return p_.cache.k_strides.At(0, place.page_low, place.slot, 0);
  }
  __device__ __forceinline__ int64_t ValueOffset(const KeyPlace& place) const {
    return p_.cache.v_strides.At(0, place.page_low, place.slot, 0);
  }
  // Whether the two are the same for all keys.
  __device__ bool SameOffsets() const {
    const CacheStrides &k = p_.cache.k_strides, &v = p_.cache.v_strides;
    return k.page == v.page && k.slot == v.slot;
  }

 protected:
  __device__ __forceinline__ int64_t WordOf(int sequence, uint32_t entry) const {
    return sequence * p_.page_table_stride + entry;
  }

  const Params& p_;
  const Divisor& page_size_;
};

// Where the keys of a sequence lie in the cache. `sequence` must outlive it.
class KeyPlaces : public Pages {
 public:
  __device__ KeyPlaces(const Params& p, const Divisor& page_size, const Sequence& sequence)
      : Pages(p, page_size), sequence_(sequence) {}

  // Finds a key < len_k.
  __device__ __forceinline__ KeyPlace Find(int key) const {
    return Pages::Find(sequence_.index, sequence_.k_begin + key);
  }

  // Has the page table's entry of the last key come to the L2 cache.
  __device__ __forceinline__ void PrefetchLast() const {
    if (!p_.paged || sequence_.len_k <= 0) return;
    const uint32_t entry = page_size_.Divide(sequence_.k_begin + sequence_.len_k - 1);
    cuda::PrefetchL2(static_cast<const uint32_t*>(p_.page_table.data) +
                     (WordOf(sequence_.index, entry) << p_.page_table.wide));
  }

 private:
  const Sequence& sequence_;
};

}  // namespace intarsia::attention
