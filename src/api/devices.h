// The GPUs as the library sees them, as JSON.
#pragma once
#include <string>

#include "src/core/status.h"

namespace intarsia {

// [{"index": 0, "arch": 89, ..., "kernels": [{"call": ..., "kernel": ...}, ...]}, ...]; no GPU
// without CUDA.
Status Devices(std::string& text);

}  // namespace intarsia
