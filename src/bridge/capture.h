// Whether XLA is capturing a stream into a CUDA graph, as the driver tells.
#pragma once
#include <cstdint>

#include "src/core/status.h"

namespace intarsia::bridge {

// While it lives and a stream is being captured, what a first call does behind the scenes (loading
// a kernel, making a cuBLAS handle, reserving memory) is allowed on this thread; the strict modes
// of capture refuse it.
class Capture {
 public:
  Capture() = default;
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  Status Enter(void* stream);
  bool active() const { return active_; }

 private:
  bool active_ = false;
  int32_t mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; once exchanged, the mode before
};

}  // namespace intarsia::bridge
