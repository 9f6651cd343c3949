// How many ops this library has, for tables of one function template an op.
#pragma once
#include <cstddef>

namespace intarsia {

inline constexpr size_t kNumOps = 0
#define INTARSIA_OP(folder, Op) +1
#include <ops.inc>  // angle brackets: of the library at hand, not the one beside this file
#undef INTARSIA_OP
    ;

}  // namespace intarsia
