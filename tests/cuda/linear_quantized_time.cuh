// Times products with weights in codes for the linear layers of a Llama of 8 billion parameters, in
// a captured graph of calls with different weights, and says what share of the memory's bandwidth
// reading codes and factors takes.
#pragma once
#include <functional>
#include <string_view>

#include "src/matmul/cuda/quantized_plan.h"
#include "tests/cuda/attention_batch.cuh"

namespace intarsia::matmul {

struct TimedFormat {
  const char* name;
  Format format;
  int64_t group;
  DType scale, zero;
  bool points = true;
  int64_t outer_group = 0;  // columns that share outer factors, in f16; 0: there are none
};
inline constexpr TimedFormat kTimedFormats[] = {
    {"int4, 128", Format::kU4B8, 128, kF16, DType::kOther},
    {"AWQ, 128", Format::kU4, 128, kF16, DType::kU8},
    {"Q4_0", Format::kU4B8, 32, kF16, DType::kOther},
    {"mxfp4", Format::kE2M1, 32, DType::kF8E8M0, DType::kOther},
    {"nvfp4", Format::kE2M1, 16, kF8E4M3, DType::kOther},
    {"fp8, 128 x 128", Format::kE4M3, 128, kF32, DType::kOther},
    {"Q8_0", Format::kI8, 32, kF16, DType::kOther},
    {"Q4_1", Format::kU4, 32, kF16, kF16, false},
    {"Q4_K", Format::kU4, 32, DType::kU8, DType::kU8, false, 256},
    {"Q5_0", Format::kU5B16, 32, kF16, DType::kOther},
    {"Q5_K", Format::kU5, 32, DType::kU8, DType::kU8, false, 256},
    {"Q6_K", Format::kU6B32, 16, DType::kI8, DType::kOther, true, 256},
};
struct TimedLinear {
  const char* name;
  int64_t n, k;
  bool normed, gated;
};
inline constexpr TimedLinear kTimedLinears[] = {{"wqkv", 6144, 4096, true, false},
                                                {"wo", 4096, 4096, false, false},
                                                {"gate_up", 28672, 4096, true, true},
                                                {"down", 4096, 14336, false, false}};

__global__ void FillBytes(uint32_t* words, int64_t count, uint32_t mask) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u;
    x = (x ^ x >> 15) * 2246822519u;
    words[i] = (x ^ x >> 13) & mask;
  }
}

