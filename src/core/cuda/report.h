// Which kernels a GPU gets, as the families that choose among several tell it: for `intarsia doctor`.
#pragma once
#include <string>
#include <vector>

#include "src/core/cuda/device.h"

namespace intarsia::cuda {

struct KernelChoice {
  std::string call;    // "prefill, bf16, d=128"
  std::string kernel;  // "portable, small tiles"
};

// A namespace-scope constant registers a family's report, as Kernel does a kernel.
class ChoiceReport {
 public:
  using Function = std::vector<KernelChoice> (*)(const Device&);
  explicit ChoiceReport(Function function);

 private:
  friend std::vector<KernelChoice> ChoicesOn(const Device& device);
  Function function_;
  const ChoiceReport* next_;  // registered before this one
};

// Those of all families.
std::vector<KernelChoice> ChoicesOn(const Device& device);

// Every GPU that CUDA shows, in its order.
Status AllDevices(std::vector<Device>& devices);

}  // namespace intarsia::cuda
