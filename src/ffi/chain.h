// A custom call that runs several calls of ops, one after the other. On a GPU each of their kernels
// may begin while the one before it ends (LaunchConfig::overlaps_previous), which CUDA graphs that
// XLA makes of custom calls do not allow from one custom call to the next.
//
// Its attributes:
//   op_i, attributes_i: an op's name and its attributes; calls that share both share i;
//   program: the calls in order, as "0 2 5:2,512 > 7 8; 1 8 3 > 9;".
// Each call is `i operands > results;`. Buffers are numbered: the custom call's operands, then its
// results. `5:2,512` views buffer 5 as [2, 512]. A later call may overwrite a result whose value
// nobody reads any more.
#pragma once
#include <string_view>

#include "src/ffi/decoder.h"

namespace intarsia {

inline constexpr std::string_view kChain = "chain";

// Decodes, checks and runs one call after the other, up to the first that fails.
ffi::Error RunChain(const XlaFrame& frame, const RunCall& run);

}  // namespace intarsia
