#include "src/ops/grouped_matmul/grouped_matmul.h"

namespace intarsia {

Status GroupedMatmul::Run(const CudaContext& context) const {
  return matmul::Run(ToParams(), context);
}

}  // namespace intarsia
