// Compiles only where src/pjrt/c_api.h, which declares a part of PJRT's C interface, says what
// XLA's own headers say.
#include <cassert>
#include <cstddef>
#include <cstdint>

namespace xla_header {
#include "xla/pjrt/c/pjrt_c_api.h"
#include "xla/pjrt/c/pjrt_c_api_ffi_extension.h"
}  // namespace xla_header

#include "src/pjrt/c_api.h"

namespace intarsia::pjrt {

#define SAME_SLOT(slot, function) \
  static_assert(SlotOffset(slot) == offsetof(xla_header::PJRT_Api, function))
SAME_SLOT(kErrorDestroy, PJRT_Error_Destroy);
SAME_SLOT(kErrorMessage, PJRT_Error_Message);
SAME_SLOT(kErrorGetCode, PJRT_Error_GetCode);
SAME_SLOT(kClientPlatformName, PJRT_Client_PlatformName);
SAME_SLOT(kClientCompile, PJRT_Client_Compile);
SAME_SLOT(kLoadedExecutableExecute, PJRT_LoadedExecutable_Execute);

// A struct of XLA's may have grown at its end.
#define SAME_FIELD(ours, field, theirs, their_field)                                  \
  static_assert(offsetof(ours, field) == offsetof(xla_header::theirs, their_field) && \
                sizeof(ours::field) == sizeof(xla_header::theirs::their_field))
SAME_FIELD(::PJRT_Api, extensions, PJRT_Api, extension_start);
SAME_FIELD(::PJRT_Api, version.major, PJRT_Api, pjrt_api_version.major_version);
SAME_FIELD(::PJRT_Api, version.minor, PJRT_Api, pjrt_api_version.minor_version);
SAME_FIELD(ErrorDestroyArgs, error, PJRT_Error_Destroy_Args, error);
SAME_FIELD(ErrorMessageArgs, message, PJRT_Error_Message_Args, message);
SAME_FIELD(ErrorMessageArgs, message_size, PJRT_Error_Message_Args, message_size);
SAME_FIELD(ErrorGetCodeArgs, code, PJRT_Error_GetCode_Args, code);
SAME_FIELD(PlatformNameArgs, name, PJRT_Client_PlatformName_Args, platform_name);
SAME_FIELD(PlatformNameArgs, name_size, PJRT_Client_PlatformName_Args, platform_name_size);
SAME_FIELD(Program, code, PJRT_Program, code);
SAME_FIELD(Program, code_size, PJRT_Program, code_size);
SAME_FIELD(Program, format, PJRT_Program, format);
SAME_FIELD(Program, format_size, PJRT_Program, format_size);
SAME_FIELD(CompileArgs, program, PJRT_Client_Compile_Args, program);
SAME_FIELD(ExecuteArgs, options, PJRT_LoadedExecutable_Execute_Args, options);
SAME_FIELD(Extension, type, PJRT_Extension_Base, type);
SAME_FIELD(Extension, next, PJRT_Extension_Base, next);
static_assert(sizeof(Extension) == sizeof(xla_header::PJRT_Extension_Base));

static_assert(GpuCustomCallExtension::kType == xla_header::PJRT_Extension_Type_Gpu_Custom_Call);
static_assert(FfiExtension::kType == xla_header::PJRT_Extension_Type_FFI);
SAME_FIELD(FfiExtension, register_handler, PJRT_FFI_Extension, register_handler);
SAME_FIELD(RegisterHandlerArgs, name, PJRT_FFI_Register_Handler_Args, target_name);
SAME_FIELD(RegisterHandlerArgs, name_size, PJRT_FFI_Register_Handler_Args, target_name_size);
SAME_FIELD(RegisterHandlerArgs, handler, PJRT_FFI_Register_Handler_Args, handler);
SAME_FIELD(RegisterHandlerArgs, platform, PJRT_FFI_Register_Handler_Args, platform_name);
SAME_FIELD(RegisterHandlerArgs, platform_size, PJRT_FFI_Register_Handler_Args, platform_name_size);
SAME_FIELD(RegisterHandlerArgs, traits, PJRT_FFI_Register_Handler_Args, traits);

}  // namespace intarsia::pjrt
