#include "src/ops/grouped_matmul_quantized/grouped_matmul_quantized.h"

namespace intarsia {

Status GroupedMatmulQuantized::Run(const CudaContext& context) const {
  return matmul::Run(ToParams(), context);
}

}  // namespace intarsia
