// The bridge's typed FFI handlers. `intarsia.torch_op.capturable` may become part of a CUDA graph,
// which an op must bear: the caller says so by naming that target.
#include <string>
#include <vector>

#include "src/bridge/dispatch.h"
#include "xla/ffi/api/ffi.h"

namespace intarsia::bridge {
namespace {

namespace ffi = xla::ffi;

const char* DtypeName(ffi::DataType type) {
  switch (type) {
    case ffi::PRED:
      return "bool";
    case ffi::S8:
      return "int8";
    case ffi::S16:
      return "int16";
    case ffi::S32:
      return "int32";
    case ffi::S64:
      return "int64";
    case ffi::U8:
      return "uint8";
    case ffi::U16:
      return "uint16";
    case ffi::U32:
      return "uint32";
    case ffi::U64:
      return "uint64";
    case ffi::F16:
      return "float16";
    case ffi::BF16:
      return "bfloat16";
    case ffi::F32:
      return "float32";
    case ffi::F64:
      return "float64";
    case ffi::C64:
      return "complex64";
    case ffi::C128:
      return "complex128";
    case ffi::F8E4M3FN:
      return "float8_e4m3fn";
    case ffi::F8E5M2:
      return "float8_e5m2";
    case ffi::F8E4M3FNUZ:
      return "float8_e4m3fnuz";
    case ffi::F8E5M2FNUZ:
      return "float8_e5m2fnuz";
    case ffi::F8E8M0FNU:
      return "float8_e8m0fnu";
    default:
      return nullptr;
  }
}

Buffer ToBuffer(ffi::AnyBuffer buffer) {
  const auto dims = buffer.dimensions();
  return {buffer.untyped_data(), DtypeName(buffer.element_type()), {dims.begin(), dims.size()}};
}

ffi::Error ToXla(Status status) {
  if (status.ok()) return ffi::Error::Success();
  return ffi::Error(static_cast<ffi::ErrorCode>(status.code), std::move(status.message));
}

ffi::Error Execute(ffi::RemainingArgs args, ffi::RemainingRets rets, std::string_view text,
                   Place place) {
  try {
    const Plan* plan = nullptr;
    if (Status status = FindPlan(text, plan); !status.ok()) return ToXla(std::move(status));
    std::vector<Buffer> operands, results;
    for (size_t i = 0; i < args.size(); ++i)
      operands.push_back(ToBuffer(*args.get<ffi::AnyBuffer>(i)));
    for (size_t i = 0; i < rets.size(); ++i)
      results.push_back(ToBuffer(**rets.get<ffi::AnyBuffer>(i)));
    return ToXla(InOp(plan->name, Run(*plan, operands, results, place)));
  } catch (const std::exception& e) {
    return ffi::Error(ffi::ErrorCode::kInternal, Text("the bridge to torch: ", e.what()));
  } catch (...) {
    return ffi::Error(ffi::ErrorCode::kInternal, "the bridge to torch: an unknown exception");
  }
}

XLA_FFI_Error* ExecuteHost(XLA_FFI_CallFrame* frame) {
  static auto* const handler =
      ffi::Ffi::Bind()
          .RemainingArgs()
          .RemainingRets()
          .Attr<std::string_view>("plan")
          .To([](ffi::RemainingArgs args, ffi::RemainingRets rets, std::string_view text) {
            return Execute(args, rets, text, Place{});
          })
          .release();
  return handler->Call(frame);
}

template <bool kCapturable>
XLA_FFI_Error* ExecuteCuda(XLA_FFI_CallFrame* frame) {
  static auto* const handler =
      ffi::Ffi::Bind()
          .Ctx<ffi::PlatformStream<void*>>()
          .Ctx<ffi::DeviceOrdinal>()
          .RemainingArgs()
          .RemainingRets()
          .Attr<std::string_view>("plan")
          .To(
              [](void* stream, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                 std::string_view text) {
                return Execute(args, rets, text, Place{device, stream, kCapturable});
              },
              {kCapturable ? ffi::Traits::kCmdBufferCompatible : ffi::Traits{}})
          .release();
  return handler->Call(frame);
}

}  // namespace
}  // namespace intarsia::bridge

const intarsia_handler* intarsia_bridge_handlers(size_t* count) {
  using namespace intarsia::bridge;
  constexpr auto address = [](auto* function) { return reinterpret_cast<void*>(function); };
  static const std::vector<intarsia_handler> handlers = {
      {"intarsia.torch_op", "Host", nullptr, address(&ExecuteHost)},
      {"intarsia.torch_op", "CUDA", nullptr, address(&ExecuteCuda<false>)},
      {"intarsia.torch_op.capturable", "Host", nullptr, address(&ExecuteHost)},
      {"intarsia.torch_op.capturable", "CUDA", nullptr, address(&ExecuteCuda<true>)},
  };
  *count = handlers.size();
  return handlers.data();
}
