// Checks attention/decode.h against an f64 reference on random ragged batches, then times it.
// A program of its own, of this file, src/attention/decode_*.cu and src/core; needs a GPU. Exits
// with 1 on a failure. Arguments: "check [cases]" or "time [b len_k h hk d page_size]" ask for one
// half of it.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "src/attention/decode.h"
#include "src/attention/decode_plan.h"
#include "tests/cuda/attention_batch.cuh"

namespace intarsia::attention {
namespace {

constexpr int64_t kAnyRows = int64_t{1} << 40;

struct Errors {
  double out2 = 0.0, ref2 = 0.0, lse = 0.0;
  int64_t wrong = 0;  // elements not written, written against orders, or not finite
};

// Adds the errors of one row; `expected` is empty if the row must not have been touched.
template <class T>
void Compare(const T* out, const float* lse, const std::vector<double>& expected,
             double expected_lse, int64_t d, Errors& e) {
  for (int64_t x = 0; x < d; ++x) {
    const double got = static_cast<float>(out[x]), want = expected.empty() ? 0.0 : expected[x];
    e.wrong += expected.empty() ? !std::isnan(got) : !std::isfinite(got);
    if (expected.empty()) continue;
    e.out2 += (got - want) * (got - want);
    e.ref2 += want * want;
  }
  if (!lse) return;
  if (expected.empty() || expected_lse == -kInfinity) {
    e.wrong += expected.empty() ? !std::isnan(*lse) : *lse != -kInfinity;
  } else {
    e.wrong += !std::isfinite(*lse);
    e.lse = std::max(e.lse, std::abs(*lse - expected_lse));
  }
}

// The rows worker, worker + workers, ... of what the device has written.
template <class T>
Errors CompareRows(const Batch<T>& batch, int64_t max_packed_rows, const std::vector<T>& out,
                   const std::vector<float>& lse, int worker, int workers) {
  const Case& c = batch.c;
  Errors errors;
  for (int64_t row = worker; row < batch.t * c.h; row += workers) {
    const int64_t token = row / c.h, h = row % c.h;
    const int64_t seq =
        std::upper_bound(batch.cu_q.begin(), batch.cu_q.end(), token) - batch.cu_q.begin() - 1;
    std::vector<double> expected;
    double expected_lse = -kInfinity;
    if (seq >= batch.num_seqs()) {
      if (c.fill_padding) expected.assign(static_cast<size_t>(c.d), 0.0);
    } else if (c.len_q[seq] * (c.h / c.hk) <= max_packed_rows) {
      expected_lse = ReferenceRow(batch, seq, token - batch.cu_q[seq], h, expected);
    }
    Compare(&out[batch.offset + row * c.d], c.with_lse ? &lse[h * batch.t + token] : nullptr,
            expected, expected_lse, c.d, errors);
  }
  return errors;
}

// Room for partial results, poisoned.
class Workspace {
 public:
  explicit Workspace(Params& p)
      : Workspace(p, decode::WorkspaceDims(decode::StaticShape{p.num_tokens, p.num_seqs,
                                                               p.num_heads, p.num_kv_heads(),
                                                               p.head_dim, p.max_len_k})) {}