// The median time in microseconds of a call in a graph of calls(0 ... copies - 1).
inline double MedianOfQuantized(int copies,
                                const std::function<void(int, const CudaContext&)>& enqueue) {
  cudaStream_t stream;
  attention::Require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const CudaContext context = attention::ContextOn(stream);
  const int calls = std::max(copies, 20);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  attention::Require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) enqueue(i % copies, context);
  attention::Require(cudaStreamEndCapture(stream, &graph));
  attention::Require(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin, end;
  attention::Require(cudaEventCreate(&begin));
  attention::Require(cudaEventCreate(&end));
  std::vector<double> times;
  for (int replay = 0; replay < 9; ++replay) {
    float milliseconds = 0.0f;
    attention::Require(cudaEventRecord(begin, stream));
    attention::Require(cudaGraphLaunch(executable, stream));
    attention::Require(cudaEventRecord(end, stream));
    attention::Await(stream, "timed calls", 60);
    attention::Require(cudaEventElapsedTime(&milliseconds, begin, end));
    if (replay >= 2) times.push_back(milliseconds * 1e3 / calls);
  }
  attention::Require(cudaGraphExecDestroy(executable));
  attention::Require(cudaGraphDestroy(graph));
  attention::Require(cudaStreamDestroy(stream));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// whole: with the norm, the gates or the residual that a transformer's layer has.
inline double TimeQuantizedCall(const TimedFormat& f, const TimedLinear& l, int64_t m, bool whole,
                                double& bytes) {
  constexpr double kCold = 4.5e8;  // bytes of all weights that calls read: far more than the L2 has
  QuantizedParams p;
  p.dtype = p.out_dtype = kBF16, p.format = f.format;
  p.m = m, p.k = l.k, p.tiles = l.n / kTileRows;
  p.group = f.group, p.groups = CeilDiv(l.k, f.group);
  const int64_t codes = p.tiles * p.tile_bytes(), of_group = p.tiles * p.groups * kTileRows;
  const int64_t scales = RoundUp<int64_t>(of_group * Bytes(f.scale), 256);
  const int64_t zeros =
      f.zero == DType::kOther ? 0 : RoundUp<int64_t>(of_group * Bytes(f.zero), 256);
  const int64_t outer =
      f.outer_group ? RoundUp<int64_t>(p.tiles * (l.k / f.outer_group) * kTileRows * 2, 256) : 0;
  const int64_t outers = outer * (zeros ? 2 : 1);
  bytes = static_cast<double>(codes + scales + zeros + outers);
  const int copies = static_cast<int>(kCold / bytes) + 1;
  const attention::DeviceArray<char> w(static_cast<size_t>(bytes) * copies), x(m * l.k * 2),
      out(m * l.n * 2);
  // Small numbers in every type.
  const auto fill = [](char* to, int64_t size, uint32_t mask) {
    FillBytes<<<1024, 256>>>(reinterpret_cast<uint32_t*>(to), size / 4, mask);
  };
  fill(w.data(), static_cast<int64_t>(bytes) * copies, 0x37773777u);
  fill(x.data(), m * l.k * 2, 0xbf7fbf7fu);
  attention::Require(cudaDeviceSynchronize());
  p.x = x.data(), p.out = out.data(), p.points = f.points;
  if (whole) {
    if (!l.normed) p.residual = w.data();
    if (l.normed) p.norm = {x.data(), kBF16, 1e-6f};
    if (l.gated) p.gating = Gating::Of("silu", 0.0f, 0.0f);
  }
  return MedianOfQuantized(copies, [&](int i, const CudaContext& context) {
    char* const from = w.data() + static_cast<int64_t>(bytes) * i;
    p.packed = reinterpret_cast<const uint8_t*>(from);
    p.scales = {.data = from + codes, .dtype = f.scale};
    if (zeros) p.zeros = {.data = from + codes + scales, .dtype = f.zero};
    if (outers) {
      const auto set = [&](Factors& factors, const char* at) {
        factors.outer = at, factors.outer_dtype = kF16, factors.outers = l.k / f.outer_group;
      };
      set(p.scales, from + codes + scales + zeros);
      if (zeros) set(p.zeros, from + codes + scales + zeros + outer);
    }
    attention::Require(Run(p, context));
  });
}

// `formats`: what their names begin with; `least` and `most`: rows of x. False if there is none.
inline bool TimeQuantized(std::string_view formats, int64_t least, int64_t most,
                          bool whole = false) {
  constexpr double kBytesPerUs = 4.2e6;  // of one H200 (docs/notebook/ops.md)
  bool found = false;
  for (const TimedFormat& format : kTimedFormats) {
    if (!std::string_view(format.name).starts_with(formats)) continue;
    found = true;
    for (const int64_t m : {1, 2, 4, 8, 16, 32, 64, 256}) {
      if (m < least || m > most) continue;
      std::printf("%-15s m %4ld:", format.name, static_cast<long>(m));
      double all = 0.0, floor = 0.0;
      for (const TimedLinear& linear : kTimedLinears) {
        double bytes = 0.0;
        const double us = TimeQuantizedCall(format, linear, m, whole, bytes);
        all += us, floor += bytes / kBytesPerUs;
        std::printf("  %s %.1f us %.0f%%", linear.name, us, 100 * bytes / kBytesPerUs / us);
      }
      std::printf("  all four: floor %.1f us, %.1f us, %.1f%%\n", floor, all, 100 * floor / all);
      std::fflush(stdout);
    }
  }
  return found;
}

}  // namespace intarsia::matmul
