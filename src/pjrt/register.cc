#include "src/pjrt/register.h"

#include <cstring>
#include <string_view>

#include "src/pjrt/c_api.h"

namespace intarsia::pjrt {
namespace {

// That of jaxlib 0.9.1, the first with version 0.3 of the typed FFI. An older XLA refuses handlers
// of that version, and CUDA plugins keep such a refusal to themselves.
constexpr int32_t kOldestMinor = 96;

// The extension of a type; null where the plugin has none, or one from before its last field.
template <class T>
const T* Find(const PJRT_Api* api) {
  for (const Extension* link = api->extensions; link; link = link->next)
    if (link->type == T::kType && link->struct_size >= sizeof(T))
      return reinterpret_cast<const T*>(link);
  return nullptr;
}

// An error's text; the error is freed.
std::string Explain(const PJRT_Api* api, Error* error) {
  ErrorMessageArgs message{};
  message.base.struct_size = sizeof(message);
  message.error = error;
  reinterpret_cast<void (*)(ErrorMessageArgs*)>(api->functions[kErrorMessage])(&message);
  std::string text(message.message, message.message_size);
  ErrorDestroyArgs destroy{};
  destroy.base.struct_size = sizeof(destroy);
  destroy.error = error;
  reinterpret_cast<void (*)(ErrorDestroyArgs*)>(api->functions[kErrorDestroy])(&destroy);
  return text;
}

Error* RegisterOne(const GpuCustomCallExtension& extension, const intarsia_handler& handler) {
  GpuCustomCallArgs args{};
  args.struct_size = sizeof(args);
  args.name = handler.target;
  args.name_size = std::strlen(handler.target);
  args.api_version = 1;
  args.initialize = handler.initialize;
  args.execute = handler.execute;
  return extension.custom_call(&args);
}

Error* RegisterOne(const FfiExtension& extension, const intarsia_handler& handler) {
  RegisterHandlerArgs args{};
  args.struct_size = sizeof(args);
  args.name = handler.target;
  args.name_size = std::strlen(handler.target);
  args.handler = handler.execute;
  args.platform = handler.platform;
  args.platform_size = std::strlen(handler.platform);
  return extension.register_handler(&args);
}

template <class T>
Status RegisterAll(const PJRT_Api* api, const T& extension, std::string_view platform,
                   std::span<const intarsia_handler> handlers) {
  bool any = false;
  for (const intarsia_handler& handler : handlers) {
    if (handler.platform != platform) continue;
    any = true;
    if (Error* error = RegisterOne(extension, handler))
      return Internal(Text("the PJRT plugin refuses ", handler.target, ": ", Explain(api, error)));
  }
  if (!any)
    return Unimplemented(Text("the PJRT plugin is for ", platform,
                              ", for which this library has no handlers; build it with CUDA"));
  return {};
}

}  // namespace

Status Register(const PJRT_Api* api, std::span<const intarsia_handler> handlers) {
  if (!api) return InvalidArgument("the PJRT_Api is null");
  if (api->struct_size < SlotOffset(kLoadedExecutableExecute + 1) || api->version.major != 0 ||
      api->version.minor < kOldestMinor)
    return Unimplemented(Text("the PJRT plugin has version ", api->version.major, ".",
                              api->version.minor, ", expected 0.", kOldestMinor,
                              " (jaxlib 0.9.1) or a later 0"));
  if (const auto* gpu = Find<GpuCustomCallExtension>(api))
    return RegisterAll(api, *gpu, "CUDA", handlers);
  if (const auto* ffi = Find<FfiExtension>(api)) return RegisterAll(api, *ffi, "Host", handlers);
  return Unimplemented(
      "the PJRT plugin takes no custom calls: it has neither the extension for GPU custom calls "
      "(type 0) nor the FFI extension (type 5)");
}

}  // namespace intarsia::pjrt
