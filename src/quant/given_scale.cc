#include "src/quant/given_scale.h"

namespace intarsia {

Status GivenScaleQuant::Check() const {
  const int64_t n = x.dim(-1), groups = scale.dim(-1);
  if (n == 0 || (groups > 0 && n % groups == 0)) return {};
  return InvalidArgument(
      Text("scale has g=", groups, " groups in a row, which do not divide n=", n));
}

}  // namespace intarsia
