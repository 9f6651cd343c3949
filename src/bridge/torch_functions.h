// PyTorch's stable C functions, found in the process by name: no header of torch is included and
// nothing is linked, so one binary serves every torch from 2.9 on. They are those that
// AOTInductor's compiled models call (torch/csrc/inductor/aoti_torch/c/shim.h and
// torch/csrc/stable/c/shim.h).
#pragma once
#include <cstdint>
#include <string_view>

#include "src/core/status.h"

namespace intarsia::bridge {

using Handle = void*;  // an owned at::Tensor

struct TorchFunctions {
  int32_t (*aoti_torch_create_tensor_from_blob)(void* data, int64_t rank, const int64_t* sizes,
                                                const int64_t* strides, int64_t offset,
                                                int32_t dtype, int32_t device_type,
                                                int32_t device_index, Handle* tensor);
  int32_t (*aoti_torch_delete_tensor_object)(Handle tensor);
  int32_t (*aoti_torch_call_dispatcher)(const char* op, const char* overload, uint64_t* stack);
  int32_t (*aoti_torch_copy_)(Handle to, Handle from, int32_t non_blocking);
  int32_t (*aoti_torch_is_defined)(Handle tensor, bool* is_defined);
  int32_t (*aoti_torch_get_dim)(Handle tensor, int64_t* rank);
  int32_t (*aoti_torch_get_size)(Handle tensor, int64_t axis, int64_t* size);
  int32_t (*aoti_torch_get_dtype)(Handle tensor, int32_t* dtype);
  int32_t (*aoti_torch_get_device_type)(Handle tensor, int32_t* type);
  bool (*aoti_torch_grad_mode_is_enabled)();
  void (*aoti_torch_grad_mode_set_enabled)(bool enabled);
  int32_t (*aoti_torch_device_type_cuda)();

  // Absent in some builds or versions: null.
  int32_t (*aoti_torch_create_cuda_stream_guard)(void* stream, int32_t device, void** guard);
  int32_t (*aoti_torch_delete_cuda_stream_guard)(void* guard);
  int32_t (*torch_new_string_handle)(const char* data, size_t length, void** string);
  int32_t (*cuStreamIsCapturing)(void* stream, int32_t* status);
  int32_t (*cuThreadExchangeStreamCaptureMode)(int32_t* mode);
};

// Finds them all; later calls do nothing. Fails if torch is not loaded or lacks one.
Status OpenTorch();
const TorchFunctions& Torch();

// torch's number of a dtype by its name ("bfloat16"); -1 if it has none of that name.
int32_t DtypeCode(std::string_view name);

}  // namespace intarsia::bridge
