// Times topk_router for the layers of fused_experts_time.cuh, bf16 logits: in a captured graph of
// calls with different logits. The floor is bytes at the memory's rate; below some microseconds a
// kernel's launch and the latency of one row bound it.
#pragma once
#include "src/ops/topk_router/topk_router.h"
#include "tests/cuda/fused_experts_time.cuh"

namespace intarsia {

inline void TimeRouter(const TimedModel& model, int64_t tokens) {
  using matmul::kRoutings;
  const int64_t each = tokens * model.e;
  const attention::DeviceArray<char> logits(static_cast<size_t>(2 * kRoutings * each));
  const attention::DeviceArray<float> weights(static_cast<size_t>(tokens * model.k));
  const attention::DeviceArray<int32_t> ids(static_cast<size_t>(tokens * model.k));
  attention::FillRandom(kBF16, logits.data(), kRoutings * each);
  attention::Require(cudaDeviceSynchronize());
  const auto view = [](void* data, DType dtype, std::vector<int64_t> dims) {
    TensorView view;
    attention::Require(MakeDense(data, dtype, dims, view));
    return view;
  };
  TopkRouter op;
  op.top_k = model.k, op.renormalize = true;
  op.weights = view(weights.data(), kF32, {tokens, model.k});
  op.ids = view(ids.data(), DType::kI32, {tokens, model.k});
  const double us = matmul::MedianOfGraphs([&](int i, const CudaContext& context) {
    op.logits = view(logits.data() + 2 * i * each, kBF16, {tokens, model.e});
    attention::Require(op.Run(context));
  });
  const double bytes = 2.0 * each + 8.0 * tokens * model.k;
  const double floor = bytes / matmul::kBytesPerUs;
  std::printf("topk_router %-14s %5ld tokens: floor %5.2f us: %6.2f us %.1fx\n", model.name,
              long(tokens), floor, us, us / floor);
}

inline void TimeRouters() {
  for (const TimedModel& model : kModels) {
    for (const int64_t tokens : {1, 16, 64, 512, 4096, 65536}) TimeRouter(model, tokens);
  }
}

}  // namespace intarsia
