#include "src/matmul/quantized.h"

namespace intarsia::matmul {

Status CheckColumns(SizeOfOperand blocks, SizeOfOperand groups, NamedSize columns,
                    NamedSize group) {
  const int64_t k = columns.size, expected = CeilDiv(k, kBlockColumns);
  if (blocks.size != expected)
    return InvalidArgument(Text(blocks.operand, " has ", blocks.letter, "=", blocks.size,
                                " blocks of 32 columns, expected ", expected, " for ", columns.name,
                                "=", k));
  if (group.size < 0 || (group.size != 16 && group.size % kBlockColumns != 0))
    return InvalidArgument(
        Text(group.name, " is ", group.size, ", expected 0, 16 or a multiple of 32"));
  const int64_t parts = group.size == 0 ? 1 : CeilDiv(k, group.size);
  if (groups.size == parts) return {};
  return InvalidArgument(Text(groups.operand, " has ", groups.letter, "=", groups.size,
                              " groups, expected ", parts, " for ", columns.name, "=", k, " and ",
                              group.name, "=", group.size));
}

}  // namespace intarsia::matmul
