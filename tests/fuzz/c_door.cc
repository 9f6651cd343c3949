// intarsia_infer and intarsia_call, and the same call as an XLA frame.
#include <cstring>

#include "tests/fuzz/prepared.h"
#include "tests/fuzz/threads.h"

namespace intarsia::fuzz {
namespace {

class CDoor {
 public:
  CDoor(Arena& arena, DrawnCall& call) : arena_(arena), call_(call), op_(*call.op) {}

  void Run() {
    const bool placed = PlaceOperands(call_, arena_, regions_);
    attributes_ = Attributes(call_);
    for (const DrawnTensor& drawn : call_.operands) operands_.push_back(drawn.tensor);
    inferred_ = Infer();
    if (inferred_ == 0 && !PlaceResults()) return;
    bool ran = false;
    const auto results = RunTwice(arena_, ran, [&] { return Call(); });
    if (ran && inferred_ != 0) Fail("runs, though intarsia_infer refuses it: " + text_);
    if (ran && !placed) Fail("runs on operands that are null");
    if (call_.platform != "Host" && ran) Fail("runs on " + call_.platform);
    if (!SameInXla() || (inferred_ == 0 && !ran)) return;
    const auto frame = ToFrame(call_, results_);
    arena_.Fill(kPoisons[1]);
    const bool frame_ran = Invoke(frame) == 0;
    arena_.Check(frame_ran, kPoisons[1]);
    if (frame_ran != ran) Fail(ran ? "an XLA frame is refused" : "only an XLA frame runs");
    if (ran && arena_.Results() != results) Fail("other bits through an XLA frame");
  }

 private:
  int32_t Infer() {
    intarsia_result inferred[INTARSIA_MAX_RESULTS];
    std::memset(inferred, 0xa5, sizeof inferred);
    size_t count = 0xa5a5;
    const int32_t code = intarsia_infer(op_.name.data(), operands_.data(), operands_.size(),
                                        attributes_.data(), attributes_.size(), inferred, &count);
    results_.assign(op_.results.size(), intarsia_tensor{});
    for (intarsia_tensor& result : results_) result.dtype = INTARSIA_NONE;
    text_ = code == 0 ? "" : intarsia_error();
    if (code == 0) {
      if (count != op_.results.size()) Fail("intarsia_infer counts other results");
      for (size_t i = 0; i < count; ++i) results_[i] = inferred[i].tensor;
      return code;
    }
    CheckRefusal(op_, code, text_);
    const auto* bytes = reinterpret_cast<const unsigned char*>(inferred);
    if (count != 0xa5a5 || std::any_of(bytes, bytes + sizeof inferred,
                                       [](unsigned char byte) { return byte != 0xa5; }))
      Fail("intarsia_infer refuses, but writes");
    return code;
  }

  // False if a result would be larger than the arena's slots.
  bool PlaceResults() {
    size_t workspace = 0;
    for (size_t i = 0; i < results_.size(); ++i) {
      intarsia_tensor& result = results_[i];
      const ResultInfo& info = op_.results[i];
      if (result.dtype == INTARSIA_NONE) continue;
      if (info.workspace && workspace < call_.workspaces.size())
        std::ranges::copy(call_.workspaces[workspace++], result.dims);
      const int operand = info.alias.empty() && !(call_.in_place && info.mutated_operand >= 0)
                              ? -1
                              : std::max(info.alias_operand, info.mutated_operand);
      if (operand >= 0) {
        if (!InPlace(result, static_cast<size_t>(operand))) return false;
        continue;
      }
      result.strided = 0;
      const std::optional<Extent> extent = ExtentOf(result);
      if (!extent && info.workspace && workspace > 0) continue;  // null, and so refused
      if (!extent) return false;
      if (call_.over && Over(result, extent->bytes)) continue;
      const Role role = info.workspace ? Role::kWorkspace : Role::kResult;
      result.data = arena_.Add(Text("result ", info.name), role, extent->bytes, i % 2 == 0).begin;
    }
    return true;
  }

  bool InPlace(intarsia_tensor& result, size_t operand) {
    result = operands_[operand];
    Region* region = regions_[operand];
    if (!region) return true;  // null: refused, or without elements
    const std::optional<Extent> extent = ExtentOf(result);
    if (!extent) return false;
    if (region->role == Role::kWorkspace) return true;  // another result was laid over it
    region->role = Role::kInPlace;
    if (result.strided && extent->bytes > 0) region->mask = MaskOf(result, *extent);
    return true;
  }

  bool Over(intarsia_tensor& result, size_t bytes) {
    const size_t operand = *call_.over;
    if (operand >= regions_.size() || !regions_[operand]) return false;
    if (regions_[operand]->bytes < bytes || bytes == 0) return false;
    result.data = regions_[operand]->begin;
    regions_[operand]->role = Role::kWorkspace;
    regions_[operand]->mask.clear();
    return true;
  }

  int32_t Call() {
    const int32_t code = intarsia_call(op_.name.data(), call_.platform.c_str(), operands_.data(),
                                       operands_.size(), attributes_.data(), attributes_.size(),
                                       results_.data(), results_.size(), nullptr);
    if (code == 0) return code;
    const std::string text = intarsia_error();
    CheckRefusal(op_, code, text);
    if (inferred_ != 0 && (code != inferred_ || text != text_))
      Fail("intarsia_infer says \"" + text_ + "\", intarsia_call \"" + text + "\"");
    return code;
  }

  // Whether a frame can say the call. A frame's addresses are trusted, the C door's null is not.
  bool SameInXla() const {
    if (call_.only_c_door || call_.platform != "Host" || !HostHandler(op_)) return false;
    for (const DrawnTensor& drawn : call_.operands) {
      const intarsia_tensor& t = drawn.tensor;
      if (t.dtype == INTARSIA_NONE) continue;
      if (t.strided || t.dtype < 0 || t.dtype > INTARSIA_F8E8M0FNU || t.rank < 0 ||
          t.rank > INTARSIA_MAX_RANK)
        return false;
      if (inferred_ == 0 && !t.data && Elements(t) > 0) return false;
    }
    return std::ranges::all_of(call_.attributes, [](const DrawnAttribute& a) {
      return a.type != INTARSIA_ATTR_STRING || a.text;
    });
  }

  int Invoke(const stub::Frame& frame) const {
    const stub::Outcome outcome = stub::Invoke(HostHandler(op_), frame);
    if (outcome.code != 0) CheckRefusal(op_, outcome.code, outcome.message);
    return outcome.code;
  }

  Arena& arena_;
  DrawnCall& call_;
  const OpInfo& op_;
  std::vector<Region*> regions_;
  std::vector<intarsia_tensor> operands_, results_;
  std::vector<intarsia_attribute> attributes_;
  int32_t inferred_ = 0;
  std::string text_;
};

}  // namespace
}  // namespace intarsia::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace intarsia::fuzz;  // NOLINT: this function only
  static Arena arena;
  intarsia::stub::pool_threads = static_cast<int>(Threads());
  Bytes bytes(data, size);
  DrawnCall call = Draw(bytes, false);
  if (!IsCheap(call)) return 0;
  describe = [&call] { return call.Describe(); };
  CDoor(arena, call).Run();
  return 0;
}
