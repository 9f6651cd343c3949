#include "src/ops/rms_norm_per_block_quant/rms_norm_per_block_quant.h"

#include "src/norm/groups.h"

namespace intarsia {

Status RmsNormPerBlockQuant::Check() const {
  if (const int64_t groups = x.dim(-1) / group_size; groups > kMaxNormGroups)
    return Unimplemented(Text("a row of x has ", groups, " groups; built are up to ",
                              static_cast<int64_t>(kMaxNormGroups)));
  return {};
}

}  // namespace intarsia
