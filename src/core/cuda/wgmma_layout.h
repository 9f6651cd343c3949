// Where the operands of wgmma lie in shared memory, and its results in registers. Host and device,
// so that tests check the arithmetic on a CPU.
//
// A tile of 16-bit elements is cut into panels of 64 columns. A panel's row has 128 bytes, the span
// of the 128-byte swizzle, and the rows of a panel follow each other. TMA writes this layout with
// CU_TENSOR_MAP_SWIZZLE_128B; wgmma reads it in both directions. A panel begins at a multiple of
// kSwizzleAtomBytes, because the swizzle is a function of the address.
#pragma once
#include <cstdint>

#include "src/core/index_vector.h"  // INTARSIA_HOST_DEVICE

namespace intarsia::cuda {

inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;
inline constexpr int kSwizzleAtomBytes = 1024;  // 8 rows of a panel

// 16-byte unit u of row r lies in place u ^ (r % 8) of the row. PTX ISA, "Swizzling modes".
INTARSIA_HOST_DEVICE constexpr uint32_t Swizzle128(uint32_t byte) {
  return byte ^ ((byte >> 7 & 7) << 4);
}

// The byte of an element in a tile whose panels have `panel_rows` rows.
INTARSIA_HOST_DEVICE constexpr uint32_t PanelOffset(int panel_rows, int row, int column) {
  const int panel = column / kPanelColumns, byte = column % kPanelColumns * 2;
  return Swizzle128(static_cast<uint32_t>((panel * panel_rows + row) * kPanelRowBytes + byte));
}

// A matrix descriptor with the 128-byte swizzle. PTX ISA, "Matrix Descriptor Format": addresses and
// offsets count 16 bytes.
INTARSIA_HOST_DEVICE constexpr uint64_t MatrixDescriptor(uint32_t address, uint32_t leading_bytes,
                                                         uint32_t stride_bytes) {
  constexpr uint64_t kSwizzle128B = uint64_t{1} << 62;
  return kSwizzle128B | static_cast<uint64_t>(stride_bytes >> 4) << 32 |
         static_cast<uint64_t>(leading_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// A panel tile as an operand whose columns are summed over: A as it is, B transposed. The stride
// leads from 8 rows to the next; the leading offset is ignored. Step k covers columns
// 16 k ... 16 k + 15.
INTARSIA_HOST_DEVICE constexpr uint64_t ColumnsSummed(uint32_t address) {
  return MatrixDescriptor(address, 16, kSwizzleAtomBytes);
}
INTARSIA_HOST_DEVICE constexpr uint32_t ColumnStepBytes(int panel_rows, int k) {
  return static_cast<uint32_t>(k / 4 * panel_rows * kPanelRowBytes + k % 4 * 32);
}

// A panel tile as an operand whose rows are summed over ("MN-major"): A transposed, B as it is. The
// leading offset goes from panel to panel, the stride from 8 rows to the next. Step k covers rows
// 16 k ... 16 k + 15.
INTARSIA_HOST_DEVICE constexpr uint64_t RowsSummed(uint32_t address, int panel_rows) {
  return MatrixDescriptor(address, static_cast<uint32_t>(panel_rows * kPanelRowBytes),
                          kSwizzleAtomBytes);
}
INTARSIA_HOST_DEVICE constexpr uint32_t RowStepBytes(int k) {
  return static_cast<uint32_t>(k * 16 * kPanelRowBytes);
}

// Which element of the 64 x N result is in register i of a thread of the warpgroup. PTX ISA,
// "Register Fragments for wgmma.mma_async.m64nNk16", D. As operand A, each register holds two
// neighbors of the same order, so that results turn into operands without a shuffle.
INTARSIA_HOST_DEVICE constexpr int AccumulatorRow(int thread, int i) {
  return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
}
INTARSIA_HOST_DEVICE constexpr int AccumulatorColumn(int thread, int i) {
  return i / 4 * 8 + thread % 4 * 2 + i % 2;
}

}  // namespace intarsia::cuda
