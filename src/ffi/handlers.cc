#include "src/ffi/handlers.h"

#include <string>
#include <utility>
#include <vector>

#include "src/core/config.h"
#include "src/ops/count.h"
#include "src/ops/registry.h"
#include "xla/ffi/api/ffi.h"
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif
#ifdef INTARSIA_WITH_CUDA
#include "src/core/cuda/device.h"
#endif

namespace intarsia {
namespace {

namespace ffi = xla::ffi;

DType FromXla(ffi::DataType t) {
  switch (t) {
    case ffi::F32:
      return DType::kF32;
    case ffi::F16:
      return DType::kF16;
    case ffi::BF16:
      return DType::kBF16;
    case ffi::F8E4M3FN:
      return DType::kF8E4M3;
    case ffi::F8E5M2:
      return DType::kF8E5M2;
    case ffi::U8:
      return DType::kU8;
    case ffi::S8:
      return DType::kI8;
    case ffi::S32:
      return DType::kI32;
    case ffi::S64:
      return DType::kI64;
    case ffi::F8E8M0FNU:
      return DType::kF8E8M0;
    case ffi::PRED:
      return DType::kBool;
    default:
      return DType::kOther;
  }
}

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

// An XLA call as the library's own. Everything that this library does not know is refused: a
// program exported by a newer release must not be half understood.
class Decoder {
 public:
  Decoder(const OpInfo& op, ffi::RemainingArgs args, ffi::RemainingRets rets, ffi::Dictionary attrs)
      : op_(op), args_(args), rets_(rets), attrs_(attrs) {}

  Status Decode(Call& call) {
    int64_t present = 0;
    INTARSIA_RETURN_IF_ERROR(Attributes(call, present));
    INTARSIA_RETURN_IF_ERROR(Operands(call, present));
    return Results(call);
  }

 private:
  Status Attributes(Call& call, int64_t& present) {
    for (size_t i = 0; i < op_.attributes.size(); ++i)
      call.attributes[i] = op_.attributes[i].default_value;
    for (std::string_view name : attrs_) {
      if (name == "present") {
        const auto wide = attrs_.get<int64_t>(name);
        const auto narrow = attrs_.get<int32_t>(name);
        if (!wide.has_value() && !narrow.has_value())
          return Invalid(op_, "attribute present must be an i64 or i32");
        present = wide.has_value() ? *wide : *narrow;
        continue;
      }
      const int i = op_.FindAttribute(name);
      if (i < 0) return Invalid(op_, "unknown attribute ", name, "; exported by a newer intarsia");
      INTARSIA_RETURN_IF_ERROR(Attribute(op_.attributes[static_cast<size_t>(i)],
                                         call.attributes[static_cast<size_t>(i)]));
    }
    return {};
  }

  Status Attribute(const AttributeInfo& info, AttrValue& value) {
    switch (info.type) {
      case AttrType::kBool:
        if (auto v = attrs_.get<bool>(info.name); v.has_value()) return value = *v, Status{};
        return Invalid(op_, "attribute ", info.name, " must be a bool");
      case AttrType::kI64:
        if (auto v = attrs_.get<int64_t>(info.name); v.has_value()) return value = *v, Status{};
        if (auto v = attrs_.get<int32_t>(info.name); v.has_value())
          return value = static_cast<int64_t>(*v), Status{};
        return Invalid(op_, "attribute ", info.name, " must be an i64 or i32");
      case AttrType::kF32:
        if (auto v = attrs_.get<float>(info.name); v.has_value())
          return value = static_cast<double>(*v), Status{};
        if (auto v = attrs_.get<double>(info.name); v.has_value()) return value = *v, Status{};
        return Invalid(op_, "attribute ", info.name, " must be an f32 or f64");
      case AttrType::kString:
        if (auto v = attrs_.get<std::string_view>(info.name); v.has_value())
          return value = *v, Status{};
        return Invalid(op_, "attribute ", info.name, " must be a string");
    }
    return Internal("attribute type");
  }

  Status Operands(Call& call, int64_t present) {
    size_t next = 0, optional = 0;
    for (size_t i = 0; i < op_.operands.size(); ++i) {
      if (op_.operands[i].optional && !((present >> optional++) & 1)) continue;
      if (next == args_.size()) return Invalid(op_, op_.operands[i].name, " is missing");
      INTARSIA_RETURN_IF_ERROR(View(op_.operands[i].name, *args_.get<ffi::AnyBuffer>(next++),
                                    call.operands[i].emplace()));
    }
    if (present >> optional)
      return Invalid(op_, "attribute present is ", present, " but there are ",
                     static_cast<int64_t>(optional),
                     " optional operands; exported by a newer intarsia");
    if (next != args_.size())
      return Invalid(op_, "got ", static_cast<int64_t>(args_.size()), " operands, expected ",
                     static_cast<int64_t>(next));
    return {};
  }

