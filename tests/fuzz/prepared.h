// A drawn call with its memory: what both doors are given.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "src/ffi/handlers.h"
#include "src/ops/registry.h"
#include "tests/ffi/example_frames.h"
#include "tests/fuzz/drawn_call.h"

namespace intarsia::fuzz {

// What no oracle can say, in one place. A call with one of these must still stay in its memory.
//  - A result laid over an operand: its contents mean nothing (intarsia.h), be the overlap seen and
//    refused or not.
//  - A workspace: its contents mean nothing.
//  - Two threads (FUZZ_THREADS above 1) and one slot of a cache written twice: either may win.

// Null where the op does not run on CPUs.
inline XLA_FFI_Handler* HostHandler(const OpInfo& op) {
  static const std::vector<XLA_FFI_Handler*> handlers = [] {
    std::vector<XLA_FFI_Handler*> found(Ops().size());
    for (size_t i = 0; i < found.size(); ++i)
      for (const intarsia_handler& handler : Handlers())
        if (handler.target == Text("intarsia.", Ops()[i].name) &&
            std::string_view(handler.platform) == "Host")
          found[i] = reinterpret_cast<XLA_FFI_Handler*>(handler.execute);
    return found;
  }();
  return handlers[static_cast<size_t>(&op - Ops().data())];
}

// The attributes as the C door takes them.
inline std::vector<intarsia_attribute> Attributes(const DrawnCall& call) {
  std::vector<intarsia_attribute> attributes;
  for (const DrawnAttribute& a : call.attributes)
    attributes.push_back({a.name ? a.name->c_str() : nullptr, a.type, a.i64, a.f64,
                          a.text ? a.text->c_str() : nullptr});
  return attributes;
}

// Gives each operand memory; false if one has none that would be large enough, and is null.
inline bool PlaceOperands(DrawnCall& call, Arena& arena, std::vector<Region*>& regions) {
  bool all = true;
  arena.Clear();
  regions.assign(call.operands.size(), nullptr);
  for (size_t i = 0; i < call.operands.size(); ++i) {
    DrawnTensor& drawn = call.operands[i];
    drawn.tensor.data = nullptr;
    if (drawn.tensor.dtype == INTARSIA_NONE) continue;
    const std::optional<Extent> extent = ExtentOf(drawn.tensor);
    if (!extent || drawn.null) {
      all = all && extent && extent->bytes == 0;
      continue;
    }
    const auto& operands = call.op->operands;
    Region& region = arena.Add(std::string(i < operands.size() ? operands[i].name : "one more"),
                               Role::kRead, extent->bytes, drawn.at_front);
    region.initial.resize(extent->bytes);
    FillMemory(drawn, region.initial);
    drawn.tensor.data = region.begin + extent->first;
    regions[i] = &region;
  }
  return all;
}

// The frame of the same call. Only of calls without strides that the C door can say.
inline stub::Frame ToFrame(const DrawnCall& call, const std::vector<intarsia_tensor>& results) {
  stub::Frame frame;
  const auto buffer = [](const intarsia_tensor& t) {
    const auto rank = static_cast<size_t>(t.rank);
    return stub::Buffer{stub::ToXla(static_cast<DType>(t.dtype)), {t.dims, t.dims + rank}, t.data};
  };
  int64_t present = 0;
  size_t optional = 0;
  for (size_t i = 0; i < call.operands.size() && i < call.op->operands.size(); ++i) {
    const intarsia_tensor& tensor = call.operands[i].tensor;
    const bool given = tensor.dtype != INTARSIA_NONE;
    if (call.op->operands[i].optional) present |= int64_t{given} << optional++;
    if (given) frame.operands.push_back(buffer(tensor));
  }
  if (optional > 0) frame.attributes["present"] = present;
  for (const DrawnAttribute& a : call.attributes) {
    stub::Value& value = frame.attributes[*a.name];
    if (a.type == INTARSIA_ATTR_BOOL) value = a.i64 != 0;
    if (a.type == INTARSIA_ATTR_I64) value = a.i64;
    if (a.type == INTARSIA_ATTR_F32) value = a.f64;
    if (a.type == INTARSIA_ATTR_STRING) value = std::string(a.text->c_str());
  }
  for (const bool workspace : {false, true})
    for (size_t i = 0; i < results.size(); ++i)
      if (call.op->results[i].workspace == workspace && results[i].dtype != INTARSIA_NONE)
        frame.results.push_back(buffer(results[i]));
  return frame;
}

// A refusal has a text that begins with the op, and blames the caller. 13 would be an exception.
inline void CheckRefusal(const OpInfo& op, int code, const std::string& text) {
  if (code != 3 && code != 12) Fail(Text("code ", int64_t{code}, ": ", text));
  if (!text.starts_with(Text(op.name, ": ")) || text.size() < op.name.size() + 8)
    Fail("a refusal without a text: \"" + text + "\"");
}

}  // namespace intarsia::fuzz
