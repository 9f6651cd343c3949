#include "src/bridge/capture.h"

#include <dlfcn.h>

namespace intarsia::bridge {
namespace {

// Of libcuda.so.1, which is in every process that has a stream.
struct Driver {
  int32_t (*stream_is_capturing)(void* stream, int32_t* status) = nullptr;
  int32_t (*exchange_capture_mode)(int32_t* mode) = nullptr;

  Driver() {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
    if (!driver) return;
    const auto find = [&]<class Function>(const char* name, Function*& function) {
      function = reinterpret_cast<Function*>(dlsym(driver, name));
    };
    find("cuStreamIsCapturing", stream_is_capturing);
    find("cuThreadExchangeStreamCaptureMode", exchange_capture_mode);
  }
};

const Driver& GetDriver() {
  static const Driver driver;
  return driver;
}

}  // namespace

Status Capture::Enter(void* stream) {
  const Driver& driver = GetDriver();
  if (!driver.stream_is_capturing || !driver.exchange_capture_mode)
    return Internal("libcuda.so.1 does not tell whether a stream is captured");
  int32_t status = 0;
  if (driver.stream_is_capturing(stream, &status))
    return Internal("libcuda.so.1 does not know XLA's stream");
  active_ = status == 1;  // CU_STREAM_CAPTURE_STATUS_ACTIVE
  if (active_) driver.exchange_capture_mode(&mode_);
  return {};
}

Capture::~Capture() {
  if (active_) GetDriver().exchange_capture_mode(&mode_);
}

}  // namespace intarsia::bridge
