#include "src/torch/functions.h"

#include <dlfcn.h>

#include <array>
#include <mutex>
#include <string>

namespace intarsia::torch {
namespace {

// torch's names of dtypes: first those that this library has, in the order of DType.
constexpr std::array kDTypeNames = {
    "float32",        "float16",   "bfloat16",  "float8_e4m3fn", "float8_e5m2",
    "uint8",          "int8",      "int32",     "int64",         "bool",
    "float8_e8m0fnu", "float64",   "int16",     "uint16",        "uint32",
    "uint64",         "complex32", "complex64", "complex128",    "float8_e4m3fnuz",
    "float8_e5m2fnuz"};

// Of float8_e8m0fnu in c10/core/ScalarType.h, whose numbers never change: torch 2.9 has the dtype
// without a C function that gives it.
constexpr int32_t kE8M0Number = 44;

Functions functions{};
std::array<int32_t, kDTypeNames.size()> dtype_numbers;  // of those names; -1: torch has none

// A library that is in the process already, or null.
void* Loaded(const char* name) { return dlopen(name, RTLD_NOLOAD | RTLD_NOW); }

template <class Function>
bool Find(void* library, const char* name, Function*& function) {
  function = library ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
  return function;
}

// c10::SourceLocation
struct SourceLocation {
  const char* function;
  const char* file;
  uint32_t line;
};

// What torch's own runtime makes and throws a c10::ValueError with.
using Destructor = void(void* object);
struct {
  void* (*allocate)(size_t size);
  void (*construct)(void* error, SourceLocation, std::string message);
  void* type;
  void (*raise)(void* error, void* type, Destructor*);
} value_error;

// The size of a c10::ValueError, which no function tells, is 128 in torch 2.9 to 2.15. It may grow.
constexpr size_t kRoomForError = 1024;

// torch's strings have the layout of libstdc++'s new ABI, as those of the libstdc++ in this library
// have. Both get memory from malloc, so torch may free that of a string made here.
static_assert(_GLIBCXX_USE_CXX11_ABI);

// __cxa_throw takes the destructor that the last handler calls (Itanium C++ ABI, Exception
// Handling, 2.4.3). It is the first entry of the vtable: virtual functions stand there in the order
// of their declaration, std::exception declares its destructor first, and of a destructor's two
// entries the first is the one that does not also delete the object (2.5, Virtual Table Layout).
void ThrowValueError(const char* message) {
  void* const error = value_error.allocate(kRoomForError);
  value_error.construct(error, {.function = "intarsia", .file = "", .line = 0}, message);
  Destructor* const* const vtable = *static_cast<Destructor* const**>(error);
  value_error.raise(error, value_error.type, vtable[0]);
}

// False for torch 2.9, whose constructor of ValueError is inline.
bool FindValueError(void* torch) {
  constexpr const char* kConstructor =
      "_ZN3c1010ValueErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_"
      "traitsIcESaIcEEE";
  value_error.type = dlsym(torch, "_ZTIN3c1010ValueErrorE");
  return value_error.type && Find(torch, kConstructor, value_error.construct) &&
         Find(torch, "__cxa_allocate_exception", value_error.allocate) &&
         Find(torch, "__cxa_throw", value_error.raise);
}

Status FindAll() {
  void* const torch = Loaded("libtorch_cpu.so");
  if (!torch) return InvalidArgument("torch is not loaded in this process: import torch first");
  const char* missing = nullptr;
  const auto need = [&](const char* name, auto*& function) {
    if (!Find(torch, name, function)) missing = name;
  };
  need("aoti_torch_library_init_impl", functions.library_init_impl);
  need("aoti_torch_library_impl", functions.library_impl);
  need("aoti_torch_delete_tensor_object", functions.delete_tensor);
  need("aoti_torch_new_tensor_handle", functions.new_handle);
  need("aoti_torch_get_data_ptr", functions.data);
  need("aoti_torch_get_dtype", functions.dtype);
  need("aoti_torch_get_dim", functions.rank);
  need("aoti_torch_get_sizes", functions.sizes);
  need("aoti_torch_get_strides", functions.strides);
  need("aoti_torch_get_device_type", functions.device_type);
  need("aoti_torch_get_device_index", functions.device_index);
  need("aoti_torch_empty_strided", functions.empty_strided);
  need("aoti_torch_copy_", functions.copy);
  need("aoti_torch_is_defined", functions.is_defined);
  need("aoti_torch_create_tensor_from_blob", functions.tensor_from_blob);
  need("aoti_torch_call_dispatcher", functions.call_dispatcher);
  need("aoti_torch_grad_mode_is_enabled", functions.grad_mode_is_enabled);
  need("aoti_torch_grad_mode_set_enabled", functions.grad_mode_set_enabled);
  need("aoti_torch_create_device_guard", functions.create_device_guard);
  need("aoti_torch_delete_device_guard", functions.delete_device_guard);
  need("aoti_torch_device_type_cpu", functions.cpu);
  need("aoti_torch_device_type_cuda", functions.cuda);
  need("aoti_torch_check", functions.check);
  // std::__throw_invalid_argument(char const*); a handle's symbols include those of what it needs.
  need("_ZSt24__throw_invalid_argumentPKc", functions.throw_invalid_argument);
  if (FindValueError(torch)) functions.throw_invalid_argument = ThrowValueError;
  for (size_t i = 0; i < kDTypeNames.size(); ++i) {
    int32_t (*number)() = nullptr;
    if (!Find(torch, Text("aoti_torch_dtype_", kDTypeNames[i]).c_str(), number))
      Find(torch, Text("torch_dtype_", kDTypeNames[i]).c_str(),
           number);  // those added from 2.10 on
    const bool is_e8m0 = static_cast<DType>(i) == DType::kF8E8M0;
    dtype_numbers[i] = number ? number() : is_e8m0 ? kE8M0Number : -1;
    if (i < std::size(functions.dtype_numbers)) {
      functions.dtype_numbers[i] = dtype_numbers[i];
      if (!number && !is_e8m0) missing = kDTypeNames[i];
    }
  }
  if (missing)
    return Unimplemented(Text("this torch has no ", missing, "; expected torch 2.9 or newer"));
  Find(torch, "torch_string_c_str", functions.string_text);
  Find(torch, "torch_delete_string", functions.delete_string);
  Find(torch, "torch_new_string_handle", functions.new_string);
  Find(torch, "torch_new_list_reserve_size", functions.new_list);
  Find(torch, "torch_list_push_back", functions.list_push_back);
  Find(torch, "torch_list_size", functions.list_size);
  Find(torch, "torch_list_get_item", functions.list_get_item);
  Find(torch, "torch_delete_list", functions.delete_list);
  void* const cuda = Loaded("libtorch_cuda.so");
  Find(cuda, "aoti_torch_get_current_cuda_stream", functions.current_cuda_stream);
  Find(cuda, "aoti_torch_create_cuda_stream_guard", functions.create_cuda_stream_guard);
  Find(cuda, "aoti_torch_delete_cuda_stream_guard", functions.delete_cuda_stream_guard);
  return {};
}

}  // namespace

DType Functions::FromNumber(int32_t number) const {
  for (size_t i = 0; i < std::size(dtype_numbers); ++i)
    if (dtype_numbers[i] == number) return static_cast<DType>(i);
  return DType::kOther;
}

const char* Functions::DTypeName(int32_t number) const {
  for (size_t i = 0; i < kDTypeNames.size(); ++i)
    if (torch::dtype_numbers[i] == number) return kDTypeNames[i];
  return "of another kind";
}

int32_t Functions::DTypeNumber(std::string_view name) const {
  for (size_t i = 0; i < kDTypeNames.size(); ++i)
    if (kDTypeNames[i] == name) return torch::dtype_numbers[i];
  return -1;
}

Status FindFunctions() {
  // Not only once: torch may be imported after a failure.
  static std::mutex mutex;
  static bool found = false;
  const std::lock_guard lock(mutex);
  if (found) return {};
  INTARSIA_RETURN_IF_ERROR(FindAll());
  found = true;
  return {};
}

const Functions& Get() { return functions; }

}  // namespace intarsia::torch
