// XLA's frames: those of drawn calls, then edited where a program could differ from what we know.
#include <cstring>
#include <set>

#include "tests/fuzz/prepared.h"
#include "tests/fuzz/threads.h"

namespace intarsia::fuzz {
namespace {

// Bits of an element, of dtypes that no op has as well; 0: unknown to the fuzzer.
int64_t BytesOf(XLA_FFI_DataType dtype) {
  switch (dtype) {
    case XLA_FFI_DataType_PRED:
    case XLA_FFI_DataType_S8:
    case XLA_FFI_DataType_U8:
    case XLA_FFI_DataType_F8E4M3FN:
    case XLA_FFI_DataType_F8E5M2:
      return 1;
    case XLA_FFI_DataType_F16:
    case XLA_FFI_DataType_BF16:
      return 2;
    case XLA_FFI_DataType_F32:
    case XLA_FFI_DataType_S32:
      return 4;
    default:
      return 16;
  }
}

class FrameFuzzer {
 public:
  FrameFuzzer(Arena& arena, DrawnCall& call, Bytes& bytes)
      : arena_(arena), call_(call), op_(*call.op), bytes_(bytes) {}

  void Run() {
    XLA_FFI_Handler* const handler = HostHandler(op_);
    if (!handler || !Draw()) return;
    // Of the stages that XLA has: its own header does not return from the text of another
    // (operator<< in xla/ffi/api/api.h).
    if (bytes_.Byte() % 16 == 1) stage_ = static_cast<XLA_FFI_ExecutionStage>(bytes_.Below(4));
    if (!Place()) return;
    bool ran = false;
    RunTwice(arena_, ran, [&] {
      const stub::Outcome outcome = stub::Invoke(handler, frame_, stage_);
      if (outcome.code != 0 && stage_ == XLA_FFI_ExecutionStage_EXECUTE)
        CheckRefusal(op_, outcome.code, outcome.message);
      if (outcome.code != 0 && outcome.message.empty()) Fail("a refusal without a text");
      return outcome.code;
    });
    if (ran && stage_ != XLA_FFI_ExecutionStage_EXECUTE) Fail("runs in another stage");
  }

 private:
  // The frame and edits of it; false of calls that no frame can say.
  bool Draw() {
    std::vector<intarsia_tensor> operands;
    for (const DrawnTensor& drawn : call_.operands) {
      const int32_t dtype = drawn.tensor.dtype;
      if (dtype != INTARSIA_NONE && !ExtentOf(drawn.tensor)) return false;
      operands.push_back(drawn.tensor);
    }
    if (call_.only_c_door || operands.size() > op_.operands.size()) return false;
    const std::vector<intarsia_attribute> attributes = Attributes(call_);
    intarsia_result inferred[INTARSIA_MAX_RESULTS];
    size_t count = 0;
    const std::string name(op_.name);
    std::vector<intarsia_tensor> results;
    if (intarsia_infer(name.c_str(), operands.data(), operands.size(), attributes.data(),
                       attributes.size(), inferred, &count) == 0)
      for (size_t i = 0; i < count; ++i) results.push_back(inferred[i].tensor);
    frame_ = ToFrame(call_, results);
    // Who shares memory with which operand, and what is a workspace, as ToFrame orders them.
    for (const bool workspace : {false, true})
      for (size_t i = 0; i < results.size(); ++i)
        if (op_.results[i].workspace == workspace && results[i].dtype != INTARSIA_NONE)
          infos_.push_back(&op_.results[i]);
    for (int edits = static_cast<int>(bytes_.Below(4)); edits > 0; --edits) Edit();
    return true;
  }

  void Edit() {
    const bool of_results = bytes_.Byte() & 1;
    std::vector<stub::Buffer>& buffers = of_results ? frame_.results : frame_.operands;
    const uint8_t kind = bytes_.Byte() % 8;
    if (kind >= 6) return EditAttribute();
    if (buffers.empty()) return;
    const size_t which = bytes_.Below(buffers.size());
    stub::Buffer& buffer = buffers[which];
    switch (kind) {
      case 0:
        buffer.dtype = static_cast<XLA_FFI_DataType>(bytes_.Below(35));
        break;
      case 1:
        if (!buffer.dims.empty()) buffer.dims[bytes_.Below(buffer.dims.size())] = bytes_.Size();
        break;
      case 2:
        buffer.dims.push_back(bytes_.Size());
        break;
      case 3:
        if (!buffer.dims.empty()) buffer.dims.pop_back();
        break;
      case 4:
        buffers.erase(buffers.begin() + static_cast<std::ptrdiff_t>(which));
        break;
      default:
        if (buffers.size() >= (of_results ? size_t{INTARSIA_MAX_RESULTS} : op_.operands.size()))
          break;
        buffers.push_back(stub::Buffer(buffer));
    }
  }

