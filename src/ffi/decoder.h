// What the handlers make of XLA's calls, and of the library's errors.
#pragma once
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "src/core/op_info.h"
#include "xla/ffi/api/ffi.h"

namespace intarsia {

namespace ffi = xla::ffi;

inline DType FromXla(ffi::DataType t) {
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

struct Buffer {
  void* data;
  DType dtype;
  std::span<const int64_t> dims;
};
inline Buffer ToBuffer(ffi::AnyBuffer buffer) {
  const auto dims = buffer.dimensions();
  return {buffer.untyped_data(), FromXla(buffer.element_type()), {dims.begin(), dims.size()}};
}

// The buffers and attributes of a custom call.
class XlaFrame {
 public:
  XlaFrame(ffi::RemainingArgs args, ffi::RemainingRets rets, ffi::Dictionary attrs)
      : args_(args), rets_(rets), attrs_(attrs) {}
  size_t operands() const { return args_.size(); }
  size_t results() const { return rets_.size(); }
  Buffer operand(size_t i) const { return ToBuffer(*args_.get<ffi::AnyBuffer>(i)); }
  Buffer result(size_t i) const { return ToBuffer(**rets_.get<ffi::AnyBuffer>(i)); }
  ffi::Dictionary attributes() const { return attrs_; }

 private:
  ffi::RemainingArgs args_;
  ffi::RemainingRets rets_;
  ffi::Dictionary attrs_;
};

// A call that XLA hands over, as the library's own. Everything that this library does not know is
// refused: a program exported by a newer release must not be half understood. `Frame`: what
// XlaFrame has.
template <class Frame>
class Decoder {
 public:
  Decoder(const OpInfo& op, const Frame& frame)
      : op_(op), frame_(frame), attrs_(frame.attributes()) {}

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
      if (next == frame_.operands()) return Invalid(op_, op_.operands[i].name, " is missing");
      INTARSIA_RETURN_IF_ERROR(
          View(op_.operands[i].name, frame_.operand(next++), call.operands[i].emplace()));
    }
    if (present >> optional)
      return Invalid(op_, "attribute present is ", present, " but there are ",
                     static_cast<int64_t>(optional),
                     " optional operands; exported by a newer intarsia");
    if (next != frame_.operands())
      return Invalid(op_, "got ", static_cast<int64_t>(frame_.operands()), " operands, expected ",
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
        if (next == frame_.results())
          return Invalid(op_, "result ", op_.results[i].name, " is missing");
        INTARSIA_RETURN_IF_ERROR(
            View(op_.results[i].name, frame_.result(next++), call.results[i].emplace()));
      }
    }
    if (next != frame_.results())
      return Invalid(op_, "got ", static_cast<int64_t>(frame_.results()), " results, expected ",
                     static_cast<int64_t>(next));
    return CheckResults(op_, call, expected);
  }

  Status View(std::string_view name, const Buffer& buffer, TensorView& view) {
    Status status = MakeDense(buffer.data, buffer.dtype, buffer.dims, view);
    return status.ok() ? status : Invalid(op_, name, " ", status.message);
  }

  const OpInfo& op_;
  const Frame& frame_;
  const ffi::Dictionary attrs_;
};

// Runs a call that has been checked.
using RunCall = std::function<Status(const OpInfo&, const Call&)>;

template <class Frame>
Status DecodeAndRun(const OpInfo& op, const Frame& frame, const RunCall& run) {
  Call call;
  INTARSIA_RETURN_IF_ERROR(Decoder(op, frame).Decode(call));
  return run(op, call);
}

inline ffi::Error ToXla(Status status) {
  if (status.ok()) return ffi::Error::Success();
  return ffi::Error(static_cast<ffi::ErrorCode>(status.code), std::move(status.message));
}

// The barrier: what a container throws becomes an error, since XLA's side may be built without
// exceptions. `name`: what the error is of.
template <class Run>
ffi::Error Guarded(std::string_view name, Run run) {
  try {
    return ToXla(run());
  } catch (const std::exception& e) {
    return ffi::Error(ffi::ErrorCode::kInternal, Text(name, ": ", e.what()));
  } catch (...) {
    return ffi::Error(ffi::ErrorCode::kInternal, Text(name, ": an exception of unknown type"));
  }
}

}  // namespace intarsia
