#include "src/core/check_range.h"

#include <vector>

#include "src/core/cuda/launch.h"

namespace intarsia {

Status CheckRange(const CudaContext& context, std::string_view what, const TensorView& indices,
                  int64_t low, int64_t high) {
  if (indices.size() == 0) return {};
  const auto stream = static_cast<cudaStream_t>(context.stream);
  std::vector<char> copy(static_cast<size_t>(indices.size() * Bytes(indices.dtype)));
  INTARSIA_RETURN_IF_ERROR(cuda::ToStatus(
      cudaMemcpyAsync(copy.data(), indices.data, copy.size(), cudaMemcpyDeviceToHost, stream),
      "INTARSIA_CHECK"));
  INTARSIA_RETURN_IF_ERROR(cuda::ToStatus(cudaStreamSynchronize(stream), "INTARSIA_CHECK"));
  TensorView on_host = indices;
  on_host.data = copy.data();
  return CheckRange(CpuContext(), what, on_host, low, high);
}

}  // namespace intarsia