 private:
  Workspace(Params& p, std::array<int64_t, 2> dims)
      : array_(static_cast<size_t>(dims[0] * dims[1])) {
    array_.Poison();
    p.workspace = array_.data();
    p.max_splits = dims[0];
    p.workspace_floats = dims[1];
  }
  DeviceArray<float> array_;
};

template <class T>
bool Check(const Case& c, int64_t max_packed_rows, uint32_t seed, double& worst) {
  const Batch<T> batch(c, seed);
  OnDevice<T> device(batch);
  const Workspace workspace(device.p);
  device.out.Poison();
  device.lse.Poison();
  Require(LaunchDecode(device.p, CudaContext{}, {max_packed_rows, c.fill_padding}));
  Require(cudaDeviceSynchronize());
  const std::vector<T> out = device.out.ToHost();
  const std::vector<float> lse = device.lse.ToHost();

  const int workers = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<Errors> errors(workers);
  std::vector<std::thread> pool;
  for (int worker = 0; worker < workers; ++worker)
    pool.emplace_back([&, worker] {
      errors[worker] = CompareRows(batch, max_packed_rows, out, lse, worker, workers);
    });
  for (std::thread& thread : pool) thread.join();
  Errors e;
  for (const Errors& part : errors) {
    e.out2 += part.out2, e.ref2 += part.ref2, e.wrong += part.wrong;
    e.lse = std::max(e.lse, part.lse);
  }
  const double error = e.ref2 > 0 ? std::sqrt(e.out2 / e.ref2) : std::sqrt(e.out2);
  const double bound = c.dtype == kF32 ? 1e-5 : c.dtype == kF16 ? 1e-3 : 6e-3;
  const double lse_bound = c.dtype == kF32 ? 2e-5 : 2e-4;
  const bool passes = error <= bound && e.lse <= lse_bound && e.wrong == 0;
  worst = std::max(worst, error);
  if (!passes)
    std::printf("FAIL %s max %ld: error %.2e, lse %.2e, wrong %ld\n", Describe(c).c_str(),
                long(max_packed_rows), error, e.lse, long(e.wrong));
  return passes;
}

bool CheckAny(const Case& c, int64_t max_packed_rows, uint32_t seed, double& worst) {
  if (c.dtype == kF32) return Check<float>(c, max_packed_rows, seed, worst);
  return c.dtype == kF16 ? Check<__half>(c, max_packed_rows, seed, worst)
                         : Check<__nv_bfloat16>(c, max_packed_rows, seed, worst);
}

Case RandomCase(DType dtype, std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  Case c{.dtype = dtype, .d = pick({8, 24, 40, 64, 80, 96, 128, 128, 160, 192, 200, 256})};
  c.hk = pick({1, 2, 3});
  c.h = c.hk * pick({1, 3, 4, 8, 32});
  const int64_t b = pick({1, 1, 2, 5, 9, 40, 300}), longest = b > 9 ? 40 : pick({70, 300, 900});
  for (int64_t i = 0; i < b; ++i) {
    c.len_q.push_back(pick({0, 1, 1, 1, 1, 2, 3, b > 9 ? 1 : 9}));
    c.len_k.push_back(random() % 2
                          ? pick({0, 1, 17, 64})
                          : static_cast<int64_t>(random() % longest) + pick({0, c.len_q.back()}));
  }
  if (random() % 4 == 0) c.len_k[random() % c.len_k.size()] = pick({3000, 6000});  // skewed
  if (random() % 4 == 0) c.num_seqs = static_cast<int64_t>(random() % (b + 1));
  c.padding = pick({0, 0, 5});
  c.page_size = pick({0, 1, 3, 16, 16, 64});
  c.window_right = pick({-1, 0, 0, 0, 9});
  c.window_left = pick({-1, -1, 0, 37, 300});
  c.softcap = static_cast<float>(pick({0, 0, 0, 5, 30}));
  if (random() % 10 == 0) c.scale = -0.1f;
  c.wide = random() % 2;
  c.strided_q = random() % 3 == 0;
  c.combined = random() % 3 == 0;
  c.unaligned = random() % 4 == 0;
  c.with_lse = random() % 3 != 0;
  c.bad_page = c.page_size && random() % 3 == 0;
  c.layer = static_cast<int>(pick({-1, -1, 0, 1, 2}));
  c.fill_padding = random() % 4 != 0;
  return c;
}

bool CheckAll(int cases) {
  std::mt19937 random(20261121);
  int failures = 0;
  for (const DType dtype : {kF32, kF16, kBF16}) {
    double worst = 0.0;
    for (int i = 0; i < cases / 3; ++i) {
      const Case c = RandomCase(dtype, random);
      const int64_t max_packed_rows[] = {kAnyRows, kAnyRows, kAnyRows, 4, 64};
      failures += !CheckAny(c, max_packed_rows[random() % 5], random(), worst);
    }
    // Long sums, which show a bias of the tensor cores' additions: heads enough that none is split.
    Case c{.dtype = dtype,
           .h = 160,
           .hk = 160,
           .d = 64,
           .len_q = {1},
           .len_k = {20000},
           .page_size = 16,
           .window_right = 0,
           .v_mean = 2.0};
    failures += !CheckAny(c, kAnyRows, random(), worst);
    std::printf("%-5s worst relative error %.2e\n", std::string(Name(dtype)).c_str(), worst);
  }
  std::printf("%d failures\n", failures);
  return failures == 0;
}

// Uniform in [-1, 1): all zeros would run cooler, hence faster.
__global__ void FillRandom(__nv_bfloat16* data, int64_t size) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u;
    x = (x ^ x >> 15) * 2246822519u, x = (x ^ x >> 13) * 3266489917u;
    data[i] = __float2bfloat16_rn(static_cast<float>(x >> 8) * 0x1p-23f - 1.0f);
  }
}

struct Shape {
  int64_t b, len_k, h, hk, d, page_size;
  int64_t longest = 0;  // > 0: of the first sequence
};

