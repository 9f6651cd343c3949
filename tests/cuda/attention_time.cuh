// Times an attention kernel on a batch of equal sequences: random numbers and pages, in a captured
// graph of calls on copies of K and V.
#pragma once
#include <functional>
#include <numeric>

#include "src/core/cuda/launch.h"
#include "tests/cuda/attention_check.cuh"

namespace intarsia::attention {

// Uniform in [-1, 1): all zeros would run cooler, hence faster.
template <class T>
__global__ void FillRandom(T* data, int64_t size) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u;
    x = (x ^ x >> 15) * 2246822519u, x = (x ^ x >> 13) * 3266489917u;
    data[i] = cuda::FromFloat<T>(static_cast<float>(x >> 8) * 0x1p-23f - 1.0f);
  }
}
inline void FillRandom(DType dtype, void* data, int64_t size) {
  Require(DispatchDType<kF32, kF16, kBF16, kF8E4M3, kF8E5M2>("array", dtype, [&]<DType kType>() {
    FillRandom<<<1024, 256>>>(static_cast<cuda::DeviceT<kType>*>(data), size);
    return cuda::ToStatus(cudaGetLastError(), "FillRandom");
  }));
}

struct Workload {
  DType q = kBF16, kv = kBF16;
  int64_t b = 1, len_q = 1, len_k = 1, h = 32, hk = 8, d = 128, page_size = 16;  // 0: dense
  int64_t left = -1, right = 0, dv = 0;                                          // 0: d
  int64_t longest = 0;                              // > 0: keys of the first sequence
  int64_t prompts = 0, prompt_q = 0, prompt_k = 0;  // further sequences, in front of the others

  int64_t num_seqs() const { return b + prompts; }
  int64_t RowsOf(int64_t seq) const { return seq < prompts ? prompt_q : len_q; }
  int64_t rows() const { return b * len_q + prompts * prompt_q; }

  int64_t v_dim() const { return dv ? dv : d; }
  int64_t KeysOf(int64_t seq) const {
    if (seq < prompts) return prompt_k;
    return seq == 0 && longest ? longest : len_k;
  }
  int64_t keys() const {
    int64_t keys = 0;
    for (int64_t seq = 0; seq < num_seqs(); ++seq) keys += KeysOf(seq);
    return keys;
  }
  DType out() const { return IsFp8(q) ? kBF16 : q; }
  double bytes() const {
    return static_cast<double>(keys() * hk * (d + v_dim()) * Bytes(kv)) +
           static_cast<double>(rows() * h * (d * Bytes(q) + v_dim() * Bytes(out())));
  }
  double flops() const {
    const double seen = left >= 0    ? std::min<double>(left + 1, len_k)
                        : right == 0 ? len_k - (len_q - 1) / 2.0
                                     : static_cast<double>(len_k);
    const double of_prompts =
        static_cast<double>(prompts) * prompt_q * (prompt_k - (prompt_q - 1) / 2.0);
    return 2.0 * (static_cast<double>(b) * len_q * seen + of_prompts) * h * (d + v_dim());
  }
};

using Launcher = std::function<void(const Params&, const CudaContext&)>;

