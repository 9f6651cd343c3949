// What a call is, on stderr before it runs, for INTARSIA_LOG=1.
#pragma once
#include "src/core/op_info.h"

namespace intarsia {

// One line: op and platform, operands, attributes with their defaults, results.
void LogCall(const OpInfo& op, const Call& call, Platform platform);

}  // namespace intarsia