// The median time of a call in microseconds: one row a sequence, random pages, in a captured graph
// of calls on copies of K and V that together are much larger than the L2 cache.
double GraphTime(const Params& params, int64_t cache_size, int64_t copies) {
  Params p = params;
  cudaStream_t stream;
  Require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const int64_t calls = std::max<int64_t>(copies, 20);
  const auto enqueue = [&](int64_t call) {
    auto* const copy =
        static_cast<__nv_bfloat16*>(params.cache.k) + 2 * cache_size * (call % copies);
    p.cache.k = copy;
    p.cache.v = copy + cache_size;
    Require(LaunchDecode(p, {stream}));
  };
  enqueue(0);
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
    Require(cudaEventSynchronize(end));
    Require(cudaEventElapsedTime(&milliseconds, begin, end));
    if (replay >= 2) times.push_back(milliseconds * 1e3 / static_cast<double>(calls));
  }
  Require(cudaGraphExecDestroy(executable));
  Require(cudaGraphDestroy(graph));
  Require(cudaStreamDestroy(stream));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void Time(const Shape& s) {
  std::vector<int64_t> seqused(s.b, s.len_k), cu_q(s.b + 1);
  if (s.longest) seqused[0] = s.longest;
  std::iota(cu_q.begin(), cu_q.end(), 0);
  const int64_t keys = std::accumulate(seqused.begin(), seqused.end(), int64_t{0});
  const int64_t m = (std::max(s.len_k, s.longest) + s.page_size - 1) / s.page_size;
  const int64_t num_pages = (keys + s.b * s.page_size) / s.page_size;
  std::vector<int64_t> pages(num_pages), table(s.b * m);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
  for (int64_t seq = 0, next = 0; seq < s.b; ++seq)
    for (int64_t i = 0; i < (seqused[seq] + s.page_size - 1) / s.page_size; ++i)
      table[seq * m + i] = pages[next++];

  const int64_t rows = s.b * s.h * s.d, cache_size = num_pages * s.page_size * s.hk * s.d;
  const double bytes = 4.0 * (static_cast<double>(keys * s.hk * s.d) + static_cast<double>(rows));
  const int64_t copies = std::max<int64_t>(2, static_cast<int64_t>(4.5e8 / bytes) + 1);
  const DeviceIndices cu_q_device(cu_q, false), seqused_device(seqused, false),
      table_device(table, false);
  const DeviceArray<__nv_bfloat16> q(rows), out(rows), cache(2 * cache_size * copies);
  FillRandom<<<1024, 256>>>(q.data(), rows);
  FillRandom<<<1024, 256>>>(cache.data(), 2 * cache_size * copies);
  Require(cudaDeviceSynchronize());

  Params p{.dtype = kBF16,
           .q = q.data(),
           .q_token_stride = s.h * s.d,
           .q_head_stride = s.d,
           .out = out.data()};
  p.num_tokens = p.num_seqs = s.b;
  p.num_heads = s.h;
  p.head_dim = s.d;
  p.max_len_k = m * s.page_size;
  p.cu_seqlens_q = cu_q_device.view();
  p.seqused_k = seqused_device.view();
  p.paged = true;
  p.page_table = table_device.view();
  p.page_table_stride = p.pages_per_seq = m;
  p.cache = {.dtype = kBF16,
             .k = cache.data(),
             .num_pages = num_pages,
             .page_size = s.page_size,
             .num_kv_heads = s.hk,
             .head_dim = s.d,
             .v_head_dim = s.d,
             .k_strides = {.page = s.page_size * s.hk * s.d, .slot = s.hk * s.d, .head = s.d},
             .v_strides = {.page = s.page_size * s.hk * s.d, .slot = s.hk * s.d, .head = s.d}};
  p.scale = 1.0f / std::sqrt(static_cast<float>(s.d));
  p.window_right = 0;
  const Workspace workspace(p);
  const double us = GraphTime(p, cache_size, copies);
  std::printf("%4ld x %-6ld h %ld/%ld d %-3ld page %-3ld %s %8.1f us  %5.2f TB/s\n", long(s.b),
              long(s.len_k), long(s.h), long(s.hk), long(s.d), long(s.page_size),
              s.longest ? "skewed" : "      ", us, bytes / us * 1e-6);
}

void TimeAll() {
  for (int64_t len_k : {1024, 4096, 16384, 32768, 131072}) Time({1, len_k, 32, 8, 128, 16});
  for (int64_t len_k : {1024, 4096, 16384}) Time({8, len_k, 32, 8, 128, 16});
  for (int64_t len_k : {1024, 4096}) Time({64, len_k, 32, 8, 128, 16});
  Time({256, 1024, 32, 8, 128, 16});
  for (int64_t page_size : {1, 256}) Time({64, 4096, 32, 8, 128, page_size});
  for (int64_t len_k : {4096, 32768}) Time({1, len_k, 32, 1, 128, 16});
  Time({8, 131072, 32, 1, 128, 16});
  Time({8, 4096, 32, 32, 128, 16});
  Time({64, 2048, 32, 32, 128, 16});
  Time({64, 4096, 32, 8, 64, 16});
  Time({64, 4096, 16, 4, 256, 16});
  Time({64, 512, 32, 8, 128, 16, 131072});
}

}  // namespace
}  // namespace intarsia::attention

int main(int argc, char** argv) {
  using namespace intarsia::attention;
  const std::string only = argc > 1 ? argv[1] : "";
  const auto number = [&](int i) { return std::atol(argv[i]); };
  if (only != "time" && !CheckAll(argc == 3 ? number(2) : 360)) return 1;
  if (only == "time" && argc == 8)
    Time({number(2), number(3), number(4), number(5), number(6), number(7)});
  else if (only != "check")
    TimeAll();
  return 0;
}
