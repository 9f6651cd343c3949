// Attention on the CPU against f64, over drawn batches, for each instruction set and several
// threads.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "src/attention/cpu/forward.h"
#include "src/core/cpu/isa.h"
#include "tests/core/attention_batch.h"
#include "tests/core/full.h"

namespace intarsia::attention {
namespace {

struct Kernel {
  Isa isa;
  CpuKernel* run;
};
std::vector<Kernel> KernelsHere() {
  std::vector<Kernel> kernels;
#if defined(__x86_64__)
  if (BestIsa() >= Isa::kAvx2) kernels.push_back({Isa::kAvx2, RunCpu<Isa::kAvx2, CpuWork>});
  if (BestIsa() >= Isa::kAvx512) kernels.push_back({Isa::kAvx512, RunCpu<Isa::kAvx512, CpuWork>});
#else
  kernels.push_back({Isa::kGeneric, RunCpu<Isa::kGeneric, CpuWork>});
#endif
  return kernels;
}

void CheckAll(Batch& batch) {
  for (const Kernel& kernel : KernelsHere())
    for (int num_threads : {1, 4}) {
      SCOPED_TRACE(std::string(Name(kernel.isa)) + ", threads " + std::to_string(num_threads));
      batch.Check(*kernel.run, num_threads);
      if (testing::Test::HasFatalFailure()) return;
    }
}

template <class T>
const T& Pick(std::mt19937& random, const std::vector<T>& choices) {
  return choices[std::uniform_int_distribution<size_t>(0, choices.size() - 1)(random)];
}

// Dtypes that go together, and head dims.
Shape DrawShape(std::mt19937& random) {
  Shape shape;
  const DType fp8 = Pick<DType>(random, {DType::kF8E4M3, DType::kF8E5M2});
  shape.out_dtype = Pick<DType>(random, {DType::kF32, DType::kF16, DType::kBF16});
  shape.dtype = shape.out_dtype;
  shape.kv_dtype = Pick<int>(random, {0, 0, 1}) ? fp8 : shape.dtype;
  if (shape.kv_dtype == fp8 && Pick<int>(random, {0, 0, 1})) {
    shape.dtype = fp8;
    shape.out_dtype = Pick<DType>(random, {DType::kF16, DType::kBF16});
  }
  shape.paged = Pick<int>(random, {0, 1, 1}) == 1;
  shape.num_kv_heads = Pick<int64_t>(random, {1, 2, 3});
  shape.group = Pick<int64_t>(random, {1, 2, 3, 4, 5, 8, 16});
  shape.head_dim = 8 * std::uniform_int_distribution<int64_t>(1, 32)(random);
  if (Pick<int>(random, {0, 0, 0, 1})) shape.head_dim = Pick<int64_t>(random, {1, 3, 31, 33, 64});
  shape.v_head_dim = shape.head_dim;
  if (Pick<int>(random, {0, 0, 0, 1}))
    shape.v_head_dim = Pick<int64_t>(random, {1, 8, 16, 40, 128, 192, 256});
  return shape;
}

TEST(AttentionCpu, DrawnBatches) {
  for (unsigned seed = 0; seed < (Full() ? 500 : 100); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Shape shape = DrawShape(random);
    const int64_t num_seqs = Pick<int64_t>(random, {0, 1, 1, 2, 3, 5});
    for (int64_t i = 0; i < num_seqs; ++i) {
      shape.lens_q.push_back(Pick<int64_t>(random, {0, 1, 1, 1, 1, 2, 3, 5, 9, 17, 40}));
      shape.lens_k.push_back(Pick<int64_t>(random, {0, 1, 2, 15, 16, 17, 63, 64, 65, 100, 150}));
    }
    Batch batch(shape, random);
    CheckAll(batch);
    if (HasFailure()) return;
  }
}

TEST(AttentionCpu, LongSequencesAreSplit) {
  for (unsigned seed = 0; seed < 32; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Shape shape = DrawShape(random);
    shape.num_kv_heads = 1;
    shape.group = Pick<int64_t>(random, {1, 4, 8});
    shape.head_dim = Pick<int64_t>(random, {33, 64});
    shape.v_head_dim = Pick<int64_t>(random, {32, 64});
    shape.lens_q = {Pick<int64_t>(random, {1, 3, 16}), 1};
    shape.lens_k = {Pick<int64_t>(random, {1024, 3001}), 5};
    Batch batch(shape, random);
    CheckAll(batch);
    if (HasFailure()) return;
  }
}

TEST(AttentionCpu, LongPrompt) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    std::mt19937 random(1);
    Batch batch({.dtype = dtype,
                 .kv_dtype = dtype,
                 .out_dtype = dtype,
                 .num_kv_heads = 1,
                 .group = 3,
                 .lens_q = {300},
                 .lens_k = {300}},
                random);
    CheckAll(batch);
  }
}

// Scores far from 0: neither overflow nor a sum that loses its small terms.
TEST(AttentionCpu, LargeScores) {
  std::mt19937 random(1);
  Batch batch({.lens_q = {1, 20}, .lens_k = {200, 200}}, random);
  batch.params().scale = 100.0f;
  CheckAll(batch);
}

// A sink beside which all keys are nothing, and one that is nothing beside them.
TEST(AttentionCpu, SinksFarFromTheScores) {
  for (float sink : {-1000.0f, 50.0f}) {
    std::mt19937 random(2);
    Batch batch({.lens_q = {1, 20, 3}, .lens_k = {2000, 200, 0}}, random);
    const std::vector<float> sinks(8, sink);
    batch.params().sinks = sinks.data();
    CheckAll(batch);
  }
}

}  // namespace
}  // namespace intarsia::attention
