// The ops as kernels of torch's dispatcher. Only this folder knows torch, by its stable C
// functions.
#pragma once
#include <string_view>

#include "src/core/op_info.h"

namespace intarsia::torch {

// intarsia_register_with_torch in intarsia.h.
Status Register(const OpInfo& op, std::string_view name, int32_t form);

}  // namespace intarsia::torch
