#include "src/core/cuda/peers.h"

#include <cuda_runtime.h>

#include "src/core/cuda/launch.h"

namespace intarsia::cuda {
namespace {

// From the current device, which is `device`.
Status EnableAccessTo(int32_t peer, int32_t device) {
  int can = 0;
  INTARSIA_RETURN_IF_ERROR(
      ToStatus(cudaDeviceCanAccessPeer(&can, device, peer), "cudaDeviceCanAccessPeer"));
  if (!can)
    return Unimplemented(Text("GPU ", device, " cannot reach the memory of GPU ", peer,
                              ": there is no NVLink or PCIe path between them"));
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error != cudaErrorPeerAccessAlreadyEnabled)
    return ToStatus(error, "cudaDeviceEnablePeerAccess");
  cudaGetLastError();  // or the next call would report it
  return {};
}

Status EnableOn(int32_t device, std::span<const int32_t> peers) {
  INTARSIA_RETURN_IF_ERROR(ToStatus(cudaSetDevice(device), "cudaSetDevice"));
  for (const int32_t peer : peers)
    if (peer != device) INTARSIA_RETURN_IF_ERROR(EnableAccessTo(peer, device));
  return {};
}

}  // namespace

Status EnablePeerAccess(std::span<const int32_t> devices) {
  int before = 0;
  INTARSIA_RETURN_IF_ERROR(ToStatus(cudaGetDevice(&before), "cudaGetDevice"));
  Status status;
  for (size_t i = 0; i < devices.size() && status.ok(); ++i) status = EnableOn(devices[i], devices);
  INTARSIA_RETURN_IF_ERROR(ToStatus(cudaSetDevice(before), "cudaSetDevice"));
  return status;
}

}  // namespace intarsia::cuda
