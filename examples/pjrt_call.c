// A C program that calls one of the library's ops on XLA's CPU, without Python: libintarsia.so is
// its PJRT plugin.
//
//   INTARSIA_PJRT_PLUGIN=.../pjrt_c_api_cpu_plugin.so pjrt_call .../libintarsia.so
//
// libintarsia.so wraps the plugin that the variable names and registers its handlers with it. A
// program that has loaded a plugin of its own gives its PJRT_Api to intarsia_register_with_pjrt
// instead, and goes on as from NewClient here.
//
// pjrt_c_api.h is XLA's: https://github.com/openxla/xla/tree/main/xla/pjrt/c, or the package
// tensorflow-cpu.
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "xla/pjrt/c/pjrt_c_api.h"

enum { kRows = 2, kColumns = 8 };

// What docs/ops has for each op. Bit 0 of `present` says that the optional operand weight is
// given.
static const char kProgram[] =
    "func.func @main(%x: tensor<2x8xf32>, %weight: tensor<8xf32>) -> tensor<2x8xf32> {\n"
    "  %0 = stablehlo.custom_call @intarsia.rms_norm(%x, %weight)\n"
    "    {api_version = 4 : i32,\n"
    "     backend_config = {eps = 1.000000e-05 : f32, rounding = \"once\", present = 1 : i64}}\n"
    "    : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>\n"
    "  return %0 : tensor<2x8xf32>\n"
    "}\n";

// A serialized xla.CompileOptionsProto: executable_build_options { num_replicas: 1 num_partitions:
// 1 }.
static const char kCompileOptions[] = "\x1a\x04\x20\x01\x28\x01";

static const PJRT_Api* api;

// A size of -1: all of the text.
static void Fail(const char* what, const char* why, int size) {
  fprintf(stderr, "%s: %.*s\n", what, size, why);
  exit(1);
}

static void Check(const char* what, PJRT_Error* error) {
  if (!error) return;
  PJRT_Error_Message_Args message = {.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE,
                                     .error = error};
  api->PJRT_Error_Message(&message);
  Fail(what, message.message, (int)message.message_size);
}

static void Await(const char* what, PJRT_Event* event) {
  PJRT_Event_Await_Args await = {.struct_size = PJRT_Event_Await_Args_STRUCT_SIZE, .event = event};
  Check(what, api->PJRT_Event_Await(&await));
  PJRT_Event_Destroy_Args destroy = {.struct_size = PJRT_Event_Destroy_Args_STRUCT_SIZE,
                                     .event = event};
  Check(what, api->PJRT_Event_Destroy(&destroy));
}

static const PJRT_Api* LoadPlugin(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) Fail(path, dlerror(), -1);
  // POSIX promises that this cast works; ISO C does not know it.
  const PJRT_Api* (*get)(void) = NULL;
  *(void**)&get = dlsym(library, "GetPjrtApi");
  if (!get) Fail(path, dlerror(), -1);
  return get();
}

static PJRT_Client* NewClient(void) {
  PJRT_Plugin_Initialize_Args initialize = {.struct_size = PJRT_Plugin_Initialize_Args_STRUCT_SIZE};
  Check("initialize", api->PJRT_Plugin_Initialize(&initialize));
  PJRT_Client_Create_Args create = {.struct_size = PJRT_Client_Create_Args_STRUCT_SIZE};
  Check("create a client", api->PJRT_Client_Create(&create));
  return create.client;
}

static PJRT_Device* FirstDevice(PJRT_Client* client) {
  PJRT_Client_AddressableDevices_Args devices = {
      .struct_size = PJRT_Client_AddressableDevices_Args_STRUCT_SIZE, .client = client};
  Check("devices", api->PJRT_Client_AddressableDevices(&devices));
  if (!devices.num_addressable_devices) Fail("devices", "there are none", -1);
  return devices.addressable_devices[0];
}

static PJRT_LoadedExecutable* Compile(PJRT_Client* client) {
  PJRT_Program program = {.struct_size = PJRT_Program_STRUCT_SIZE,
                          .code = (char*)kProgram,
                          .code_size = sizeof(kProgram) - 1,
                          .format = "mlir",
                          .format_size = 4};
  PJRT_Client_Compile_Args compile = {.struct_size = PJRT_Client_Compile_Args_STRUCT_SIZE,
                                      .client = client,
                                      .program = &program,
                                      .compile_options = kCompileOptions,
                                      .compile_options_size = sizeof(kCompileOptions) - 1};
  Check("compile", api->PJRT_Client_Compile(&compile));
  return compile.executable;
}

