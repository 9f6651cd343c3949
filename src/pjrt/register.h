// Registers handlers with a PJRT plugin.
#pragma once
#include <span>

#include "intarsia/intarsia.h"
#include "src/core/status.h"

namespace intarsia::pjrt {

// Through the extension for GPU custom calls those of "CUDA", or, where the plugin has none,
// through the FFI extension those of "Host".
Status Register(const PJRT_Api* api, std::span<const intarsia_handler> handlers);

}  // namespace intarsia::pjrt
