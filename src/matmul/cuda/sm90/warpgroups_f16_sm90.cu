#include "src/matmul/cuda/sm90/warpgroups_kernel.cuh"

namespace intarsia::matmul::sm90 {

template Status LaunchWarpgroupsOf<DType::kF16>(const QuantizedParams&, const QuantizedPlan&,
                                                const CudaContext&);

}  // namespace intarsia::matmul::sm90
