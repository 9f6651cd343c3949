// Runs a plan over XLA's buffers.
#pragma once
#include <span>

#include "src/bridge/plan.h"

namespace intarsia::bridge {

// A dense buffer of XLA. `dtype` is torch's name of it; null if torch has none.
struct Buffer {
  void* data;
  const char* dtype;
  std::span<const int64_t> dims;
};

struct Place {
  int device = -1;  // of CUDA; -1: the CPU
  void* stream = nullptr;
  bool capturable = false;
};

// Calls the op, and copies what it returns into the results that are not buffers it wrote itself.
Status Run(const Plan& plan, std::span<const Buffer> operands, std::span<const Buffer> results,
           Place place);

}  // namespace intarsia::bridge
