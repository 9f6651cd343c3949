// A PJRT plugin that is another one with the library's handlers in it, for frameworks that can only
// be told a plugin's path. GetPjrtApi is never null: what went wrong is reported by each function
// of the API that it returns then.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/intarsia.h"
#include "src/core/config.h"
#include "src/core/round.h"
#include "src/core/status.h"
#include "src/pjrt/c_api.h"
#include "src/pjrt/plugin/in_place.h"
#include "src/pjrt/register.h"

namespace intarsia::pjrt {

namespace {

const PJRT_Api* real = nullptr;  // set once, before anything can call what reads it

// An API struct as long as its plugin says, which may be longer than what we know of it.
struct Table {
  explicit Table(size_t bytes) : words(CeilDiv(bytes, sizeof(void*))) {}
  PJRT_Api* api() { return reinterpret_cast<PJRT_Api*>(words.data()); }
  template <class Fn>
  void Set(size_t slot, Fn* function) {
    api()->functions[slot] = reinterpret_cast<void (*)()>(function);
  }
  std::vector<void*> words;
};

// Options may grow at the end, zero meaning what was before, and a plugin refuses a struct that is
// shorter than its own: torch_xla 2.9 passes 80 bytes where PJRT 0.90 has 112. Longer ones it
// takes.
constexpr size_t kLongOptions = 512;

Error* Execute(ExecuteArgs* args) {
  Args* const given = args->options;
  alignas(Args) std::byte longer[kLongOptions] = {};
  if (given && given->struct_size < kLongOptions) {
    std::memcpy(longer, given, given->struct_size);
    args->options = reinterpret_cast<Args*>(longer);
    args->options->struct_size = kLongOptions;
  }
  Error* error =
      reinterpret_cast<Function<ExecuteArgs>>(real->functions[kLoadedExecutableExecute])(args);
  args->options = given;
  return error;
}

// CompileOptionsProto.env_option_overrides (field 7) with {"xla_gpu_enable_dynamic_slice_fusion":
// false} in protobuf's wire format, which may follow any such message. torch_xla 2.9 turns that
// fusion on, XLA itself has it off: a call that reads a slice where it lies, and writes it, no
// longer finds its result where its operand is, and two such slices of one array make a cycle.
constexpr char kNoSliceFusion[] =
    "\x3a\x29\x0a\x23xla_gpu_enable_dynamic_slice_fusion\x12\x02\x10\x00";
// The lengths in it: of the entry, which follows two bytes, and of the name.
static_assert(sizeof kNoSliceFusion - 1 == 2 + 0x29);
static_assert(sizeof "xla_gpu_enable_dynamic_slice_fusion" - 1 == 0x23);

Error* Compile(CompileArgs* args) {
  const auto compile = reinterpret_cast<Function<CompileArgs>>(real->functions[kClientCompile]);
  const CompileArgs given = *args;
  Program program = {};
  std::string options, code;
  try {
    options.append(given.options, given.options_size)
        .append(kNoSliceFusion, sizeof kNoSliceFusion - 1);
    args->options = options.data();
    args->options_size = options.size();
    if (std::string_view(given.program->format, given.program->format_size) == "hlo" &&
        given.program->base.struct_size <= sizeof(Program))
      code = AliasGivenUpParameters({given.program->code, given.program->code_size});
  } catch (const std::exception&) {  // no memory: the program is right as it was
  }
  if (!code.empty()) {
    program = *given.program;
    program.code = code.data();
    program.code_size = code.size();
    args->program = &program;
  }
  Error* error = compile(args);
  args->program = given.program;
  args->options = given.options;
  args->options_size = given.options_size;
  return error;
}

// torch_xla 2.9 aborts on "cuda", for which it had code of its own. One name on all platforms.
Error* PlatformName(PlatformNameArgs* args) {
  static constexpr std::string_view kName = "intarsia";
  args->name = kName.data();
  args->name_size = kName.size();
  return nullptr;
}

Status Load(const std::string& path) {
  if (path.empty())
    return InvalidArgument(
        "INTARSIA_PJRT_PLUGIN is not set, expected the path of the PJRT plugin to wrap");
  // Never closed: a plugin holds threads and a client.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return InvalidArgument(Text("cannot load the PJRT plugin: ", dlerror()));
  const auto get = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  if (!get) return InvalidArgument(Text(path, " is no PJRT plugin: it has no GetPjrtApi"));
  if (get == &GetPjrtApi)
    return InvalidArgument(Text("INTARSIA_PJRT_PLUGIN is ", path,
                                ", which is this library, expected the plugin to wrap"));
  const PJRT_Api* api = get();
  if (!api) return Internal(Text("GetPjrtApi of ", path, " returned null"));
  size_t count = 0;
  const intarsia_handler* handlers = intarsia_handlers(&count);
  Status status = Register(api, {handlers, count});
  if (!status.ok()) return {status.code, Text(path, ": ", status.message)};
  real = api;
  return {};
}

const PJRT_Api* Wrap() {
  static Table table(real->struct_size);
  std::memcpy(table.words.data(), real, real->struct_size);
  table.Set(kClientPlatformName, &PlatformName);
  table.Set(kClientCompile, &Compile);
  table.Set(kLoadedExecutableExecute, &Execute);
  return table.api();
}

const Status* failure = nullptr;

// Callers look into no error: any address is one.
Error* Fail(void*) { return reinterpret_cast<Error*>(&failure); }

void FailureMessage(ErrorMessageArgs* args) {
  args->message = failure->message.data();
  args->message_size = failure->message.size();
}

Error* FailureCode(ErrorGetCodeArgs* args) {
  args->code = static_cast<int32_t>(failure->code);
  return nullptr;
}

void KeepError(ErrorDestroyArgs*) {}

// Callers call what they get without looking for null, so failing must be an API too. Its table is
// longer than any that a caller may ask for.
const PJRT_Api* Failing(Status status) {
  constexpr size_t kSlots = 512;
  static const Status reason{status.code, "intarsia: " + status.message};
  failure = &reason;
  static Table table(SlotOffset(kSlots));
  PJRT_Api* const api = table.api();
  api->struct_size = SlotOffset(kSlots);
  api->version.struct_size = sizeof(api->version);
  // Callers refuse what they find too old before they ask for the error: as new as plugins that
  // this was tried with.
  api->version.minor = 112;
  for (size_t slot = 0; slot < kSlots; ++slot) table.Set(slot, &Fail);
  table.Set(kErrorDestroy, &KeepError);
  table.Set(kErrorMessage, &FailureMessage);
  table.Set(kErrorGetCode, &FailureCode);
  return api;
}

const PJRT_Api* LoadAndWrap() {
  try {
    Status status = Load(PjrtPlugin());
    return status.ok() ? Wrap() : Failing(std::move(status));
  } catch (const std::exception& e) {
    return Failing(Internal(e.what()));
  }
}

}  // namespace
}  // namespace intarsia::pjrt

const PJRT_Api* GetPjrtApi(void) {
  static const PJRT_Api* const api = intarsia::pjrt::LoadAndWrap();
  return api;
}
