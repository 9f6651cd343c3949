#include "src/bridge/torch_functions.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string>

namespace intarsia::bridge {
namespace {

TorchFunctions functions;

struct Dtype {
  std::string_view name;
  int32_t code = -1;
};
std::array dtypes = {
    Dtype{"bool"},
    Dtype{"int8"},
    Dtype{"int16"},
    Dtype{"int32"},
    Dtype{"int64"},
    Dtype{"uint8"},
    Dtype{"uint16"},
    Dtype{"uint32"},
    Dtype{"uint64"},
    Dtype{"float16"},
    Dtype{"bfloat16"},
    Dtype{"float32"},
    Dtype{"float64"},
    Dtype{"complex64"},
    Dtype{"complex128"},
    Dtype{"float8_e4m3fn"},
    Dtype{"float8_e5m2"},
    Dtype{"float8_e4m3fnuz"},
    Dtype{"float8_e5m2fnuz"},
    Dtype{"float8_e8m0fnu"},
};

void* Loaded(const char* library) { return dlopen(library, RTLD_NOLOAD | RTLD_NOW); }

template <class Function>
bool Find(void* library, const char* name, Function& function) {
  function = library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
  return function != nullptr;
}

Status FindAll() {
  void* torch_cpu = Loaded("libtorch_cpu.so");
  if (torch_cpu == nullptr) return Internal("libtorch_cpu.so is not loaded: import torch first");
  const char* missing = nullptr;
  const auto need = [&](const char* name, auto& function) {
    if (!Find(torch_cpu, name, function)) missing = name;
  };
  TorchFunctions& f = functions;
  need("aoti_torch_create_tensor_from_blob", f.aoti_torch_create_tensor_from_blob);
  need("aoti_torch_delete_tensor_object", f.aoti_torch_delete_tensor_object);
  need("aoti_torch_call_dispatcher", f.aoti_torch_call_dispatcher);
  need("aoti_torch_copy_", f.aoti_torch_copy_);
  need("aoti_torch_is_defined", f.aoti_torch_is_defined);
  need("aoti_torch_get_dim", f.aoti_torch_get_dim);
  need("aoti_torch_get_size", f.aoti_torch_get_size);
  need("aoti_torch_get_dtype", f.aoti_torch_get_dtype);
  need("aoti_torch_get_device_type", f.aoti_torch_get_device_type);
  need("aoti_torch_grad_mode_is_enabled", f.aoti_torch_grad_mode_is_enabled);
  need("aoti_torch_grad_mode_set_enabled", f.aoti_torch_grad_mode_set_enabled);
  need("aoti_torch_device_type_cuda", f.aoti_torch_device_type_cuda);
  if (missing) return Internal(Text("torch has no C function ", missing, ": needs torch >= 2.9"));
  void* torch_cuda = Loaded("libtorch_cuda.so");
  Find(torch_cuda, "aoti_torch_create_cuda_stream_guard", f.aoti_torch_create_cuda_stream_guard);
  Find(torch_cuda, "aoti_torch_delete_cuda_stream_guard", f.aoti_torch_delete_cuda_stream_guard);
  Find(torch_cpu, "torch_new_string_handle", f.torch_new_string_handle);
  void* driver = Loaded("libcuda.so.1");
  Find(driver, "cuStreamIsCapturing", f.cuStreamIsCapturing);
  Find(driver, "cuThreadExchangeStreamCaptureMode", f.cuThreadExchangeStreamCaptureMode);
  for (Dtype& dtype : dtypes)
    for (const char* prefix : {"aoti_torch_dtype_", "torch_dtype_"}) {
      int32_t (*code)() = nullptr;
      if (Find(torch_cpu, Text(prefix, dtype.name).c_str(), code)) dtype.code = code();
    }
  return {};
}

}  // namespace

Status OpenTorch() {
  static std::mutex mutex;
  static bool done = false;
  const std::lock_guard lock(mutex);
  if (done) return {};
  Status status = FindAll();
  done = status.ok();
  return status;
}

const TorchFunctions& Torch() { return functions; }

int32_t DtypeCode(std::string_view name) {
  const auto found = std::ranges::find(dtypes, name, &Dtype::name);
  return found == dtypes.end() ? -1 : found->code;
}

}  // namespace intarsia::bridge
