#include "src/core/cuda/launch.h"
#include "src/core/cuda/vec.cuh"
#include "src/core/index_vector.h"
#include "src/ops/reshape_and_cache_flash/reshape_and_cache_flash.h"

namespace intarsia {
namespace {

constexpr int kMaxThreads = 512;

// All in units of one word (`Word`), but for num_slots and page_size.
struct Arguments {
  const void* inputs[2];  // key and value, [t, hk, d]
  int64_t token_stride[2], head_stride[2];
  void* pages[2];  // of K and of V
  CacheStrides strides[2] = {};
  CacheView cache;
  IndexVector slot_mapping;
  int64_t head_words;  // d
};

// pages[slot / s, slot % s, head] = input[token, head] for slot = slot_mapping[token]; a block a
// token. A word is 16 bytes where everything is aligned, else an element: a copy needs no dtype.
template <class Word>
__global__ void __launch_bounds__(kMaxThreads) CacheWriteKernel(Arguments a) {
  const CacheView& cache = a.cache;
  const int64_t token = blockIdx.x, slot = a.slot_mapping.At(token),
                layer = cache.layer ? *cache.layer : 0;
  const int words = static_cast<int>(cache.num_kv_heads * a.head_words);
  const bool skip = slot < 0 || slot >= cache.num_pages * cache.page_size || layer < 0 ||
                    layer >= cache.num_layers;
  const int64_t page = skip ? 0 : slot / cache.page_size;
  for (int i = threadIdx.x; i < 2 * words; i += blockDim.x) {
    const int which = i >= words, word = i - which * words;
    const int head = word / static_cast<int>(a.head_words),
              column = word % static_cast<int>(a.head_words);
    // Loaded before the slot is known: the two loads wait together.
    const Word loaded = static_cast<const Word*>(
        a.inputs[which])[token * a.token_stride[which] + head * a.head_stride[which] + column];
    if (skip) continue;
    const int64_t at = a.strides[which].At(layer, page, slot - page * cache.page_size, head);
    static_cast<Word*>(a.pages[which])[at + column] = loaded;
  }
}

template <class Word>
const cuda::Kernel kCacheWriteKernel("CacheWriteKernel",
                                     reinterpret_cast<const void*>(&CacheWriteKernel<Word>));

// Strides and sizes counted in words of `per_word` elements; false if they are not whole.
bool CountWords(Arguments& a, int64_t per_word) {
  bool whole = true;
  const auto divide = [&](int64_t& count) {
    whole &= count % per_word == 0;
    count /= per_word;
  };
  for (int64_t* count : {&a.token_stride[0], &a.token_stride[1], &a.head_stride[0],
                         &a.head_stride[1], &a.head_words})
    divide(*count);
  for (CacheStrides& strides : a.strides)
    for (int64_t* count : {&strides.layer, &strides.page, &strides.slot, &strides.head})
      divide(*count);
  for (const void* address : {a.inputs[0], a.inputs[1], static_cast<const void*>(a.pages[0]),
                              static_cast<const void*>(a.pages[1])})
    whole &= reinterpret_cast<uintptr_t>(address) % 16 == 0;
  return whole;
}

}  // namespace

Status ReshapeAndCacheFlash::Run(const CudaContext& context) const {
  CacheView cache;
  INTARSIA_RETURN_IF_ERROR(Cache(cache));
  const Arguments elements{.inputs = {key.data, value.data},
                           .token_stride = {key.stride(0), value.stride(0)},
                           .head_stride = {key.stride(1), value.stride(1)},
                           .pages = {cache.k, cache.v},
                           .strides = {cache.k_strides, cache.v_strides},
                           .cache = cache,
                           .slot_mapping = ToIndexVector(slot_mapping),
                           .head_words = cache.head_dim};
  const int64_t bytes = Bytes(cache.dtype);
  Arguments arguments = elements;
  const bool wide = CountWords(arguments, 16 / bytes);
  if (!wide) arguments = elements;
  const int64_t words = 2 * cache.num_kv_heads * arguments.head_words;
  if (words == 0) return {};
  const auto threads =
      static_cast<unsigned>(std::min<int64_t>(kMaxThreads, (words + 31) / 32 * 32));
  const cuda::Kernel& kernel = wide         ? kCacheWriteKernel<uint4>
                               : bytes == 1 ? kCacheWriteKernel<uint8_t>
                               : bytes == 2 ? kCacheWriteKernel<uint16_t>
                                            : kCacheWriteKernel<uint32_t>;
  return Launch(context, kernel, {{slot_mapping.dim(0)}, dim3(threads)}, arguments);
}

}  // namespace intarsia
