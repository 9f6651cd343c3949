// A language model without Python: loads a PJRT plugin by its path, gives it Intarsia's custom
// calls, and runs the two programs that export_model.py wrote. A program's results are the next
// one's operands; caches and state are donated, so they stay where they are.
//
//   host PLUGIN.so FOLDER
//
// PLUGIN.so is any XLA plugin: lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so of the package
// lammps-jax-pjrt-cpu, or jax_plugins/xla_cuda13/xla_cuda_plugin.so of jax-cuda13-pjrt.
// pjrt_c_api.h is XLA's.
#include <dlfcn.h>
#include <intarsia/intarsia.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace {

const PJRT_Api* api;

[[noreturn]] void Fail(const std::string& what, const std::string& why) {
  std::cerr << what << ": " << why << "\n";
  std::exit(1);
}

void Check(const char* what, PJRT_Error* error) {
  if (error == nullptr) return;
  PJRT_Error_Message_Args message{};
  message.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE;
  message.error = error;
  api->PJRT_Error_Message(&message);
  Fail(what, std::string(message.message, message.message_size));
}

// Calls a function of the API with its arguments' struct: CALL(PJRT_Client_Create, args).
#define CALL(function, args)                          \
  do {                                                \
    (args).struct_size = function##_Args_STRUCT_SIZE; \
    Check(#function, api->function(&(args)));         \
  } while (false)

void Await(PJRT_Event* event) {
  PJRT_Event_Await_Args await{};
  await.event = event;
  CALL(PJRT_Event_Await, await);
  PJRT_Event_Destroy_Args destroy{};
  destroy.event = event;
  CALL(PJRT_Event_Destroy, destroy);
}

struct Type {
  PJRT_Buffer_Type type;
  size_t bytes;
};

const std::map<std::string, Type> kTypes = {
    {"float32", {PJRT_Buffer_Type_F32, 4}}, {"bfloat16", {PJRT_Buffer_Type_BF16, 2}},
    {"float16", {PJRT_Buffer_Type_F16, 2}}, {"int32", {PJRT_Buffer_Type_S32, 4}},
    {"uint32", {PJRT_Buffer_Type_U32, 4}},  {"uint8", {PJRT_Buffer_Type_U8, 1}},
    {"bool", {PJRT_Buffer_Type_PRED, 1}}};

struct Array {
  Type type;
  std::vector<int64_t> dims;
  PJRT_Buffer* buffer = nullptr;
};

struct Program {
  PJRT_LoadedExecutable* executable = nullptr;
  std::vector<size_t> takes, gives;  // numbers of arrays
};

// host.txt
struct Model {
  std::vector<Array> arrays;
  Program prefill, decode;
  std::vector<size_t> caches;
  std::vector<size_t> stop;
  size_t token = 0, steps = 0;
};

std::vector<size_t> ReadNumbers(std::istream& in) {
  size_t count = 0;
  in >> count;
  std::vector<size_t> numbers(count);
  for (size_t& number : numbers) in >> number;
  return numbers;
}

Model ReadModel(const std::string& path) {
  std::ifstream in(path);
  if (!in) Fail(path, "cannot be read");
  Model model;
  for (std::string word; in >> word;) {
    if (word == "array") {
      std::string dtype;
      in >> dtype;
      const auto type = kTypes.find(dtype);
      if (type == kTypes.end()) Fail(path, "an array has dtype " + dtype);
      const auto dims = ReadNumbers(in);
      model.arrays.push_back({type->second, {dims.begin(), dims.end()}});
    } else if (word == "tokens") {
      in >> model.token >> model.steps;
    } else if (word == "caches" || word == "stop") {
      (word == "stop" ? model.stop : model.caches) = ReadNumbers(in);
    } else {
      Program& program = word.starts_with("prefill") ? model.prefill : model.decode;
      (word.ends_with("takes") ? program.takes : program.gives) = ReadNumbers(in);
    }
  }
  return model;
}

void LoadPlugin(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) Fail(path, dlerror());
  const auto get = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  if (get == nullptr) Fail(path, dlerror());
  api = get();
  PJRT_Plugin_Initialize_Args initialize{};
  CALL(PJRT_Plugin_Initialize, initialize);
  // Programs with our custom calls compile from here on.
  if (intarsia_register_with_pjrt(api) != 0) Fail("intarsia_register_with_pjrt", intarsia_error());
}

PJRT_LoadedExecutable* Compile(PJRT_Client* client, const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) Fail(path, "cannot be read");
  std::string code(std::istreambuf_iterator<char>(in), {});
  char format[] = "mlir";
  PJRT_Program program{};
  program.struct_size = PJRT_Program_STRUCT_SIZE;
  program.code = code.data();
  program.code_size = code.size();
  program.format = format;
  program.format_size = 4;
  // A serialized xla.CompileOptionsProto: executable_build_options { num_replicas: 1
  // num_partitions: 1 }.
  static const char kOptions[] = "\x1a\x04\x20\x01\x28\x01";
  PJRT_Client_Compile_Args compile{};
  compile.client = client;
  compile.program = &program;
  compile.compile_options = kOptions;
  compile.compile_options_size = sizeof(kOptions) - 1;
  CALL(PJRT_Client_Compile, compile);
  return compile.executable;
}

