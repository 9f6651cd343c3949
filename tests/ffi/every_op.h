// The fixture of the tests that go through every op: made from the specs, so that a new op is
// covered by itself.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "src/ffi/handlers.h"
#include "src/ops/registry.h"
#include "tests/ffi/example_calls.h"
#include "tests/ffi/example_frames.h"
#include "tests/ffi/stub_frame.h"

namespace intarsia::stub {

struct Target {
  const OpInfo* op;
  intarsia_handler handler;
  XLA_FFI_Handler* execute() const { return reinterpret_cast<XLA_FFI_Handler*>(handler.execute); }
};
inline void PrintTo(const Target& target, std::ostream* out) { *out << target.handler.target; }

inline std::vector<Target> Targets() {
  std::vector<Target> targets;
  for (const intarsia_handler& handler : Handlers())
    for (const OpInfo& op : Ops())
      if (handler.target == Text("intarsia.", op.name)) targets.push_back({&op, handler});
  return targets;
}

class StubFrame : public testing::TestWithParam<Target> {
 protected:
  const OpInfo& op = *GetParam().op;
  XLA_FFI_Handler* execute = GetParam().execute();
  bool on_host = std::string_view(GetParam().handler.platform) == "Host";

  // Made once: a dozen tests go through them.
  const std::vector<Example>& Examples(DType type = DType::kF32,
                                       const Sizes& sizes = SmallSizes()) const {
    static std::map<std::tuple<const OpInfo*, DType, Sizes>, std::vector<Example>> made;
    const auto [found, is_new] = made.try_emplace({&op, type, sizes});
    if (is_new) found->second = ExampleMaker(op, type, sizes).LegalCalls();
    return found->second;
  }

  // Applies `change` to the legal frame of an example's call and expects that it is refused in the
  // form of our messages.
  template <class Change>
  void ExpectRefused(const Call& call, const std::string& what, Change change,
                     std::string_view mentions = "") {
    if (framed_ != &call) memory_ = MakeFrame(op, call), framed_ = &call;
    Frame frame = memory_.frame;  // over the same memory: a refused call writes nothing
    change(frame);
    const Outcome outcome = Invoke(execute, frame);
    // Unimplemented: legal, but not built.
    if ((outcome.code != XLA_FFI_Error_Code_INVALID_ARGUMENT &&
         outcome.code != XLA_FFI_Error_Code_UNIMPLEMENTED) ||
        !outcome.message.starts_with(Text(op.name, ": ")) ||
        outcome.message.find(mentions) == std::string::npos)
      ADD_FAILURE() << what << " of " << ExampleMaker::Describe(op, call) << ": got code "
                    << outcome.code << ", \"" << outcome.message
                    << "\", expected a refusal that mentions \"" << mentions << "\"";
  }

 private:
  const Call* framed_ = nullptr;  // that memory_ is of
  Memory memory_;
};

// "rms_norm_Host"
inline std::string TestName(const testing::TestParamInfo<Target>& target) {
  return Text(target.param.op->name, "_", target.param.handler.platform);
}

}  // namespace intarsia::stub
