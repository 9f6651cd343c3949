// What a custom call of the bridge runs: an op of torch's dispatcher with all but its tensors.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "src/bridge/bridge.h"
#include "src/core/status.h"

namespace intarsia::bridge {

struct Argument {
  intarsia_bridge_kind kind;
  bool optional;
  int result;
  uint64_t bits;
  std::string text;
};

struct Plan {
  std::string text;                // as the program has it
  std::string op, overload, name;  // "aten::mm", "out", "aten::mm.out"
  bool python;
  std::vector<Argument> arguments;  // a list, then its elements
  std::vector<intarsia_bridge_return> schema_returns;
  std::vector<int> returns;       // a result's number, or INTARSIA_BRIDGE_DROP
  int num_operands, num_results;  // each result is written once, by an argument or a return
};

// The plan of a text, which Python reads if this process has not seen it. Plans live for ever.
Status FindPlan(std::string_view text, const Plan*& plan);

// The call that Python makes in place of torch's C function.
Status RunInPython(intarsia_bridge_call& call);

}  // namespace intarsia::bridge
