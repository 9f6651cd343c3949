#include "src/ops/scaled_matmul/scaled_matmul.h"

namespace intarsia {

Status ScaledMatmul::Run(const CudaContext& context) const {
  return matmul::Run(ToParams(), context);
}

}  // namespace intarsia
