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

Status AllDevices(std::vector<Device>& devices) {
  int count = 0, before = 0;
  INTARSIA_RETURN_IF_ERROR(ToStatus(cudaGetDeviceCount(&count), "cudaGetDeviceCount"));
  INTARSIA_RETURN_IF_ERROR(ToStatus(cudaGetDevice(&before), "cudaGetDevice"));
  Status status;
  for (int i = 0; i < count && status.ok(); ++i) {
    const Device* device = nullptr;
    status = ToStatus(cudaSetDevice(i), "cudaSetDevice");
    if (status.ok()) status = CurrentDevice(device);
    if (status.ok()) devices.push_back(*device);
  }
  INTARSIA_RETURN_IF_ERROR(ToStatus(cudaSetDevice(before), "cudaSetDevice"));
  return status;
}

}  // namespace intarsia::cuda
