#include "src/core/cpu/simd.h"
#include "src/ops/linear_quantized_int8/linear_quantized_int8.h"

namespace intarsia {

template <>
Status RunCpu<kIsa>(const LinearQuantizedInt8& op, const CpuContext& context) {
  matmul::QuantizedParams params = op.ToParams();
  params.int8_activations = true;
  return matmul::Run(params, context);  // which chooses the instruction set itself
}

}  // namespace intarsia
