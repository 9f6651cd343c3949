// The typed FFI handlers of the ops. handlers.cc is the only file that knows XLA.
#pragma once
#include <span>

#include "intarsia/intarsia.h"

namespace intarsia {

// A row for each op, platform and target name.
std::span<const intarsia_handler> Handlers();

}  // namespace intarsia
