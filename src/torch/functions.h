// The C functions of torch that the ops' kernels call, and libintarsia_bridge (src/bridge), found
// in the process once torch is loaded: no torch header is included, and nothing of torch is linked,
// so one binary serves every version from 2.9 on. torch keeps them stable
// (torch/csrc/inductor/aoti_torch/c/shim.h, torch/csrc/stable).
#pragma once
#include <cstdint>
#include <string_view>

#include "src/core/dtype.h"
#include "src/core/status.h"

namespace intarsia::torch {

// What a boxed kernel finds on its stack (torch's StableIValue): an integer, the bits of a double,
// an owned handle of a tensor or of a string; an optional is null or on the heap.
using Value = uint64_t;
using BoxedKernel = void(Value* stack, uint64_t num_inputs, uint64_t num_outputs);
struct TensorObject;
using Tensor = TensorObject*;
struct Opaque;

// Those that return an int32_t other than a number that they ask for return 0, or else have failed.
struct Functions {
  int32_t (*library_init_impl)(const char* name_space, const char* key, const char* file,
                               uint32_t line, Opaque** library);
  int32_t (*library_impl)(Opaque* library, const char* name, BoxedKernel* kernel);
  int32_t (*delete_tensor)(Tensor);
  int32_t (*new_handle)(Tensor, Tensor* same);  // another, of the same tensor
  int32_t (*data)(Tensor, void**);
  int32_t (*dtype)(Tensor, int32_t*);
  int32_t (*rank)(Tensor, int64_t*);
  int32_t (*sizes)(Tensor, int64_t**);
  int32_t (*strides)(Tensor, int64_t**);
  int32_t (*device_type)(Tensor, int32_t*);
  int32_t (*device_index)(Tensor, int32_t*);
  int32_t (*empty_strided)(int64_t rank, const int64_t* sizes, const int64_t* strides,
                           int32_t dtype, int32_t device_type, int32_t device_index, Tensor*);
  int32_t (*copy)(Tensor to, Tensor from, int32_t non_blocking);
  int32_t (*is_defined)(Tensor, bool*);
  int32_t (*tensor_from_blob)(void* data, int64_t rank, const int64_t* sizes,
                              const int64_t* strides, int64_t offset, int32_t dtype,
                              int32_t device_type, int32_t device_index, Tensor*);
  int32_t (*call_dispatcher)(const char* op, const char* overload, Value* stack);
  bool (*grad_mode_is_enabled)();
  void (*grad_mode_set_enabled)(bool enabled);
  int32_t (*create_device_guard)(int32_t device_index, Opaque** guard);
  int32_t (*delete_device_guard)(Opaque* guard);
  int32_t (*cpu)();   // the device type's number
  int32_t (*cuda)();  // the same
  void (*check)(bool condition, const char* function, const char* file, uint32_t line,
                const char* message);  // throws what is a RuntimeError in Python
  // Of torch's own C++ runtime, where this library has one of its own that nobody else may see: an
  // exception must be thrown and caught by the same one. Throws what is a ValueError in Python:
  // c10::ValueError where torch exports its constructor, else std::invalid_argument, of which
  // torch 2.15 would make a RuntimeError.
  void (*throw_invalid_argument)(const char* message);

  // From torch 2.10 on, else null.
  int32_t (*string_text)(Opaque* string, const char** text);
  int32_t (*delete_string)(Opaque* string);
  int32_t (*new_list)(size_t reserved, Opaque** list);
  int32_t (*list_push_back)(Opaque* list, Value element);
  int32_t (*list_size)(Opaque* list, size_t* size);
  int32_t (*list_get_item)(Opaque* list, size_t index, Value* element);
  int32_t (*delete_list)(Opaque* list);
  int32_t (*new_string)(const char* data, size_t length, Opaque** string);
  // In a torch with CUDA, else null.
  int32_t (*current_cuda_stream)(int32_t device_index, void** stream);
  int32_t (*create_cuda_stream_guard)(void* stream, int32_t device_index, Opaque** guard);
  int32_t (*delete_cuda_stream_guard)(Opaque* guard);

  // torch's number of a dtype of ours, and the other way round (kOther: there is none).
  int32_t dtype_numbers[static_cast<int>(DType::kOther)];
  DType FromNumber(int32_t number) const;
  // "float64": what torch calls the dtype with this number.
  const char* DTypeName(int32_t number) const;
  // The number of the dtype with this name; -1 if torch has none.
  int32_t DTypeNumber(std::string_view name) const;
};

// Fails if no torch is loaded, or an older one than 2.9; until it has succeeded, Get() is not to
// be called.
Status FindFunctions();
const Functions& Get();

}  // namespace intarsia::torch
