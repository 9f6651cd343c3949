// Where the parts of a tile lie in shared memory, so that no two lanes want the same banks.
#pragma once
#include <cstdint>

namespace intarsia::cuda {

// A row-major tile in shared memory, in units of 16 bytes. Unit u of row r lies in the place of
// unit u ^ x(r), so that the same unit of 8 successive rows falls into 8 different groups of banks.
// A tile must begin at a multiple of 128 bytes; adding a multiple of 8 rows keeps an address valid.
template <int kBytes>
struct SwizzledRows {
  static constexpr int kRowBytes = kBytes;
  static constexpr int kUnits = kBytes / 16;
  static_assert(kUnits % 4 == 0);
  static constexpr int kMask = kUnits % 8 == 0 ? 7 : 3;

  static __device__ __forceinline__ int Offset(int row, int unit) {
    const int x = kMask == 7 ? row & 7 : row >> 1 & 3;
    return row * kRowBytes + ((unit ^ x) << 4);
  }
  // From the address of unit 0 of a row to that of any unit; from unit 1, to any odd one.
  static __device__ __forceinline__ uint32_t AtUnit(uint32_t address, int unit) {
    return (address ^ ((unit & kMask) << 4)) + ((unit & ~kMask) << 4);
  }
  // From the address of unit 0 or 1 of a row to that of unit 0 or 1 of its `step`-th 32 bytes.
  static __device__ __forceinline__ uint32_t AtStep(uint32_t address, int step) {
    return AtUnit(address, 2 * step);
  }
};

}  // namespace intarsia::cuda
