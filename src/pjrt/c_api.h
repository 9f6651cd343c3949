// The part of the PJRT C API that registering handlers and wrapping a plugin need, declared from
// the ABI that XLA documents (xla/pjrt/c/pjrt_c_api.h, pjrt_c_api_ffi_extension.h and
// pjrt_c_api_gpu_extension.h): version 0 of it only ever gains functions and fields at the ends.
// Sizes and offsets below are those of the headers of PJRT 0.90 (tensorflow-cpu 2.21.0), with which
// tests/ffi/pjrt_header_check.cc compares them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace intarsia::pjrt {
struct Extension;
struct Error;
}  // namespace intarsia::pjrt

// The tag is in the public header. Functions are slots, in the order of the API.
struct PJRT_Api {
  size_t struct_size;
  intarsia::pjrt::Extension* extensions;
  struct {
    size_t struct_size;
    intarsia::pjrt::Extension* extensions;
    int32_t major, minor;
  } version;
  void (*functions[1])();  // as many as struct_size says
};
static_assert(offsetof(PJRT_Api, functions) == 40);

namespace intarsia::pjrt {

enum Slot : size_t {
  kErrorDestroy = 0,
  kErrorMessage = 1,
  kErrorGetCode = 2,
  kClientPlatformName = 12,
  kClientCompile = 20,
  kLoadedExecutableExecute = 55,
};

constexpr size_t SlotOffset(size_t slot) {
  return offsetof(PJRT_Api, functions) + slot * sizeof(void (*)());
}

// Every function takes one pointer, to a struct that begins like this. All but kErrorDestroy and
// kErrorMessage return an Error*, null for success.
struct Args {
  size_t struct_size;
  Extension* extensions;
};
template <class T>
using Function = Error* (*)(T*);

struct ErrorDestroyArgs {
  Args base;
  Error* error;
};
struct ErrorMessageArgs {
  Args base;
  const Error* error;
  const char* message;  // out
  size_t message_size;  // out
};
struct ErrorGetCodeArgs {
  Args base;
  const Error* error;
  int32_t code;  // out; absl's
};
struct PlatformNameArgs {
  Args base;
  void* client;
  const char* name;  // out
  size_t name_size;  // out
};
static_assert(sizeof(ErrorMessageArgs) == 40 && sizeof(ErrorGetCodeArgs) == 32 &&
              sizeof(PlatformNameArgs) == 40);

// What to compile: a serialized HloModuleProto if the format is "hlo".
struct Program {
  Args base;
  const char* code;
  size_t code_size;
  const char* format;
  size_t format_size;
};
struct CompileArgs {
  Args base;
  void* client;
  const Program* program;
  const char* options;  // a serialized xla.CompileOptionsProto
  size_t options_size;
};
static_assert(sizeof(Program) == 48 && offsetof(CompileArgs, program) == 24);
static_assert(offsetof(CompileArgs, options_size) == 40);

struct ExecuteArgs {
  Args base;
  void* executable;
  Args* options;  // PJRT_ExecuteOptions: 112 bytes in 0.90
};
static_assert(offsetof(ExecuteArgs, options) == 24);

// A link of the chain of extensions. What it offers follows it.
struct Extension {
  size_t struct_size;
  int32_t type;
  Extension* next;
};
static_assert(sizeof(Extension) == 24);

// Handlers of all stages, for the plugin's own platform.
struct GpuCustomCallArgs {
  size_t struct_size;
  const char* name;
  size_t name_size;
  int32_t api_version;  // 1: typed
  void *instantiate, *prepare, *initialize, *execute;
};
struct GpuCustomCallExtension {
  static constexpr int32_t kType = 0;
  Extension base;
  Function<GpuCustomCallArgs> custom_call;
};
static_assert(sizeof(GpuCustomCallArgs) == 64 && offsetof(GpuCustomCallArgs, execute) == 56);

// Handlers of the execute stage, for a platform by name. The only way into a CPU plugin.
struct RegisterHandlerArgs {
  size_t struct_size;
  const char* name;
  size_t name_size;
  void* handler;
  const char* platform;
  size_t platform_size;
  int32_t traits;
};
struct FfiExtension {
  static constexpr int32_t kType = 5;
  Extension base;
  void (*type_register)();
  void (*user_data_add)();
  Function<RegisterHandlerArgs> register_handler;
};
static_assert(sizeof(RegisterHandlerArgs) == 56 && sizeof(FfiExtension) == 48);

}  // namespace intarsia::pjrt