static PJRT_Buffer* ToDevice(PJRT_Client* client, PJRT_Device* device, const float* data,
                             const int64_t* dims, size_t rank) {
  PJRT_Client_BufferFromHostBuffer_Args copy = {
      .struct_size = PJRT_Client_BufferFromHostBuffer_Args_STRUCT_SIZE,
      .client = client,
      .data = data,
      .type = PJRT_Buffer_Type_F32,
      .dims = dims,
      .num_dims = rank,
      .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
      .device = device};
  Check("copy to the device", api->PJRT_Client_BufferFromHostBuffer(&copy));
  Await("copy to the device", copy.done_with_host_buffer);
  return copy.buffer;
}

static PJRT_Buffer* Execute(PJRT_LoadedExecutable* executable, PJRT_Buffer* const* operands,
                            size_t count) {
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  PJRT_Buffer* result = NULL;
  PJRT_Buffer** const results = &result;
  PJRT_Event* done = NULL;
  PJRT_LoadedExecutable_Execute_Args execute = {
      .struct_size = PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE,
      .executable = executable,
      .options = &options,
      .argument_lists = &operands,
      .num_devices = 1,
      .num_args = count,
      .output_lists = &results,
      .device_complete_events = &done};
  Check("execute", api->PJRT_LoadedExecutable_Execute(&execute));
  Await("execute", done);  // what a handler refuses is told here
  return result;
}

static void ToHost(PJRT_Buffer* buffer, float* data, size_t size) {
  PJRT_Buffer_ToHostBuffer_Args copy = {.struct_size = PJRT_Buffer_ToHostBuffer_Args_STRUCT_SIZE,
                                        .src = buffer,
                                        .dst = data,
                                        .dst_size = size};
  Check("copy to the host", api->PJRT_Buffer_ToHostBuffer(&copy));
  Await("copy to the host", copy.event);
}

static void Destroy(PJRT_Buffer* buffer) {
  PJRT_Buffer_Destroy_Args destroy = {.struct_size = PJRT_Buffer_Destroy_Args_STRUCT_SIZE,
                                      .buffer = buffer};
  Check("free a buffer", api->PJRT_Buffer_Destroy(&destroy));
}

int main(int argc, char** argv) {
  if (argc != 2) Fail("usage", "INTARSIA_PJRT_PLUGIN=PLUGIN pjrt_call LIBINTARSIA", -1);
  float x[kRows][kColumns], weight[kColumns], out[kRows][kColumns];
  for (int i = 0; i < kColumns; ++i) {
    weight[i] = 1 + i;
    for (int row = 0; row < kRows; ++row) x[row][i] = i - row * kColumns / 2.0f;
  }

  api = LoadPlugin(argv[1]);
  PJRT_Client* client = NewClient();
  PJRT_Device* device = FirstDevice(client);
  PJRT_LoadedExecutable* executable = Compile(client);
  PJRT_Buffer* operands[] = {
      ToDevice(client, device, x[0], (const int64_t[]){kRows, kColumns}, 2),
      ToDevice(client, device, weight, (const int64_t[]){kColumns}, 1),
  };
  PJRT_Buffer* result = Execute(executable, operands, 2);
  ToHost(result, out[0], sizeof(out));

  double worst = 0;
  for (int row = 0; row < kRows; ++row) {
    double squares = 0;
    for (int i = 0; i < kColumns; ++i) squares += x[row][i] * x[row][i];
    const double scale = 1 / sqrt(squares / kColumns + 1e-5);
    for (int i = 0; i < kColumns; ++i)
      worst = fmax(worst, fabs(out[row][i] - x[row][i] * scale * weight[i]));
  }
  printf("rms_norm of [%d, %d]: largest error %.1e\n", kRows, kColumns, worst);

  Destroy(result);
  for (int i = 0; i < 2; ++i) Destroy(operands[i]);
  PJRT_LoadedExecutable_Destroy_Args free_executable = {
      .struct_size = PJRT_LoadedExecutable_Destroy_Args_STRUCT_SIZE, .executable = executable};
  Check("free the program", api->PJRT_LoadedExecutable_Destroy(&free_executable));
  PJRT_Client_Destroy_Args free_client = {.struct_size = PJRT_Client_Destroy_Args_STRUCT_SIZE,
                                          .client = client};
  Check("free the client", api->PJRT_Client_Destroy(&free_client));
  return worst < 1e-5 ? 0 : 1;
}