  void EditAttribute() {
    const size_t which = bytes_.Below(frame_.attributes.size() + 2);
    auto found = frame_.attributes.begin();
    std::string name = "present";
    if (which < frame_.attributes.size()) name = std::next(found, static_cast<long>(which))->first;
    if (which == frame_.attributes.size()) name = bytes_.Text(8);
    stub::Value& value = frame_.attributes[name];
    switch (bytes_.Below(8)) {
      case 0:
        value = (bytes_.Byte() & 1) != 0;
        break;
      case 1:
        value = static_cast<int32_t>(bytes_.Size());
        break;
      case 2:
        value = static_cast<int64_t>(bytes_.Word());
        break;
      case 3:
        value = static_cast<float>(bytes_.Number());
        break;
      case 4:
        value = bytes_.Number();
        break;
      case 5:
        value = bytes_.Text(12);
        break;
      case 6:
        value = stub::Array{};
        break;
      default:
        frame_.attributes.erase(name);
    }
  }

  // Memory as the frame's own sizes say; false if that is too much.
  bool Place() {
    arena_.Clear();
    std::vector<Region*> operands;
    for (size_t i = 0; i < frame_.operands.size(); ++i) {
      Region* region = Add(frame_.operands[i], Text("operand ", static_cast<int64_t>(i)), i);
      if (!region) return false;
      operands.push_back(region);
      DrawnTensor drawn = i < call_.operands.size() ? call_.operands[i] : DrawnTensor{};
      if (drawn.tensor.dtype == INTARSIA_NONE) drawn.tensor.dtype = INTARSIA_F32;
      if (frame_.operands[i].dtype == XLA_FFI_DataType_S32) drawn.tensor.dtype = INTARSIA_I32;
      region->initial.resize(region->bytes);
      FillMemory(drawn, region->initial);
    }
    const auto workspaces = static_cast<size_t>(
        std::ranges::count_if(infos_, [](const ResultInfo* info) { return info->workspace; }));
    for (size_t i = 0; i < frame_.results.size(); ++i) {
      // By its place, as the handler sees it, whatever an edit made it of: workspaces come last.
      const bool is_workspace = i + workspaces >= frame_.results.size();
      const ResultInfo* info =
          !is_workspace && i + workspaces < infos_.size() ? infos_[i] : nullptr;
      const int alias = info ? Position(info->alias_operand) : -1;
      stub::Buffer& result = frame_.results[i];
      if (alias >= 0 && static_cast<size_t>(alias) < operands.size() &&
          BytesIn(result) == static_cast<int64_t>(operands[static_cast<size_t>(alias)]->bytes)) {
        Region* const region = operands[static_cast<size_t>(alias)];
        region->role = Role::kInPlace;
        result.data = region->bytes ? region->begin : nullptr;
        continue;
      }
      Region* region = Add(result, Text("result ", static_cast<int64_t>(i)), i + 1);
      if (!region) return false;
      region->role = is_workspace ? Role::kWorkspace : Role::kResult;
    }
    return true;
  }

  // Where an operand of the spec stands in the frame, as `present` says now.
  int Position(int operand) const {
    if (operand < 0) return -1;
    int64_t present = 0;
    if (const auto found = frame_.attributes.find("present"); found != frame_.attributes.end()) {
      if (const auto* wide = std::get_if<int64_t>(&found->second)) present = *wide;
      if (const auto* narrow = std::get_if<int32_t>(&found->second)) present = *narrow;
    }
    int position = 0;
    size_t optional = 0;
    for (int i = 0; i < operand; ++i)
      position += !op_.operands[static_cast<size_t>(i)].optional || (present >> optional++ & 1);
    return position;
  }

  static int64_t BytesIn(const stub::Buffer& buffer) {
    int64_t bytes = BytesOf(buffer.dtype);
    if (std::ranges::find(buffer.dims, 0) != buffer.dims.end()) return 0;
    for (const int64_t size : buffer.dims)
      if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes) ||
          bytes > static_cast<int64_t>(kMostBytes))
        return size < 0 ? 0 : -1;  // a negative size is refused
    return bytes;
  }

  Region* Add(stub::Buffer& buffer, const std::string& name, size_t place) {
    const int64_t bytes = BytesIn(buffer);
    if (bytes < 0) return nullptr;
    Region& region = arena_.Add(name, Role::kRead, static_cast<size_t>(bytes), place % 2 == 0);
    buffer.data = bytes == 0 ? nullptr : region.begin;  // as XLA does
    return &region;
  }

  Arena& arena_;
  DrawnCall& call_;
  const OpInfo& op_;
  Bytes& bytes_;
  stub::Frame frame_;
  std::vector<const ResultInfo*> infos_;
  XLA_FFI_ExecutionStage stage_ = XLA_FFI_ExecutionStage_EXECUTE;
};

}  // namespace
}  // namespace intarsia::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace intarsia::fuzz;  // NOLINT: this function only
  static Arena arena;
  intarsia::stub::pool_threads = static_cast<int>(Threads());
  const size_t half = size / 2;  // of the call, then of the frame
  Bytes bytes(data, half), rest(data + half, size - half);
  DrawnCall call = Draw(bytes, true);
  if (!IsCheap(call)) return 0;
  describe = [&call] { return call.Describe(); };
  FrameFuzzer(arena, call, rest).Run();
  return 0;
}
