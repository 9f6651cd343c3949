#include "src/api/devices.h"

#include "src/core/json.h"
#ifdef INTARSIA_WITH_CUDA
#include "src/core/cuda/report.h"
#endif

namespace intarsia {

#ifdef INTARSIA_WITH_CUDA
Status Devices(std::string& text) {
  std::vector<cuda::Device> devices;
  INTARSIA_RETURN_IF_ERROR(cuda::AllDevices(devices));
  const auto kernel_json = [](const cuda::KernelChoice& choice) {
    return json::Object().String("call", choice.call).String("kernel", choice.kernel).Done();
  };
  text = json::List(devices, [&](const cuda::Device& device) {
    return json::Object()
        .Number("index", device.index)
        .Number("arch", device.arch)
        .Number("multiprocessors", device.sms)
        .Number("shared_bytes_per_block", device.shared_bytes_per_block)
        .Number("shared_bytes_per_multiprocessor", device.shared_bytes_per_sm)
        .Number("l2_bytes", device.l2_bytes)
        .Json("kernels", json::List(cuda::ChoicesOn(device), kernel_json))
        .Done();
  });
  return {};
}
#else
Status Devices(std::string& text) {
  text = "[]";
  return {};
}
#endif

}  // namespace intarsia
