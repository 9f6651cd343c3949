// The fixture of the tests that go through every op: made from the specs, so that a new op is
// covered by itself.
#pragma once
#include <gtest/gtest.h>

#include <ostream>
#include <string>
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

  std::vector<Example> Examples(DType type = DType::kF32, const Sizes& sizes = SmallSizes()) const {
    return ExampleMaker(op, type, sizes).LegalCalls();
  }

  // Applies `change` to a legal frame and expects that the call is refused in the form of our
  // messages.
  template <class Change>
  void ExpectRefused(const Call& call, const std::string& what, Change change,
                     std::string_view mentions = "") const {
    Memory memory = MakeFrame(op, call);
    change(memory.frame);
    const Outcome outcome = Invoke(execute, memory.frame);
    SCOPED_TRACE(what + " of " + ExampleMaker::Describe(op, call));
    EXPECT_TRUE(outcome.code == XLA_FFI_Error_Code_INVALID_ARGUMENT ||
                outcome.code == XLA_FFI_Error_Code_UNIMPLEMENTED)  // legal, but not built
        << outcome.code << ": " << outcome.message;
    EXPECT_TRUE(outcome.message.starts_with(Text(op.name, ": "))) << outcome.message;
    EXPECT_NE(outcome.message.find(mentions), std::string::npos) << outcome.message;
  }
};

// "rms_norm_Host"
inline std::string TestName(const testing::TestParamInfo<Target>& target) {
  return Text(target.param.op->name, "_", target.param.handler.platform);
}

}  // namespace intarsia::stub
