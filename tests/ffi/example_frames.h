// The call frame of an example call, and memory behind it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "src/core/op_info.h"
#include "tests/ffi/stub_frame.h"

namespace intarsia::stub {

inline XLA_FFI_DataType ToXla(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return XLA_FFI_DataType_F32;
    case DType::kF16:
      return XLA_FFI_DataType_F16;
    case DType::kBF16:
      return XLA_FFI_DataType_BF16;
    case DType::kF8E4M3:
      return XLA_FFI_DataType_F8E4M3FN;
    case DType::kF8E5M2:
      return XLA_FFI_DataType_F8E5M2;
    case DType::kU8:
      return XLA_FFI_DataType_U8;
    case DType::kI8:
      return XLA_FFI_DataType_S8;
    case DType::kI32:
      return XLA_FFI_DataType_S32;
    case DType::kI64:
      return XLA_FFI_DataType_S64;
    case DType::kBool:
      return XLA_FFI_DataType_PRED;
    case DType::kF8E8M0:
      return XLA_FFI_DataType_F8E8M0FNU;
    case DType::kOther:
      break;
  }
  return XLA_FFI_DataType_U16;
}

// A frame with memory behind it.
struct Memory {
  Frame frame;
  std::vector<std::unique_ptr<std::vector<unsigned char>>> blocks;

  void* Allocate(int64_t bytes, unsigned char fill) {
    if (bytes == 0) return nullptr;  // as XLA does
    const auto size = static_cast<size_t>(bytes);
    blocks.push_back(std::make_unique<std::vector<unsigned char>>(size, fill));
    return blocks.back()->data();
  }
};

// Integers count up from `first`; numbers are finite and not all alike.
inline void FillOperand(DType dtype, int64_t size, int64_t first, void* data) {
  for (int64_t i = 0; i < size; ++i) {
    if (dtype == DType::kI64) static_cast<int64_t*>(data)[i] = first + i;
    if (dtype == DType::kI32) static_cast<int32_t*>(data)[i] = static_cast<int32_t>(first + i);
    if (dtype == DType::kF32)
      static_cast<float*>(data)[i] = 0.25f + 0.125f * static_cast<float>(i % 13);
    if (dtype == DType::kF16)
      static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(0x3800 + i % 997);
    if (dtype == DType::kBF16)
      static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(0x3f00 + i % 97);
    if (Bytes(dtype) == 1 && dtype != DType::kBool)
      static_cast<uint8_t*>(data)[i] = static_cast<uint8_t>(0x30 + i % 13);
  }
}

inline Value ToValue(const AttrValue& value) {
  if (const auto* b = std::get_if<bool>(&value)) return *b;
  if (const auto* i = std::get_if<int64_t>(&value)) return *i;
  if (const auto* d = std::get_if<double>(&value)) return static_cast<float>(*d);
  return std::string(std::get<std::string_view>(value));
}

// `indices`: where integer operands count from. `poison`: what results hold at first.
inline Memory MakeFrame(const OpInfo& op, const Call& call, int64_t indices = 0,
                        unsigned char poison = 0xa5) {
  Memory memory;
  int64_t present = 0;
  size_t optional = 0;
  std::vector<void*> addresses(op.operands.size());
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const Optional& operand = call.operands[i];
    if (op.operands[i].optional) present |= int64_t{operand.has_value()} << optional++;
    if (!operand) continue;
    addresses[i] = memory.Allocate(operand->size() * Bytes(operand->dtype), 0);
    FillOperand(operand->dtype, operand->size(), indices, addresses[i]);
    memory.frame.operands.push_back(
        {ToXla(operand->dtype), {operand->shape().begin(), operand->shape().end()}, addresses[i]});
  }
  if (optional > 0) memory.frame.attributes["present"] = present;
  for (size_t i = 0; i < op.attributes.size(); ++i)
    if (!std::holds_alternative<std::monostate>(call.attributes[i]))
      memory.frame.attributes[std::string(op.attributes[i].name)] = ToValue(call.attributes[i]);
  for (const bool workspace : {false, true}) {
    for (size_t i = 0; i < op.results.size(); ++i) {
      const Optional& result = call.results[i];
      if (!result || op.results[i].workspace != workspace) continue;
      void* data = op.results[i].alias.empty()
                       ? memory.Allocate(result->size() * Bytes(result->dtype), poison)
                       : addresses[static_cast<size_t>(op.FindOperand(op.results[i].alias))];
      memory.frame.results.push_back(
          {ToXla(result->dtype), {result->shape().begin(), result->shape().end()}, data});
    }
  }
  return memory;
}

// Of the results, in order: those that are not workspaces.
inline size_t NumResults(const OpInfo& op, const Call& call) {
  size_t count = 0;
  for (size_t i = 0; i < op.results.size(); ++i)
    count += call.results[i] && !op.results[i].workspace;
  return count;
}

}  // namespace intarsia::stub
