// A custom call that runs several calls of ops, one after the other. On a GPU each of their kernels
// may begin while the one before it ends (LaunchConfig::overlaps_previous), which CUDA graphs that
// XLA makes of custom calls do not allow from one custom call to the next.
//
// Its attributes are
//   op_0, attributes_0, op_1, ...: the ops, by name, with attributes that there are calls with;
//   program: the calls in order, as "0 2 5:2,512 > 7 8; 1 8 3 > 9;".
// The first number of a call says which of these ops it is of. Operands follow, then results:
// numbers of the custom call's own operands and results, counted one after the other, with sizes
// where those differ. So a call can take as [2, 512] what another one made as [2, 4, 128]. Calls
// may write to one result in turn, where nobody reads any more what it held.
#pragma once
#include <functional>
#include <string_view>

#include "src/ffi/decoder.h"

namespace intarsia {

inline constexpr std::string_view kChain = "chain";

// Runs a call that has been checked.
using RunCall = std::function<Status(const OpInfo&, const Call&)>;

// Decodes, checks and runs one call after the other, up to the first that fails.
ffi::Error RunChain(const XlaFrame& frame, const RunCall& run);

}  // namespace intarsia
