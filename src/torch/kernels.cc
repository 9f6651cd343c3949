// torch's kernels of the ops: one function over the op table, from torch's stack to a Call and
// back.
#include <algorithm>
#include <array>
#include <bit>
#include <exception>
#include <memory>
#include <numeric>
#include <utility>

#include "intarsia/intarsia.h"  // INTARSIA_TORCH_...
#include "src/core/cpu/thread_pool.h"
#include "src/core/op_info.h"
#include "src/ops/count.h"
#include "src/ops/registry.h"
#include "src/torch/functions.h"
#include "src/torch/register.h"
#ifdef INTARSIA_WITH_CUDA
#include "src/core/cuda/device.h"
#endif

namespace intarsia::torch {
namespace {

struct DeleteTensor {
  void operator()(Tensor tensor) const { Get().delete_tensor(tensor); }
};
using OwnedTensor = std::unique_ptr<TensorObject, DeleteTensor>;

struct DeleteString {
  void operator()(Opaque* string) const { Get().delete_string(string); }
};
using OwnedString = std::unique_ptr<Opaque, DeleteString>;

// The pieces say what; they become a text only where it failed.
template <class... Pieces>
Status Torch(int32_t failed, const Pieces&... pieces) {
  return failed ? Internal(Text("torch's ", pieces..., " failed")) : Status{};
}

// Makes a tensor's device the current one, as torch expects of a kernel.
class DeviceGuard {
 public:
  DeviceGuard() = default;
  Status Set(int32_t index) {
    return Torch(Get().create_device_guard(index, &guard_), "device guard");
  }
  ~DeviceGuard() {
    if (guard_) Get().delete_device_guard(guard_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  Opaque* guard_ = nullptr;
};

struct Device {
  int32_t type = 0, index = 0;
  bool operator==(const Device&) const = default;
};

std::string Name(Device device) {
  if (device.type == Get().cpu()) return "cpu";
  return Text(device.type == Get().cuda() ? "cuda:" : "another device: ", device.index);
}

// One call of an op by torch's dispatcher. It owns what stands on the stack.
class Invocation {
 public:
  Invocation(const OpInfo& op, int32_t form, const Value* stack) : op_(op), form_(form) {
    for (size_t i = 0; i < op.operands.size(); ++i) {
      Value value = *stack++;
      if (!op.operands[i].optional || Unwrap(value))
        operands_[i].reset(reinterpret_cast<Tensor>(value));
    }
    for (size_t i = 0; i < op.attributes.size(); ++i) {
      // After a failure too: what is left on the stack would leak.
      Status status = TakeAttribute(i, *stack++);
      if (taken_.ok()) taken_ = std::move(status);
    }
  }

  Status Run() {
    INTARSIA_RETURN_IF_ERROR(InOp(op_.name, Operands()));
    DeviceGuard guard;
    CudaContext context;
    if (on_cuda()) INTARSIA_RETURN_IF_ERROR(InOp(op_.name, EnterDevice(guard, context)));
    INTARSIA_RETURN_IF_ERROR(Infer(op_, call_));
    INTARSIA_RETURN_IF_ERROR(Results());
    if (!on_cuda()) return RunCpu(op_, call_, CpuContext(&ThreadPool::Global()));
    INTARSIA_RETURN_IF_ERROR(InOp(op_.name, CurrentStream(context.stream)));
    return RunCuda(op_, call_, context);
  }

  // After Run: what the schema returns.
  void Push(Value* stack) {
    for (size_t i = 0; i < op_.results.size(); ++i)
      if (!op_.results[i].workspace && Written(op_.results[i]) < 0)
        *stack++ = reinterpret_cast<Value>(results_[i].release());
  }

 private:
  // Makes the operands' device the current one. A guard costs torch an allocation and calls of the
  // driver: none where the device is current already.
  Status EnterDevice(DeviceGuard& guard, [[maybe_unused]] CudaContext& context) const {
#ifdef INTARSIA_WITH_CUDA
    const cuda::Device* const current = cuda::LoadedCurrentDevice();
    if (current && current->index == device_.index) {
      context.device = current;
      return {};
    }
#endif
    return guard.Set(device_.index);
  }

  bool on_cuda() const { return device_.type == Get().cuda(); }

  // Puts the value of an optional in its place; false if there is none.
  static bool Unwrap(Value& value) {
    auto* const inside = reinterpret_cast<Value*>(value);
    if (!inside) return false;
    value = *inside;
    delete inside;
    return true;
  }

  Status TakeAttribute(size_t i, Value value) {
    const AttributeInfo& info = op_.attributes[i];
    AttrValue& attribute = call_.attributes[i];
    const bool has_default = !std::holds_alternative<std::monostate>(info.default_value);
    if (!has_default && !Unwrap(value)) return {};
    switch (info.type) {
      case AttrType::kBool:
        attribute = (value & 0xFF) != 0;
        break;
      case AttrType::kI64:
        attribute = static_cast<int64_t>(value);
        break;
      case AttrType::kF32:
        attribute = std::bit_cast<double>(value);
        break;
      case AttrType::kString:
        return TakeText(i, value);
    }
    return {};
  }

  Status TakeText(size_t i, Value value) {
    const char* text = nullptr;
    if (form_ & INTARSIA_TORCH_TEXT_ADDRESSES) {
      text = reinterpret_cast<const char*>(value);
    } else {
      strings_[i].reset(reinterpret_cast<Opaque*>(value));
      INTARSIA_RETURN_IF_ERROR(
          Torch(Get().string_text(strings_[i].get(), &text), "text of ", op_.attributes[i].name));
    }
    if (text) call_.attributes[i] = std::string_view(text);
    return Torch(!text, "text of ", op_.attributes[i].name);
  }

  // The operand in which a result is written instead of a tensor of its own; -1: none.
  int Written(const ResultInfo& info) const {
    return form_ & INTARSIA_TORCH_IN_PLACE ? info.mutated_operand : info.alias_operand;
  }
  bool IsWritten(size_t operand) const {
    return std::ranges::any_of(op_.results, [&](const ResultInfo& info) {
      return Written(info) == static_cast<int>(operand);
    });
  }

  Status Operands() {
    INTARSIA_RETURN_IF_ERROR(std::move(taken_));
    for (size_t i = 0; i < op_.operands.size(); ++i)
      if (operands_[i]) INTARSIA_RETURN_IF_ERROR(Look(i));
    for (size_t i = 0; i < op_.operands.size(); ++i)
      if (operands_[i]) INTARSIA_RETURN_IF_ERROR(Place(i));
    return {};
  }

  Status Look(size_t i) {
    const OperandInfo& info = op_.operands[i];
    const Tensor tensor = operands_[i].get();
    bool is_given = true;
    if (!info.optional)
      INTARSIA_RETURN_IF_ERROR(
          Torch(Get().is_defined(tensor, &is_given), "is_defined of ", info.name));
    if (!is_given) return InvalidArgument(Text(info.name, " is missing"));
    INTARSIA_RETURN_IF_ERROR(CheckDevice(info.name, tensor, i == 0));
    return View(info, tensor, call_.operands[i].emplace());
  }

  // An operand that is only read is made as dense as the op needs it.
  Status Place(size_t i) {
    const OperandInfo& info = op_.operands[i];
    TensorView& view = *call_.operands[i];
    if (IsWritten(i)) return CheckSeparate(info.name, view);
    if (Fits(op_, call_, i)) return {};
    TensorView dense;  // for its strides
    INTARSIA_RETURN_IF_ERROR(MakeDense(nullptr, view.dtype, view.shape(), dense));
    OwnedTensor copy;
    INTARSIA_RETURN_IF_ERROR(Empty(dense, copy));
    INTARSIA_RETURN_IF_ERROR(
        Torch(Get().copy(copy.get(), operands_[i].get(), 0), "copy_ of a strided operand"));
    operands_[i] = std::move(copy);
    view = dense;
    return Torch(Get().data(operands_[i].get(), &view.data), "data of ", info.name);
  }

  // Whether each element of an operand that is written has memory of its own: a step along an axis
  // goes beyond all that the axes of smaller steps reach. Any slice or order of axes of a dense
  // tensor is so.
  static Status CheckSeparate(std::string_view name, const TensorView& view) {
    if (view.dense()) return {};
    std::array<int, kMaxRank> axes;
    const auto end = axes.begin() + view.rank;
    std::iota(axes.begin(), end, 0);
    std::stable_sort(axes.begin(), end,
                     [&](int a, int b) { return view.stride(a) < view.stride(b); });
    int64_t reach = 1;  // elements
    for (auto axis = axes.begin(); axis != end; ++axis) {
      if (view.dim(*axis) < 2) continue;
      if (view.stride(*axis) < reach)
        return InvalidArgument(Text(name, " has stride ", view.stride(*axis), " in axis ", *axis,
                                    " and is written, expected memory for each element"));
      reach += (view.dim(*axis) - 1) * view.stride(*axis);
    }
    return {};
  }

  Status CheckDevice(std::string_view name, Tensor tensor, bool is_first) {
    Device device;
    INTARSIA_RETURN_IF_ERROR(
        Torch(Get().device_type(tensor, &device.type) || Get().device_index(tensor, &device.index),
              "device of ", name));
    if (is_first) device_ = device;
    if (device == device_) return {};
    return InvalidArgument(Text(name, " is on ", Name(device), " but ", op_.operands[0].name,
                                " is on ", Name(device_)));
  }

  Status View(const OperandInfo& info, Tensor tensor, TensorView& view) const {
    int64_t rank = 0, *sizes = nullptr, *strides = nullptr;
    int32_t number = 0;
    void* data = nullptr;
    INTARSIA_RETURN_IF_ERROR(Torch(Get().rank(tensor, &rank) || Get().sizes(tensor, &sizes) ||
                                       Get().strides(tensor, &strides) ||
                                       Get().dtype(tensor, &number) || Get().data(tensor, &data),
                                   "tensor ", info.name));
    if (rank > kMaxRank)
      return InvalidArgument(Text(info.name, " has rank ", rank, ", at most ",
                                  static_cast<int64_t>(kMaxRank), " is supported"));
    const DType dtype = Get().FromNumber(number);
    if (dtype == DType::kOther)
      return InvalidArgument(Text(info.name, " has dtype ", Get().DTypeName(number), ", expected ",
                                  ExpectedDTypes(op_, info), ": convert it first"));
    const std::span dims(sizes, static_cast<size_t>(rank));
    if (Status s = MakeStrided(data, dtype, dims, strides, view); !s.ok())
      return InvalidArgument(Text(info.name, " ", s.message));
    return {};
  }

  // A tensor of the shape, strides and dtype of `like`.
  Status Empty(const TensorView& like, OwnedTensor& tensor) const {
    Tensor handle = nullptr;
    if (Get().empty_strided(like.rank, like.dims.data(), like.strides.data(),
                            Get().dtype_numbers[static_cast<size_t>(like.dtype)], device_.type,
                            device_.index, &handle))
      return Internal(Text("torch's empty_strided(", ShapeText(like.shape()), ") failed"));
    tensor.reset(handle);
    return {};
  }

  // Gives the inferred results their memory.
  Status Results() {
    const bool writes = std::ranges::any_of(
        op_.results, [&](const ResultInfo& info) { return Written(info) >= 0; });
    // A tensor made here is as it was inferred. One of the caller's is to be looked at.
    if (!writes) return PlaceResults();
    const auto inferred = call_.results;
    INTARSIA_RETURN_IF_ERROR(PlaceResults());
    INTARSIA_RETURN_IF_ERROR(CheckResults(op_, call_, inferred));
    return CheckOverlap(op_, call_);
  }

  Status PlaceResults() {
    for (size_t i = 0; i < op_.results.size(); ++i)
      INTARSIA_RETURN_IF_ERROR(InOp(op_.name, Result(i)));
    return {};
  }

  // Where result i of the call goes. One that does not exist in it is returned as an empty tensor.
  Status Result(size_t i) {
    Optional& result = call_.results[i];
    if (const int written = Written(op_.results[i]); written >= 0) {
      result = call_.operands[static_cast<size_t>(written)];
      return {};
    }
    if (!result) {
      TensorView none;
      INTARSIA_RETURN_IF_ERROR(MakeDense(nullptr, DType::kF32, std::array<int64_t, 1>{0}, none));
      return Empty(none, results_[i]);
    }
    INTARSIA_RETURN_IF_ERROR(Empty(*result, results_[i]));
    return Torch(Get().data(results_[i].get(), &result->data), "data of result ",
                 op_.results[i].name);
  }

  Status CurrentStream(void*& stream) const {
    if (!Get().current_cuda_stream)
      return Unimplemented("torch was loaded without libtorch_cuda.so");
    return Torch(Get().current_cuda_stream(device_.index, &stream), "current CUDA stream");
  }

  const OpInfo& op_;
  const int32_t form_;
  Device device_;
  Call call_;
  std::array<OwnedTensor, kMaxOperands> operands_;
  std::array<OwnedTensor, kMaxResults> results_;
  std::array<OwnedString, kMaxAttributes> strings_;
  Status taken_;  // of the attributes
};

// Throws by torch's own runtime; nothing of ours but the message is alive by then.
void Throw(const Status& status) {
  if (status.code == Code::kInvalidArgument) Get().throw_invalid_argument(status.message.c_str());
  Get().check(false, "intarsia", "", 0, status.message.c_str());
}

void Run(const OpInfo& op, int32_t form, Value* stack) {
  Status status;
  try {
    Invocation invocation(op, form, stack);
    status = invocation.Run();
    if (status.ok()) invocation.Push(stack);
  } catch (const std::exception& e) {
    status = Internal(Text(op.name, ": ", e.what()));
  }
  if (!status.ok()) Throw(status);
}

// A boxed kernel is told nothing but its stack, so there is one for each op and form.
constexpr size_t kNumForms = 4;

template <size_t kOp, int32_t kForm>
void Boxed(Value* stack, uint64_t, uint64_t) {
  Run(Ops()[kOp], kForm, stack);
}

template <size_t... kIndex>
constexpr auto MakeKernels(std::index_sequence<kIndex...>) {
  return std::array<BoxedKernel*, sizeof...(kIndex)>{
      &Boxed<kIndex / kNumForms, static_cast<int32_t>(kIndex % kNumForms)>...};
}

constexpr auto kKernels = MakeKernels(std::make_index_sequence<kNumOps * kNumForms>());

}  // namespace

Status Register(const OpInfo& op, std::string_view name, int32_t form) {
  if (form < 0 || form >= static_cast<int32_t>(kNumForms))
    return Invalid(op, "form is ", form, ", expected a sum of INTARSIA_TORCH_...");
  const size_t colons = name.find("::");
  if (colons == name.npos)
    return Invalid(op, "torch's name is ", name, ", expected \"namespace::name\"");
  INTARSIA_RETURN_IF_ERROR(InOp(op.name, FindFunctions()));
  const bool has_text = std::ranges::any_of(
      op.attributes, [](const AttributeInfo& info) { return info.type == AttrType::kString; });
  if (has_text && !(form & INTARSIA_TORCH_TEXT_ADDRESSES) && !Get().string_text)
    return Unimplemented(Text(
        op.name, ": torch before 2.10 hands no str to kernels; INTARSIA_TORCH_TEXT_ADDRESSES"));
  const size_t index = static_cast<size_t>(&op - Ops().data());
  BoxedKernel* const kernel = kKernels[index * kNumForms + static_cast<size_t>(form)];
  const std::string name_space(name.substr(0, colons)), rest(name.substr(colons + 2));
  for (const char* key : {"CPU", "CUDA"}) {
    Opaque* library = nullptr;  // never deleted: with it the kernel would go
    INTARSIA_RETURN_IF_ERROR(
        InOp(op.name,
             Torch(Get().library_init_impl(name_space.c_str(), key, __FILE__, __LINE__, &library) ||
                       Get().library_impl(library, rest.c_str(), kernel),
                   "registration of a kernel for ", name, " on ", key)));
  }
  return {};
}

}  // namespace intarsia::torch
