// The C functions of intarsia.h.
#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "intarsia/intarsia.h"
#include "src/api/devices.h"
#include "src/api/manifest.h"
#include "src/core/cpu/thread_pool.h"
#include "src/ffi/handlers.h"
#include "src/ops/registry.h"
#include "src/pjrt/register.h"
#include "src/torch/register.h"
#ifdef INTARSIA_WITH_CUDA
#include "src/core/cuda/peers.h"
#endif

namespace intarsia {
namespace {

static_assert(static_cast<int>(DType::kF8E8M0) == INTARSIA_F8E8M0FNU);
static_assert(kMaxRank == INTARSIA_MAX_RANK && kMaxOperands == INTARSIA_MAX_OPERANDS &&
              kMaxResults == INTARSIA_MAX_RESULTS);

thread_local std::string last_error;

int32_t Report(Status status) {
  last_error = std::move(status.message);
  return static_cast<int32_t>(status.code);
}

// Runs fn, which returns a Status, behind the barrier: no exception leaves the library.
template <class Fn>
int32_t Guarded(Fn fn) {
  try {
    return Report(fn());
  } catch (const std::exception& e) {
    return Report(Internal(e.what()));
  } catch (...) {
    return Report(Internal("an exception of unknown type"));
  }
}

Status FindOrExplain(const char* name, const OpInfo*& op) {
  if (!name) return InvalidArgument("the op's name is null");
  op = FindOp(name);
  if (op) return {};
  std::string known;
  for (const OpInfo& candidate : Ops())
    known += (known.empty() ? "" : ", ") + std::string(candidate.name);
  return InvalidArgument(Text("no op ", name, "; there are ", known));
}

Status ToView(const intarsia_tensor& tensor, TensorView& view) {
  if (tensor.dtype < 0 || tensor.dtype > INTARSIA_F8E8M0FNU)
    return InvalidArgument(
        Text("has dtype number ", tensor.dtype, ", expected one of intarsia_dtype"));
  if (tensor.rank < 0 || tensor.rank > INTARSIA_MAX_RANK)
    return InvalidArgument(Text("has rank ", tensor.rank, ", expected 0 to ", kMaxRank));
  const auto rank = static_cast<size_t>(tensor.rank);
  const auto dtype = static_cast<DType>(tensor.dtype);
  if (!tensor.strided) return MakeDense(tensor.data, dtype, {tensor.dims, rank}, view);
  return MakeStrided(tensor.data, dtype, {tensor.dims, rank}, tensor.strides, view);
}

Status SetAttribute(const OpInfo& op, const intarsia_attribute& attribute, Call& call) {
  if (!attribute.name) return Invalid(op, "an attribute's name is null");
  const int i = op.FindAttribute(attribute.name);
  if (i < 0) return Invalid(op, "unknown attribute ", attribute.name);
  const AttributeInfo& info = op.attributes[static_cast<size_t>(i)];
  if (attribute.type != static_cast<int32_t>(info.type))
    return Invalid(op, "attribute ", attribute.name, " has type number ", attribute.type,
                   ", expected ", static_cast<int64_t>(info.type), " of intarsia_attribute_type");
  AttrValue& value = call.attributes[static_cast<size_t>(i)];
  switch (info.type) {
    case AttrType::kBool:
      value = attribute.i64 != 0;
      break;
    case AttrType::kI64:
      value = attribute.i64;
      break;
    case AttrType::kF32:
      value = static_cast<double>(static_cast<float>(attribute.f64));  // as kernels have it
      break;
    case AttrType::kString:
      if (!attribute.text) return Invalid(op, "attribute ", attribute.name, " is a null string");
      value = std::string_view(attribute.text);
      break;
  }
  return {};
}

// `fields` names what the tensors are, in spec order. Of operands, the last ones may be left out if
// they are optional: a caller of an earlier release does not know them.
// Nothing is read of a null pointer; `what` is the C function's own name for it.
template <class Fields>
Status ReadTensors(const OpInfo& op, std::string_view what, const intarsia_tensor* tensors,
                   size_t count, const Fields& fields, std::span<Optional> slots) {
  size_t needed = fields.size();
  if constexpr (requires { fields[0].optional; })
    while (needed > count && fields[needed - 1].optional) --needed;
  if (count > fields.size() || count < needed)
    return Invalid(op, "got ", count, " ", what, ", expected ", fields.size(),
                   ", absent ones as INTARSIA_NONE");
  if (count > 0 && !tensors) return Invalid(op, what, " is null, expected ", count, " tensors");
  for (size_t i = 0; i < count; ++i) {
    if (tensors[i].dtype == INTARSIA_NONE) continue;
    if (Status s = ToView(tensors[i], slots[i].emplace()); !s.ok())
      return Invalid(op, fields[i].name, " ", s.message);
  }
  return {};
}

Status ReadCall(const OpInfo& op, const intarsia_tensor* operands, size_t num_operands,
                const intarsia_attribute* attributes, size_t num_attributes, Call& call) {
  for (size_t i = 0; i < op.attributes.size(); ++i)
    call.attributes[i] = op.attributes[i].default_value;
  if (num_attributes > 0 && !attributes)
    return Invalid(op, "attributes is null, expected ", num_attributes, " attributes");
  if (num_attributes > op.attributes.size())
    return Invalid(op, "got ", num_attributes, " attributes, expected at most ",
                   op.attributes.size());
  for (size_t i = 0; i < num_attributes; ++i) {
    INTARSIA_RETURN_IF_ERROR(SetAttribute(op, attributes[i], call));
    for (size_t j = 0; j < i; ++j)
      if (std::string_view(attributes[i].name) == attributes[j].name)
        return Invalid(op, "attribute ", attributes[i].name, " is given twice");
  }
  return ReadTensors(op, "operands", operands, num_operands, op.operands, call.operands);
}

// Whether all that has elements has an address, a multiple of an element's size.
template <class Fields>
Status CheckAddresses(const OpInfo& op, std::string_view what, const Fields& fields,
                      std::span<const Optional> tensors) {
  for (size_t i = 0; i < fields.size(); ++i) {
    if (!tensors[i] || tensors[i]->size() == 0) continue;
    if (!tensors[i]->data)
      return Invalid(op, what, fields[i].name, " has shape ", ShapeText(tensors[i]->shape()),
                     " and data null, expected an address");
    const auto bytes = static_cast<uintptr_t>(Bytes(tensors[i]->dtype));
    if (const auto beyond = reinterpret_cast<uintptr_t>(tensors[i]->data) % bytes)
      return Invalid(op, what, fields[i].name, " lies ", static_cast<int64_t>(beyond),
                     " bytes beyond a multiple of ", static_cast<int64_t>(bytes),
                     ", expected one, as ", Name(tensors[i]->dtype), " has");
  }
  return {};
}

intarsia_result ToResult(const ResultInfo& info, const Optional& view) {
  intarsia_result result{};
  result.tensor.dtype = INTARSIA_NONE;
  result.alias = info.alias_operand;
  result.workspace = info.workspace;
  if (!view) return result;
  result.tensor.dtype = static_cast<int32_t>(view->dtype);
  result.tensor.rank = view->rank;
  std::copy_n(view->dims.begin(), view->rank, result.tensor.dims);
  std::copy_n(view->strides.begin(), view->rank, result.tensor.strides);
  return result;
}

}  // namespace
}  // namespace intarsia

