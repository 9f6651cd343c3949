#include "src/matmul/cuda/sm90/grouped_warpgroups_kernel.cuh"

namespace intarsia::matmul::sm90 {

template Status LaunchGroupedWarpgroupsOf<DType::kF16>(const QuantizedGroupsParams&,
                                                       const QuantizedPlan&, const CudaContext&);

}  // namespace intarsia::matmul::sm90