// The median time of a call in microseconds. The copies of K and V are together larger than the L2
// cache by far.
inline double GraphTime(const Params& params, int64_t copy_bytes, int64_t v_at, int64_t copies,
                        const Launcher& launch) {
  Params p = params;
  cudaStream_t stream;
  Require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const int64_t calls = std::max<int64_t>(copies, 10);
  const auto enqueue = [&](int64_t call) {
    p.cache.k = static_cast<char*>(params.cache.k) + copy_bytes * (call % copies);
    p.cache.v = static_cast<char*>(p.cache.k) + v_at;
    launch(p, ContextOn(stream));
  };
  const std::string what = Text(p.num_seqs, " sequences of ", p.num_tokens, " tokens, d ",
                                p.head_dim, ", page ", p.paged ? p.cache.page_size : 0);
  enqueue(0);
  Await(stream, what, 5);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  Require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int64_t call = 0; call < calls; ++call) enqueue(call);
  Require(cudaStreamEndCapture(stream, &graph));
  Require(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin, end;
  Require(cudaEventCreate(&begin));
  Require(cudaEventCreate(&end));
  std::vector<double> times;
  for (int replay = 0; replay < 11; ++replay) {
    float milliseconds = 0.0f;
    Require(cudaEventRecord(begin, stream));
    Require(cudaGraphLaunch(executable, stream));
    Require(cudaEventRecord(end, stream));
    Await(stream, what, 60);
    Require(cudaEventElapsedTime(&milliseconds, begin, end));
    if (replay >= 2) times.push_back(milliseconds * 1e3 / static_cast<double>(calls));
  }
  Require(cudaGraphExecDestroy(executable));
  Require(cudaGraphDestroy(graph));
  Require(cudaStreamDestroy(stream));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// `prepare` may add to the Params what the kernel needs.
inline double TimeOf(
    const Workload& w, const Launcher& launch,
    const std::function<void(Params&)>& prepare = [](Params&) {}) {
  const int64_t page = w.page_size ? w.page_size : w.keys();
  const auto pages_of = [&](int64_t seq) { return (w.KeysOf(seq) + page - 1) / page; };
  const int64_t b = w.num_seqs();
  int64_t m = 0;
  for (int64_t seq = 0; seq < b; ++seq) m = std::max(m, pages_of(seq));
  std::vector<int64_t> seqused, cu_q{0}, cu_k{0}, table(b * m);
  int64_t num_pages = 0;
  for (int64_t seq = 0; seq < b; ++seq) {
    seqused.push_back(w.KeysOf(seq));
    cu_q.push_back(cu_q.back() + w.RowsOf(seq));
    cu_k.push_back(cu_k.back() + w.KeysOf(seq));
    num_pages += pages_of(seq);
  }
  if (!w.page_size) num_pages = 1;
  std::vector<int64_t> pages(num_pages);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
  for (int64_t seq = 0, next = 0; w.page_size && seq < b; ++seq)
    for (int64_t i = 0; i < pages_of(seq); ++i) table[seq * m + i] = pages[next++];

  const int64_t rows = w.rows() * w.h, slots = num_pages * page * w.hk, bytes = Bytes(w.kv);
  const int64_t v_at = slots * w.d * bytes, copy = v_at + slots * w.v_dim() * bytes;
  const int64_t copies = std::max<int64_t>(2, static_cast<int64_t>(4.5e8 / copy) + 1);
  const DeviceIndices cu_q_device(cu_q, false), cu_k_device(cu_k, false),
      seqused_device(seqused, false), table_device(table, false);
  const DeviceArray<char> q(rows * w.d * Bytes(w.q)), out(rows * w.v_dim() * Bytes(w.out())),
      cache(copy * copies);
  FillRandom(w.q, q.data(), rows * w.d);
  FillRandom(w.kv, cache.data(), copy * copies / bytes);
  Require(cudaDeviceSynchronize());

  const auto strides = [&](int64_t row) {
    return CacheStrides{.page = page * w.hk * row, .slot = w.hk * row, .head = row};
  };
  Params p{.dtype = w.q,
           .out_dtype = w.out(),
           .q = q.data(),
           .q_token_stride = w.h * w.d,
           .q_head_stride = w.d,
           .out = out.data()};
  p.num_tokens = w.rows();
  p.num_seqs = b;
  p.num_heads = w.h;
  p.head_dim = w.d;
  p.max_len_k = w.page_size ? m * page : w.keys();
  p.cu_seqlens_q = cu_q_device.view();
  p.cu_seqlens_k = cu_k_device.view();
  p.seqused_k = seqused_device.view();
  p.paged = w.page_size > 0;
  p.page_table = table_device.view();
  p.page_table_stride = p.pages_per_seq = m;
  p.cache = {.dtype = w.kv,
             .k = cache.data(),
             .num_pages = num_pages,
             .page_size = page,
             .num_kv_heads = w.hk,
             .head_dim = w.d,
             .v_head_dim = w.v_dim(),
             .k_strides = strides(w.d),
             .v_strides = strides(w.v_dim())};
  p.scale = 1.0f / std::sqrt(static_cast<float>(w.d));
  p.window_left = w.left;
  p.window_right = w.right;
  prepare(p);
  return GraphTime(p, copy, v_at, copies, launch);
}

}  // namespace intarsia::attention
