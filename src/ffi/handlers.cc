#include "src/ffi/handlers.h"

#include <string>
#include <utility>
#include <vector>

#include "src/core/config.h"
#include "src/ffi/chain.h"
#include "src/ffi/decoder.h"
#include "src/ops/count.h"
#include "src/ops/registry.h"
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif
#ifdef INTARSIA_WITH_CUDA
#include "src/core/cuda/device.h"
#endif

namespace intarsia {
namespace {

// A task on its way through XLA's queue. That is not built for TSan, which must be told that the
// task runs after it was put there: the last that is written to it says so, and the first to read.
class HandedOver {
 public:
  explicit HandedOver(std::function<void()> task) : task_(std::move(task)) {}
#ifdef __SANITIZE_THREAD__
  HandedOver(HandedOver&& other) : task_(std::move(other.task_)) { __tsan_release(&queue); }
  void operator()() const {
    __tsan_acquire(&queue);
    task_();
  }
#else
  void operator()() const { task_(); }
#endif

 private:
  [[maybe_unused]] inline static char queue;
  std::function<void()> task_;
};

class XlaExecutor final : public Executor {
 public:
  explicit XlaExecutor(ffi::ThreadPool& pool)
      : pool_(pool), num_threads_(static_cast<int>(pool.num_threads())) {}
  int num_threads() const override { return num_threads_; }
  void Schedule(std::function<void()> task) const override {
    pool_.Schedule(HandedOver(std::move(task)));
  }

 private:
  ffi::ThreadPool& pool_;
  int num_threads_;
};

template <size_t kOp>
ffi::Error RunOp(const XlaFrame& frame, const RunCall& run) {
  const OpInfo& op = Ops()[kOp];
  return Guarded(op.name, [&] { return DecodeAndRun(op, frame, run); });
}

// kRun: RunOp, or RunChain.
template <auto kRun>
XLA_FFI_Error* ExecuteCpu(XLA_FFI_CallFrame* frame) {
  static auto* const handler =
      ffi::Ffi::Bind()
          .Ctx<ffi::ThreadPool>()
          .RemainingArgs()
          .RemainingRets()
          .Attrs()
          .To([](ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                 ffi::Dictionary attrs) {
            XlaExecutor executor(pool);
            return kRun(XlaFrame(args, rets, attrs), [&](const OpInfo& op, const Call& call) {
              return RunCpu(op, call, CpuContext(&executor));
            });
          })
          .release();
  return handler->Call(frame);
}

#ifdef INTARSIA_WITH_CUDA
template <auto kRun>
XLA_FFI_Error* ExecuteCuda(XLA_FFI_CallFrame* frame) {
  static auto* const handler =
      ffi::Ffi::Bind()
          .Ctx<ffi::PlatformStream<void*>>()
          .RemainingArgs()
          .RemainingRets()
          .Attrs()
          .To(
              [](void* stream, ffi::RemainingArgs args, ffi::RemainingRets rets,
                 ffi::Dictionary attrs) {
                return kRun(XlaFrame(args, rets, attrs), [&](const OpInfo& op, const Call& call) {
                  return RunCuda(op, call, CudaContext{stream});
                });
              },
              // Index checks read device memory on the host, which no graph can hold; a graph would
              // log only the call that it records.
              {GetConfig().check_indices || GetConfig().log_calls
                   ? ffi::Traits{}
                   : ffi::Traits::kCmdBufferCompatible})
          .release();
  return handler->Call(frame);
}

// Loads the kernels before a graph is captured: loading may not happen inside a capture, and jaxlib
// before 0.10.2 captures without a warm-up run. Cheap after the first time on a device.
XLA_FFI_Error* InitializeCuda(XLA_FFI_CallFrame* frame) {
  static auto* const handler = ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
                                   .RemainingArgs()
                                   .RemainingRets()
                                   .Attrs()
                                   .To(
                                       [](ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary) {
                                         const cuda::Device* device = nullptr;
                                         return ToXla(cuda::CurrentDevice(device));
                                       },
                                       {ffi::Traits::kCmdBufferCompatible})
                                   .release();
  return handler->Call(frame);
}
#endif

template <size_t... kOp>
std::vector<intarsia_handler> MakeHandlers(std::index_sequence<kOp...>) {
  static std::vector<std::string> targets;  // whose characters the rows point to
  targets.reserve(2 * sizeof...(kOp) + 1);
  std::vector<intarsia_handler> handlers;
  const auto add = [&]<auto kRun>(std::string target, PlatformSet platforms) {
    const char* const name = targets.emplace_back(std::move(target)).c_str();
    if (platforms.Has(Platform::kCpu))
      handlers.push_back({name, "Host", nullptr, reinterpret_cast<void*>(&ExecuteCpu<kRun>)});
#ifdef INTARSIA_WITH_CUDA
    if (platforms.Has(Platform::kCuda))
      handlers.push_back({name, "CUDA", reinterpret_cast<void*>(&InitializeCuda),
                          reinterpret_cast<void*>(&ExecuteCuda<kRun>)});
#endif
  };
  const auto add_op = [&]<size_t kOne>() {
    const OpInfo& op = Ops()[kOne];
    add.template operator()<&RunOp<kOne>>(Text(INTARSIA_TARGET_PREFIX, ".", op.name), op.platforms);
    if (!op.target_alias.empty())
      add.template operator()<&RunOp<kOne>>(std::string(op.target_alias), op.platforms);
  };
  (add_op.template operator()<kOp>(), ...);
  add.template operator()<&RunChain>(Text(INTARSIA_TARGET_PREFIX, ".", kChain),
                                     PlatformSet(Platform::kCpu, Platform::kCuda));
  return handlers;
}

}  // namespace

std::span<const intarsia_handler> Handlers() {
  static const std::vector<intarsia_handler> handlers =
      MakeHandlers(std::make_index_sequence<kNumOps>());
  return handlers;
}

}  // namespace intarsia
