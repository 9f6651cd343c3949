#include "src/ops/all_reduce_fused_add_rms_norm/all_reduce_fused_add_rms_norm.h"

#include <algorithm>

namespace intarsia {

Status AllReduceFusedAddRmsNorm::Check() const {
  const int64_t n = x.dim(-1), rows = n == 0 ? 0 : x.size() / n;
  const int64_t row_bytes = n * Bytes(x.dtype);
  const int64_t most = std::min(inbox.dim(2), kMaxThreads * kMaxPacks) * kPackBytes;
  if (addresses.dim(0) < 2) return InvalidArgument("addresses has ranks=0, expected at least 1");
  if (rows > inbox.dim(1))
    return InvalidArgument(
        Text("x has ", rows, " rows, expected at most the inbox's max_rows=", inbox.dim(1)));
  if (row_bytes % kPackBytes != 0 || row_bytes > most)
    return InvalidArgument(Text("x has rows of ", row_bytes, " bytes, expected a multiple of ",
                                kPackBytes, " up to ", most));
  return {};
}

}  // namespace intarsia
