// The ops of this library.
#pragma once
#include <span>

#include "src/core/op_info.h"

namespace intarsia {

std::span<const OpInfo> Ops();
const OpInfo* FindOp(std::string_view name);  // by name or by alias of its target; null if unknown

}  // namespace intarsia