  Status Results(Call& call) {
    INTARSIA_RETURN_IF_ERROR(Infer(op_, call));
    const auto expected = call.results;
    call.results = {};
    size_t next = 0;
    // Results in spec order, then workspaces.
    for (const bool workspace : {false, true}) {
      for (size_t i = 0; i < op_.results.size(); ++i) {
        if (op_.results[i].workspace != workspace || !expected[i]) continue;
        if (next == rets_.size())
          return Invalid(op_, "result ", op_.results[i].name, " is missing");
        INTARSIA_RETURN_IF_ERROR(View(op_.results[i].name, **rets_.get<ffi::AnyBuffer>(next++),
                                      call.results[i].emplace()));
      }
    }
    if (next != rets_.size())
      return Invalid(op_, "got ", static_cast<int64_t>(rets_.size()), " results, expected ",
                     static_cast<int64_t>(next));
    return CheckResults(op_, call, expected);
  }

  Status View(std::string_view name, ffi::AnyBuffer buffer, TensorView& view) {
    const auto dims = buffer.dimensions();
    Status status = MakeDense(buffer.untyped_data(), FromXla(buffer.element_type()),
                              {dims.begin(), dims.size()}, view);
    return status.ok() ? status : Invalid(op_, name, " ", status.message);
  }

  const OpInfo& op_;
  ffi::RemainingArgs args_;
  ffi::RemainingRets rets_;
  ffi::Dictionary attrs_;
};

ffi::Error ToXla(Status status) {
  if (status.ok()) return ffi::Error::Success();
  return ffi::Error(static_cast<ffi::ErrorCode>(status.code), std::move(status.message));
}

// The barrier: what a container throws becomes an error, since XLA's side may be built without
// exceptions.
template <class Run>
ffi::Error Guarded(const OpInfo& op, ffi::RemainingArgs args, ffi::RemainingRets rets,
                   ffi::Dictionary attrs, Run run) {
  try {
    Call call;
    Status status = Decoder(op, args, rets, attrs).Decode(call);
    return ToXla(status.ok() ? run(call) : std::move(status));
  } catch (const std::exception& e) {
    return ffi::Error(ffi::ErrorCode::kInternal, Text(op.name, ": ", e.what()));
  } catch (...) {
    return ffi::Error(ffi::ErrorCode::kInternal, Text(op.name, ": an exception of unknown type"));
  }
}

template <size_t kOp>
XLA_FFI_Error* ExecuteCpu(XLA_FFI_CallFrame* frame) {
  static auto* const handler = ffi::Ffi::Bind()
                                   .Ctx<ffi::ThreadPool>()
                                   .RemainingArgs()
                                   .RemainingRets()
                                   .Attrs()
                                   .To([](ffi::ThreadPool pool, ffi::RemainingArgs args,
                                          ffi::RemainingRets rets, ffi::Dictionary attrs) {
                                     const OpInfo& op = Ops()[kOp];
                                     XlaExecutor executor(pool);
                                     return Guarded(op, args, rets, attrs, [&](const Call& call) {
                                       return RunCpu(op, call, CpuContext(&executor));
                                     });
                                   })
                                   .release();
  return handler->Call(frame);
}

#ifdef INTARSIA_WITH_CUDA
template <size_t kOp>
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
                const OpInfo& op = Ops()[kOp];
                return Guarded(op, args, rets, attrs, [&](const Call& call) {
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
  targets.reserve(2 * sizeof...(kOp));
  std::vector<intarsia_handler> handlers;
  const auto add = [&](const OpInfo& op, auto* cpu, [[maybe_unused]] auto* cuda) {
    targets.push_back(Text(INTARSIA_TARGET_PREFIX, ".", op.name));
    if (!op.target_alias.empty()) targets.emplace_back(op.target_alias);
    for (size_t t = targets.size() - (op.target_alias.empty() ? 1 : 2); t < targets.size(); ++t) {
      if (op.platforms.Has(Platform::kCpu))
        handlers.push_back({targets[t].c_str(), "Host", nullptr, reinterpret_cast<void*>(cpu)});
#ifdef INTARSIA_WITH_CUDA
      if (!op.platforms.Has(Platform::kCuda)) continue;
      handlers.push_back({targets[t].c_str(), "CUDA", reinterpret_cast<void*>(&InitializeCuda),
                          reinterpret_cast<void*>(cuda)});
#endif
    }
  };
#ifdef INTARSIA_WITH_CUDA
  (add(Ops()[kOp], &ExecuteCpu<kOp>, &ExecuteCuda<kOp>), ...);
#else
  (add(Ops()[kOp], &ExecuteCpu<kOp>, static_cast<void*>(nullptr)), ...);
#endif
  return handlers;
}

}  // namespace

std::span<const intarsia_handler> Handlers() {
  static const std::vector<intarsia_handler> handlers =
      MakeHandlers(std::make_index_sequence<kNumOps>());
  return handlers;
}

}  // namespace intarsia
