// Groups of a row's neighbors that are quantized by scales of their own, behind a norm.
#pragma once

namespace intarsia {

// Of a row at most: a block keeps the largest number of each in 32 KB of shared memory.
inline constexpr int kMaxNormGroups = 8192;

}  // namespace intarsia