using namespace intarsia;  // NOLINT: this file only defines C functions below

extern "C" {

int32_t intarsia_abi_version(void) { return INTARSIA_ABI_VERSION; }
const char* intarsia_version(void) { return INTARSIA_VERSION; }
const char* intarsia_error(void) { return last_error.c_str(); }

const char* intarsia_manifest(void) {
  static const std::string manifest = Manifest();
  return manifest.c_str();
}

int32_t intarsia_devices(const char** json) {
  return Guarded([&]() -> Status {
    thread_local std::string devices;
    if (!json) return InvalidArgument("json is null");
    INTARSIA_RETURN_IF_ERROR(Devices(devices));
    *json = devices.c_str();
    return {};
  });
}

const intarsia_handler* intarsia_handlers(size_t* count) {
  if (count) *count = Handlers().size();
  return Handlers().data();
}

int32_t intarsia_infer(const char* name, const intarsia_tensor* operands, size_t num_operands,
                       const intarsia_attribute* attributes, size_t num_attributes,
                       intarsia_result* results, size_t* num_results) {
  return Guarded([&]() -> Status {
    const OpInfo* op = nullptr;
    INTARSIA_RETURN_IF_ERROR(FindOrExplain(name, op));
    if (!results || !num_results)
      return Invalid(*op, results ? "num_results" : "results", " is null, expected an address");
    Call call;
    INTARSIA_RETURN_IF_ERROR(
        ReadCall(*op, operands, num_operands, attributes, num_attributes, call));
    INTARSIA_RETURN_IF_ERROR(Infer(*op, call));
    *num_results = op->results.size();
    for (size_t i = 0; i < op->results.size(); ++i)
      results[i] = ToResult(op->results[i], call.results[i]);
    return {};
  });
}

int32_t intarsia_call(const char* name, const char* platform, const intarsia_tensor* operands,
                      size_t num_operands, const intarsia_attribute* attributes,
                      size_t num_attributes, const intarsia_tensor* results, size_t num_results,
                      void* stream) {
  return Guarded([&]() -> Status {
    const OpInfo* op = nullptr;
    INTARSIA_RETURN_IF_ERROR(FindOrExplain(name, op));
    Call call;
    INTARSIA_RETURN_IF_ERROR(
        ReadCall(*op, operands, num_operands, attributes, num_attributes, call));
    INTARSIA_RETURN_IF_ERROR(Infer(*op, call));
    const auto inferred = std::exchange(call.results, {});
    INTARSIA_RETURN_IF_ERROR(
        ReadTensors(*op, "results", results, num_results, op->results, call.results));
    INTARSIA_RETURN_IF_ERROR(CheckResults(*op, call, inferred));
    INTARSIA_RETURN_IF_ERROR(CheckOverlap(*op, call));
    INTARSIA_RETURN_IF_ERROR(CheckAddresses(*op, "", op->operands, call.operands));
    INTARSIA_RETURN_IF_ERROR(CheckAddresses(*op, "result ", op->results, call.results));
    const std::string_view on = platform ? platform : "null";
    if (on == "Host") return RunCpu(*op, call, CpuContext(&ThreadPool::Global()));
    if (on != "CUDA") return Invalid(*op, "platform is ", on, ", expected Host or CUDA");
    return RunCuda(*op, call, CudaContext{stream});
  });
}

int32_t intarsia_enable_peer_access([[maybe_unused]] const int32_t* devices,
                                    [[maybe_unused]] size_t count) {
  return Guarded([&]() -> Status {
    if (count > 0 && !devices)
      return InvalidArgument(Text("devices is null, expected ", count, " of them"));
#ifdef INTARSIA_WITH_CUDA
    return cuda::EnablePeerAccess({devices, count});
#else
    return Unimplemented("this library was built without CUDA");
#endif
  });
}

int32_t intarsia_register_with_pjrt(const PJRT_Api* api) {
  return Guarded([&]() -> Status { return pjrt::Register(api, Handlers()); });
}

int32_t intarsia_register_with_torch(const char* name, const char* torch_name, int32_t form) {
  return Guarded([&]() -> Status {
    const OpInfo* op = nullptr;
    INTARSIA_RETURN_IF_ERROR(FindOrExplain(name, op));
    if (!torch_name) return Invalid(*op, "torch's name is null");
    return torch::Register(*op, torch_name, form);
  });
}

}  // extern "C"
