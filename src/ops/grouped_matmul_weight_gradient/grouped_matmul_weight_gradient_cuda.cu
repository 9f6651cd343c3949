#include "src/ops/grouped_matmul_weight_gradient/grouped_matmul_weight_gradient.h"

namespace intarsia {

Status GroupedMatmulWeightGradient::Run(const CudaContext& context) const {
  return matmul::Run(ToParams(), context);
}

}  // namespace intarsia