// The arrays' first contents: weights, tables, the prompt, and zeros.
void Upload(PJRT_Client* client, PJRT_Device* device, const std::string& path, Model& model) {
  std::ifstream in(path, std::ios::binary);
  std::vector<char> data;
  for (Array& array : model.arrays) {
    size_t bytes = array.type.bytes;
    for (const int64_t dim : array.dims) bytes *= static_cast<size_t>(dim);
    data.resize(bytes);
    if (!in.read(data.data(), static_cast<std::streamsize>(bytes))) Fail(path, "is too short");
    PJRT_Client_BufferFromHostBuffer_Args copy{};
    copy.client = client;
    copy.data = data.data();
    copy.type = array.type.type;
    copy.dims = array.dims.data();
    copy.num_dims = array.dims.size();
    copy.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
    copy.device = device;
    CALL(PJRT_Client_BufferFromHostBuffer, copy);
    Await(copy.done_with_host_buffer);
    array.buffer = copy.buffer;
  }
}

uintptr_t Address(PJRT_Buffer* buffer) {
  PJRT_Buffer_UnsafePointer_Args pointer{};
  pointer.buffer = buffer;
  CALL(PJRT_Buffer_UnsafePointer, pointer);
  return pointer.buffer_pointer;
}

void Free(PJRT_Buffer* buffer) {
  PJRT_Buffer_Destroy_Args destroy{};
  destroy.buffer = buffer;
  CALL(PJRT_Buffer_Destroy, destroy);
}

// Runs a program on the arrays that it takes; those that it gives are replaced by its results.
void Run(const Program& program, std::vector<Array>& arrays) {
  std::vector<PJRT_Buffer*> operands, results(program.gives.size());
  for (const size_t i : program.takes) operands.push_back(arrays[i].buffer);
  PJRT_ExecuteOptions options{};
  options.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE;
  PJRT_Buffer* const* operand_list = operands.data();
  PJRT_Buffer** result_list = results.data();
  PJRT_Event* done = nullptr;
  PJRT_LoadedExecutable_Execute_Args execute{};
  execute.executable = program.executable;
  execute.options = &options;
  execute.argument_lists = &operand_list;
  execute.num_devices = 1;
  execute.num_args = operands.size();
  execute.output_lists = &result_list;
  execute.device_complete_events = &done;
  CALL(PJRT_LoadedExecutable_Execute, execute);
  Await(done);  // what an op refuses is told here
  for (size_t i = 0; i < results.size(); ++i) {
    Array& array = arrays[program.gives[i]];
    Free(array.buffer);  // of a donated one only the handle is left
    array.buffer = results[i];
  }
}

size_t ReadToken(const Array& array) {
  int32_t token = 0;
  PJRT_Buffer_ToHostBuffer_Args copy{};
  copy.src = array.buffer;
  copy.dst = &token;
  copy.dst_size = sizeof(token);
  CALL(PJRT_Buffer_ToHostBuffer, copy);
  Await(copy.event);
  return static_cast<size_t>(token);
}

bool Stops(const Model& model, size_t token) {
  for (const size_t id : model.stop) {
    if (id == token) return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) Fail("usage", "host PLUGIN.so FOLDER");
  const std::string folder = argv[2];
  Model model = ReadModel(folder + "/host.txt");

  LoadPlugin(argv[1]);
  PJRT_Client_Create_Args create{};
  CALL(PJRT_Client_Create, create);
  PJRT_Client_AddressableDevices_Args devices{};
  devices.client = create.client;
  CALL(PJRT_Client_AddressableDevices, devices);
  if (devices.num_addressable_devices == 0) Fail("devices", "there are none");
  model.prefill.executable = Compile(create.client, folder + "/prefill.mlir");
  model.decode.executable = Compile(create.client, folder + "/decode.mlir");
  Upload(create.client, devices.addressable_devices[0], folder + "/arrays.bin", model);

  std::vector<uintptr_t> places;
  for (const size_t i : model.caches) places.push_back(Address(model.arrays[i].buffer));
  for (size_t step = 0; step < model.steps; ++step) {
    Run(step == 0 ? model.prefill : model.decode, model.arrays);
    const size_t token = ReadToken(model.arrays[model.token]);
    std::cout << token << (step + 1 < model.steps ? " " : "") << std::flush;
    if (Stops(model, token)) break;
  }
  std::cout << "\n";

  size_t moved = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    moved += places[i] != Address(model.arrays[model.caches[i]].buffer);
  }
  std::cerr << model.caches.size() << " caches, " << moved << " of them moved\n";
  for (const Array& array : model.arrays) Free(array.buffer);
  for (PJRT_LoadedExecutable* executable : {model.prefill.executable, model.decode.executable}) {
    PJRT_LoadedExecutable_Destroy_Args destroy{};
    destroy.executable = executable;
    CALL(PJRT_LoadedExecutable_Destroy, destroy);
  }
  PJRT_Client_Destroy_Args destroy{};
  destroy.client = create.client;
  CALL(PJRT_Client_Destroy, destroy);
  return moved == 0 ? 0 : 1;
}
