#include "src/ops/all_reduce_fused_add_rms_norm/all_reduce_fused_add_rms_norm.h"

namespace intarsia {

Status AllReduceFusedAddRmsNorm::Check() const {
  const int64_t n = x.dim(-1), rows = n == 0 ? 0 : x.size() / n;
  const int64_t row_bytes = n * Bytes(x.dtype), pack_bytes = inbox.dim(3) * Bytes(inbox.dtype);
  if (addresses.dim(0) < 2)
    return InvalidArgument("addresses has ranks+1=1, expected at least one rank");
  if (rows > inbox.dim(1))
    return InvalidArgument(
        Text("x has ", rows, " rows, expected at most the inbox's max_rows=", inbox.dim(1)));
  if (row_bytes % pack_bytes != 0 || row_bytes > inbox.dim(2) * pack_bytes)
    return InvalidArgument(Text("x has rows of ", row_bytes, " bytes, expected a multiple of ",
                                pack_bytes, " up to the inbox's ", inbox.dim(2) * pack_bytes));
  return {};
}

}  // namespace intarsia
