#include "src/bridge/dispatch.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "src/bridge/capture.h"
#include "src/torch/functions.h"

namespace intarsia::bridge {
namespace {

using Handle = torch::Tensor;  // owned

struct Deleter {
  void operator()(Handle handle) const { torch::Get().delete_tensor(handle); }
};
using Tensor = std::unique_ptr<torch::TensorObject, Deleter>;

std::string Shape(std::span<const int64_t> dims) {
  std::string text = "[";
  for (const int64_t n : dims) text += Text(text.size() > 1 ? ", " : "", n);
  return text + "]";
}

// Whether a result is the operand itself, under the same form.
bool IsAlias(const Buffer& operand, const Buffer& result) {
  const std::string_view of_operand = operand.dtype ? operand.dtype : "";
  return std::ranges::equal(operand.dims, result.dims) &&
         of_operand == (result.dtype ? result.dtype : "") &&
         (operand.data == result.data || std::ranges::count(operand.dims, 0) > 0);
}

// A tensor over a buffer, whose memory it does not own.
Status Over(const Buffer& buffer, int device, Tensor& tensor) {
  const int32_t dtype = buffer.dtype ? torch::Get().DTypeNumber(buffer.dtype) : -1;
  if (dtype < 0)
    return InvalidArgument(Text("torch has no dtype ", buffer.dtype ? buffer.dtype : "like that"));
  std::vector<int64_t> strides(buffer.dims.size(), 1);
  for (size_t i = strides.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<int64_t>(buffer.dims[i], 1);
  const int32_t type = device < 0 ? torch::Get().cpu() : torch::Get().cuda();
  Handle handle = nullptr;
  const auto rank = static_cast<int64_t>(buffer.dims.size());
  if (torch::Get().tensor_from_blob(buffer.data, rank, buffer.dims.data(), strides.data(), 0, dtype,
                                    type, device, &handle))
    return Internal("torch made no tensor over a buffer");
  tensor.reset(handle);
  return {};
}

// The arguments of torch's C function, which takes what is on the heap: until then it is owned
// here.
class Stack {
 public:
  explicit Stack(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {}

  torch::Value NextTensor() {
    return reinterpret_cast<torch::Value>(tensors_[next_tensor_++].get());
  }
  template <class T>
  torch::Value Own(T* made, void (*remove)(void*)) {
    owned_.push_back(std::unique_ptr<void, void (*)(void*)>(made, remove));
    return reinterpret_cast<torch::Value>(made);
  }
  void Push(torch::Value value) { values_.push_back(value); }

  // For the call, which leaves its results in place of the arguments.
  std::span<torch::Value> HandOver(size_t num_results) {
    values_.resize(std::max(values_.size(), num_results));
    for (Tensor& tensor : tensors_) static_cast<void>(tensor.release());
    for (auto& made : owned_) static_cast<void>(made.release());
    return values_;
  }

 private:
  std::vector<Tensor> tensors_;
  size_t next_tensor_ = 0;
  std::vector<std::unique_ptr<void, void (*)(void*)>> owned_;
  std::vector<torch::Value> values_;
};

// No op run here is differentiated. torch's setting is this thread's, which XLA owns.
class NoGrad {
 public:
  NoGrad() : before_(torch::Get().grad_mode_is_enabled()) {
    torch::Get().grad_mode_set_enabled(false);
  }
  ~NoGrad() { torch::Get().grad_mode_set_enabled(before_); }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

// Makes XLA's stream torch's current one.
class OnStream {
 public:
  Status Enter(const Place& place) {
    if (place.device < 0) return {};
    if (torch::Get().create_cuda_stream_guard == nullptr)
      return Internal("this torch is built without CUDA");
    if (torch::Get().create_cuda_stream_guard(place.stream, place.device, &guard_))
      return Internal("torch does not take XLA's stream");
    return {};
  }
  OnStream() = default;
  ~OnStream() {
    if (guard_) torch::Get().delete_cuda_stream_guard(guard_);
  }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  torch::Opaque* guard_ = nullptr;
};

class Execution {
 public:
  Execution(const Plan& plan, std::span<const Buffer> operands, std::span<const Buffer> results,
            int device)
      : plan_(plan), operands_(operands), results_(results), device_(device) {}

  Status Run(bool capturing) {
    if (capturing) return InPython(INTARSIA_BRIDGE_CAPTURE);
    return plan_.python ? InPython(INTARSIA_BRIDGE_DISPATCH) : InC();
  }

 private:
  // The tensors that the op takes, in the schema's order.
  Status MakeTensors(std::vector<Tensor>& tensors) {
    size_t operand = 0;
    for (const Argument& a : plan_.arguments) {
      const bool takes_operand =
          a.kind == INTARSIA_BRIDGE_OPERAND || a.kind == INTARSIA_BRIDGE_MUTATED;
      if (!takes_operand && a.kind != INTARSIA_BRIDGE_FRESH) continue;
      const Buffer& buffer =
          takes_operand ? operands_[operand++] : results_[static_cast<size_t>(a.result)];
      if (a.kind == INTARSIA_BRIDGE_MUTATED &&
          !IsAlias(buffer, results_[static_cast<size_t>(a.result)]))
        return Internal("an argument that it writes is no alias of its result");
      INTARSIA_RETURN_IF_ERROR(Over(buffer, device_, tensors.emplace_back()));
      if (a.kind == INTARSIA_BRIDGE_OPERAND) continue;
      Written& written = written_.emplace_back(Written{nullptr, &buffer, a.result});
      Handle same = nullptr;
      if (torch::Get().new_handle(tensors.back().get(), &same))
        return Internal("torch made no second handle of a tensor");
      written.tensor.reset(same);
    }
    return {};
  }

  // An op may give a tensor that it writes another form (`mm.out` resizes `out`) or other memory
  // (`set_`), and XLA's result then has not what the op wrote.
  Status CheckWritten() {
    for (const Written& written : written_) {
      const Buffer& buffer = *written.buffer;
      const Handle tensor = written.tensor.get();
      int64_t rank = 0, *sizes = nullptr, *strides = nullptr;
      void* data = nullptr;
      torch::Get().rank(tensor, &rank);
      torch::Get().sizes(tensor, &sizes);
      torch::Get().strides(tensor, &strides);
      torch::Get().data(tensor, &data);
      const std::span<const int64_t> dims(sizes, static_cast<size_t>(rank));
      if (!std::ranges::equal(dims, buffer.dims))
        return Internal(Text("it gave what it writes into result ", written.result, " the shape ",
                             Shape(dims), ", expected ", Shape(buffer.dims)));
      if (std::ranges::count(dims, 0) > 0) continue;
      int64_t stride = 1;
      bool same = data == buffer.data;
      for (size_t i = dims.size(); i-- > 0; stride *= dims[i])
        same = same && (dims[i] == 1 || strides[i] == stride);
      if (!same)
        return Internal(Text("it gave what it writes into result ", written.result,
                             " other memory or strides"));
    }
    return {};
  }

  // What is no tensor, as torch's C function takes it.
  Status Value(const Argument& a, Stack& stack, torch::Value& value) {
    if (a.kind == INTARSIA_BRIDGE_STRING) {
      torch::Opaque* string = nullptr;
      if (!torch::Get().new_string ||
          torch::Get().new_string(a.text.data(), a.text.size(), &string))
        return Internal("torch takes no string");
      value = stack.Own(
          string, [](void* s) { torch::Get().delete_string(static_cast<torch::Opaque*>(s)); });
    } else if (a.kind == INTARSIA_BRIDGE_DTYPE) {
      const int32_t code = torch::Get().DTypeNumber(a.text);
      if (code < 0) return InvalidArgument(Text("torch has no dtype ", a.text));
      value = static_cast<uint32_t>(code);
    } else {
      value = a.bits;
    }
    return {};
  }

  // The argument at `next`, with its elements if it is a list, as torch's C function takes it.
  Status Make(size_t& next, Stack& stack, torch::Value& value) {
    const Argument& a = plan_.arguments[next++];
    if (a.kind == INTARSIA_BRIDGE_NONE) return {};
    if (a.kind == INTARSIA_BRIDGE_LIST) {
      INTARSIA_RETURN_IF_ERROR(MakeList(a.bits, next, stack, value));
    } else if (a.kind <= INTARSIA_BRIDGE_FRESH) {
      value = stack.NextTensor();
    } else {
      INTARSIA_RETURN_IF_ERROR(Value(a, stack, value));
    }
    if (a.optional)
      value = stack.Own(new torch::Value(value),
                        [](void* cell) { delete static_cast<torch::Value*>(cell); });
    return {};
  }

  Status MakeList(uint64_t count, size_t& next, Stack& stack, torch::Value& value) {
    torch::Opaque* list = nullptr;
    if (!torch::Get().new_list || torch::Get().new_list(count, &list))
      return Internal("torch takes no list");
    value = stack.Own(list, [](void* l) {
      torch::Get().delete_list(static_cast<torch::Opaque*>(l));  // not what is in it
    });
    for (uint64_t i = 0; i < count; ++i) {
      torch::Value element = 0;
      INTARSIA_RETURN_IF_ERROR(Make(next, stack, element));
      if (torch::Get().list_push_back(list, element)) return Internal("torch's list takes no more");
    }
    return {};
  }

  // The tensors that were returned; none is null.
  Status Pop(std::span<const torch::Value> stack, std::vector<Tensor>& returned) {
    Status status;
    for (size_t i = 0; i < plan_.schema_returns.size(); ++i) {
      const intarsia_bridge_return& r = plan_.schema_returns[i];
      if (!r.is_list) {
        returned.emplace_back(reinterpret_cast<Handle>(stack[i]));
        continue;
      }
      auto* const list = reinterpret_cast<torch::Opaque*>(stack[i]);
      size_t size = 0;
      torch::Get().list_size(list, &size);
      const auto count = static_cast<size_t>(r.count);
      if (size < count || (size > count && !r.more))
        status = Internal(Text("it returned ", static_cast<int64_t>(size), " tensors, expected ",
                               static_cast<int64_t>(count)));
      for (size_t k = 0; k < std::max(size, count); ++k) {
        torch::Value element = 0;
        if (k < size) torch::Get().list_get_item(list, k, &element);
        Tensor tensor(reinterpret_cast<Handle>(element));
        if (k < count) returned.push_back(std::move(tensor));
      }
      torch::Get().delete_list(list);
    }
    return status;
  }

  Status InC() {
    std::vector<Tensor> tensors;
    INTARSIA_RETURN_IF_ERROR(MakeTensors(tensors));
    Stack stack(std::move(tensors));
    for (size_t next = 0; next < plan_.arguments.size();) {
      torch::Value value = 0;
      INTARSIA_RETURN_IF_ERROR(Make(next, stack, value));
      stack.Push(value);
    }
    const std::span<torch::Value> values = stack.HandOver(plan_.schema_returns.size());
    if (torch::Get().call_dispatcher(plan_.op.c_str(), plan_.overload.c_str(), values.data()))
      return Explain();
    std::vector<Tensor> returned;
    INTARSIA_RETURN_IF_ERROR(Pop(values, returned));
    INTARSIA_RETURN_IF_ERROR(CheckWritten());
    return CopyReturned(returned);
  }

  Status InPython(intarsia_bridge_reason reason) {
    std::vector<Tensor> tensors;
    INTARSIA_RETURN_IF_ERROR(MakeTensors(tensors));
    std::vector<void*> taken, put(plan_.returns.size());
    for (const Tensor& tensor : tensors) taken.push_back(tensor.get());
    intarsia_bridge_call call = {};
    call.plan = plan_.text.c_str();
    call.device = device_;
    call.reason = reason;
    call.num_tensors = static_cast<int32_t>(taken.size());
    call.num_returned = static_cast<int32_t>(put.size());
    call.tensors = taken.data();
    call.returned = put.data();
    const Status status = RunInPython(call);
    if (call.num_tensors == 0)
      for (Tensor& tensor : tensors) static_cast<void>(tensor.release());
    std::vector<Tensor> returned;
    for (void* const handle : put) returned.emplace_back(static_cast<Handle>(handle));
    INTARSIA_RETURN_IF_ERROR(status);
    if (reason == INTARSIA_BRIDGE_EXPLAIN) return {};
    INTARSIA_RETURN_IF_ERROR(CheckWritten());
    return CopyReturned(returned);
  }

  // torch's C functions print an exception's text and keep it to themselves.
  Status Explain() {
    Status status = InPython(INTARSIA_BRIDGE_EXPLAIN);
    if (!status.ok()) return status;
    return Internal("it failed; torch printed the reason to stderr");
  }

  Status CopyReturned(const std::vector<Tensor>& returned) {
    for (size_t i = 0; i < returned.size(); ++i)
      if (const int result = plan_.returns[i]; result >= 0)
        INTARSIA_RETURN_IF_ERROR(Copy(i, returned[i].get(), results_[static_cast<size_t>(result)]));
    return {};
  }

  Status Copy(size_t number, Handle from, const Buffer& buffer) {
    const auto wrong = [&](const auto&... text) {
      return Internal(Text("result ", static_cast<int64_t>(number), " ", text...));
    };
    bool is_defined = from != nullptr;
    if (is_defined) torch::Get().is_defined(from, &is_defined);
    if (!is_defined) return wrong("is undefined, its fake kernel gave a tensor");
    int64_t rank = 0, *sizes = nullptr;
    torch::Get().rank(from, &rank);
    torch::Get().sizes(from, &sizes);
    const std::span<const int64_t> dims(sizes, static_cast<size_t>(rank));
    if (!std::ranges::equal(dims, buffer.dims))
      return wrong("has shape ", Shape(dims), ", its fake kernel gave ", Shape(buffer.dims));
    int32_t dtype = -1, device_type = -1;
    torch::Get().dtype(from, &dtype);
    torch::Get().device_type(from, &device_type);
    if (!buffer.dtype || dtype != torch::Get().DTypeNumber(buffer.dtype))
      return wrong("has dtype ", torch::Get().DTypeName(dtype), ", its fake kernel gave ",
                   buffer.dtype ? buffer.dtype : "one that torch lacks");
    if ((device_type == torch::Get().cpu()) != (device_ < 0))
      return wrong("is on another device than the operands");
    Tensor to;
    INTARSIA_RETURN_IF_ERROR(Over(buffer, device_, to));
    return torch::Get().copy(to.get(), from, 1) ? wrong("could not be copied") : Status{};
  }

  // A tensor that the op writes, once more, to see what the op has made of it.
  struct Written {
    Tensor tensor;
    const Buffer* buffer;
    int result;
  };

  const Plan& plan_;
  std::span<const Buffer> operands_, results_;
  int device_;
  std::vector<Written> written_;
};

}  // namespace

Status Run(const Plan& plan, std::span<const Buffer> operands, std::span<const Buffer> results,
           Place place) {
  if (operands.size() != static_cast<size_t>(plan.num_operands) ||
      results.size() != static_cast<size_t>(plan.num_results))
    return InvalidArgument("the call's operands or results are not those of its plan");
  OnStream stream;
  INTARSIA_RETURN_IF_ERROR(stream.Enter(place));
  Capture capture;
  if (place.capturable) INTARSIA_RETURN_IF_ERROR(capture.Enter(place.stream));
  const NoGrad no_grad;
  return Execution(plan, operands, results, place.device).Run(capture.active());
}

}  // namespace intarsia::bridge
