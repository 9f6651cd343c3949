// An XLA call without XLA: the call frame that a handler sees, and an API table in which only what
// a handler may use is alive.
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "src/core/cpu/thread_pool.h"
#include "xla/ffi/api/c_api.h"

// Opaque in the C API.
struct XLA_FFI_Error {
  int code;
  std::string message;
};

namespace intarsia::stub {

struct Buffer {
  XLA_FFI_DataType dtype;
  std::vector<int64_t> dims;
  void* data = nullptr;
};

struct Array {};  // an attribute of a kind that no op has
using Value = std::variant<bool, int32_t, int64_t, float, double, std::string, Array>;

struct Frame {
  std::vector<Buffer> operands, results;
  std::map<std::string, Value> attributes;  // XLA passes them sorted by name
};

struct Outcome {
  int code = 0;
  std::string message;
};

inline int pool_threads = 3;  // set before the first call

inline const ThreadPool& Pool() {
  static const ThreadPool pool(pool_threads);
  return pool;
}

inline const XLA_FFI_Api* Api() {
  static const XLA_FFI_Api api = [] {
    XLA_FFI_Api table{};
    table.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    table.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR,
                         XLA_FFI_API_MINOR};
    table.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args* args) {
      return new XLA_FFI_Error{args->errc, args->message};
    };
    table.XLA_FFI_Error_GetMessage = [](XLA_FFI_Error_GetMessage_Args* args) {
      args->message = args->error->message.c_str();
    };
    table.XLA_FFI_Error_Destroy = [](XLA_FFI_Error_Destroy_Args* args) { delete args->error; };
    table.XLA_FFI_Stream_Get = [](XLA_FFI_Stream_Get_Args* args) -> XLA_FFI_Error* {
      args->stream = nullptr;
      return nullptr;
    };
    table.XLA_FFI_ThreadPool_NumThreads =
        [](XLA_FFI_ThreadPool_NumThreads_Args* args) -> XLA_FFI_Error* {
      *args->num_threads = Pool().num_threads();
      return nullptr;
    };
    table.XLA_FFI_ThreadPool_Schedule =
        [](XLA_FFI_ThreadPool_Schedule_Args* args) -> XLA_FFI_Error* {
      Pool().Schedule([task = args->task, data = args->data] { task(data); });
      return nullptr;
    };
    return table;
  }();
  return &api;
}

inline Outcome Take(XLA_FFI_Error* error) {
  const std::unique_ptr<XLA_FFI_Error> owned(error);
  return owned ? Outcome{owned->code, owned->message} : Outcome{};
}

// The C structs of a frame, which point into each other.
class Encoder {
 public:
  explicit Encoder(const Frame& frame) {
    for (const Buffer& buffer : frame.operands) Add(buffer, operand_rows_);
    for (const Buffer& buffer : frame.results) Add(buffer, result_rows_);
    for (const auto& [name, value] : frame.attributes) Add(name, value);
    for (auto& row : operand_rows_) operands_.push_back(row.get());
    for (auto& row : result_rows_) results_.push_back(row.get());
    operand_types_.assign(operands_.size(), XLA_FFI_ArgType_BUFFER);
    result_types_.assign(results_.size(), XLA_FFI_RetType_BUFFER);
    for (auto& name : names_) name_pointers_.push_back(name.get());
  }

  XLA_FFI_CallFrame CallFrame(XLA_FFI_ExecutionStage stage) {
    XLA_FFI_CallFrame frame{};
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.api = Api();
    frame.stage = stage;
    frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, static_cast<int64_t>(operands_.size()),
                  operand_types_.data(), operands_.data()};
    frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, static_cast<int64_t>(results_.size()),
                  result_types_.data(), results_.data()};
    frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE,
                   nullptr,
                   static_cast<int64_t>(names_.size()),
                   attribute_types_.data(),
                   name_pointers_.data(),
                   attributes_.data()};
    return frame;
  }

 private:
  // A copy of `value` that lives as long as this.
  template <class T>
  T* Keep(T value) {
    auto kept = std::make_shared<T>(std::move(value));
    kept_.push_back(kept);
    return kept.get();
  }

  void Add(const Buffer& buffer, std::vector<std::unique_ptr<XLA_FFI_Buffer>>& rows) {
    auto* dims = Keep(buffer.dims);
    rows.push_back(std::make_unique<XLA_FFI_Buffer>(
        XLA_FFI_Buffer{XLA_FFI_Buffer_STRUCT_SIZE, nullptr, buffer.dtype, buffer.data,
                       static_cast<int64_t>(dims->size()), dims->data()}));
  }

  void Add(const std::string& name, const Value& value) {
    auto* text = Keep(name);
    names_.push_back(
        std::make_unique<XLA_FFI_ByteSpan>(XLA_FFI_ByteSpan{text->data(), text->size()}));
    const auto scalar = [&](XLA_FFI_DataType dtype, auto v) {
      attribute_types_.push_back(XLA_FFI_AttrType_SCALAR);
      attributes_.push_back(Keep(XLA_FFI_Scalar{dtype, Keep(v)}));
    };
    if (const auto* v = std::get_if<bool>(&value)) scalar(XLA_FFI_DataType_PRED, *v);
    if (const auto* v = std::get_if<int32_t>(&value)) scalar(XLA_FFI_DataType_S32, *v);
    if (const auto* v = std::get_if<int64_t>(&value)) scalar(XLA_FFI_DataType_S64, *v);
    if (const auto* v = std::get_if<float>(&value)) scalar(XLA_FFI_DataType_F32, *v);
    if (const auto* v = std::get_if<double>(&value)) scalar(XLA_FFI_DataType_F64, *v);
    if (const auto* v = std::get_if<std::string>(&value)) {
      auto* kept = Keep(*v);
      attribute_types_.push_back(XLA_FFI_AttrType_STRING);
      attributes_.push_back(Keep(XLA_FFI_ByteSpan{kept->data(), kept->size()}));
    }
    if (std::holds_alternative<Array>(value)) {
      attribute_types_.push_back(XLA_FFI_AttrType_ARRAY);
      attributes_.push_back(Keep(XLA_FFI_Array{XLA_FFI_DataType_S64, 1, Keep(int64_t{1})}));
    }
  }

  std::vector<std::shared_ptr<void>> kept_;
  std::vector<std::unique_ptr<XLA_FFI_Buffer>> operand_rows_, result_rows_;
  std::vector<void*> operands_, results_, attributes_;
  std::vector<XLA_FFI_ArgType> operand_types_;
  std::vector<XLA_FFI_RetType> result_types_;
  std::vector<XLA_FFI_AttrType> attribute_types_;
  std::vector<std::unique_ptr<XLA_FFI_ByteSpan>> names_;
  std::vector<XLA_FFI_ByteSpan*> name_pointers_;
};

inline Outcome Invoke(XLA_FFI_Handler* handler, const Frame& frame,
                      XLA_FFI_ExecutionStage stage = XLA_FFI_ExecutionStage_EXECUTE) {
  Encoder encoder(frame);
  XLA_FFI_CallFrame call_frame = encoder.CallFrame(stage);
  return Take(handler(&call_frame));
}

// What XLA asks of a handler when it is registered.
inline XLA_FFI_Metadata Metadata(XLA_FFI_Handler* handler) {
  XLA_FFI_Metadata metadata{};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  metadata.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension{
      {XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata, nullptr}, &metadata};
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.extension_start = &extension.extension_base;
  frame.api = Api();
  Take(handler(&frame));
  return metadata;
}

}  // namespace intarsia::stub
