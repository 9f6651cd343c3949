#include "src/core/cuda/report.h"

#include <cuda_runtime.h>

#include "src/core/cuda/launch.h"

namespace intarsia::cuda {
namespace {

const ChoiceReport*& Registered() {
  static const ChoiceReport* last = nullptr;
  return last;
}

}  // namespace

ChoiceReport::ChoiceReport(Function function) : function_(function), next_(Registered()) {
  Registered() = this;
}

std::vector<KernelChoice> ChoicesOn(const Device& device) {
  std::vector<KernelChoice> choices;
  for (const ChoiceReport* report = Registered(); report; report = report->next_)
    for (KernelChoice& choice : report->function_(device)) choices.push_back(std::move(choice));
  return choices;
}

Status AllDevices(std::vector<FoundDevice>& devices) {
  int count = 0, before = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count);
      error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {
    cudaGetLastError();  // or the next call would report it
    return {};
  } else if (error != cudaSuccess) {
    return ToStatus(error, "cudaGetDeviceCount");
  }
  INTARSIA_RETURN_IF_ERROR(ToStatus(cudaGetDevice(&before), "cudaGetDevice"));
  for (int i = 0; i < count; ++i) {
    FoundDevice& found = devices.emplace_back();
    const Device* device = nullptr;
    found.index = i;
    found.status = ToStatus(cudaSetDevice(i), "cudaSetDevice");
    if (found.status.ok()) found.status = CurrentDevice(device);
    if (found.status.ok()) found.device = *device;
  }
  return ToStatus(cudaSetDevice(before), "cudaSetDevice");
}

}  // namespace intarsia::cuda
