// Which kernels a GPU gets, as the families that choose among several tell it: for `intarsia
// doctor`.
#pragma once
#include <string>
#include <vector>

#include "src/core/cuda/device.h"

namespace intarsia::cuda {

struct KernelChoice {
  std::string call;    // "prefill bf16 d=128"
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

// A GPU that CUDA shows, or why it cannot run this build. To look at one loads its kernels.
struct FoundDevice {
  int index = 0;
  Status status;
  Device device;
};

// All of them, in CUDA's order; none without a driver.
Status AllDevices(std::vector<FoundDevice>& devices);

}  // namespace intarsia::cuda
