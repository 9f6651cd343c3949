#include "src/ops/linear_quantized/linear_quantized.h"

namespace intarsia {

Status LinearQuantized::Run(const CudaContext& context) const {
  return matmul::Run(ToParams(), context);
}

}  // namespace intarsia
