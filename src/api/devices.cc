#include "src/api/devices.h"

#include "src/core/config.h"
#include "src/core/json.h"
#ifdef INTARSIA_WITH_CUDA
#include "src/core/cuda/report.h"
#endif

namespace intarsia {

Status Devices(std::string& text) {
  INTARSIA_RETURN_IF_ERROR(GetConfig().status);
#ifdef INTARSIA_WITH_CUDA
  std::vector<cuda::FoundDevice> devices;
  INTARSIA_RETURN_IF_ERROR(cuda::AllDevices(devices));
  const auto kernel_json = [](const cuda::KernelChoice& choice) {
    return json::Object().String("call", choice.call).String("kernel", choice.kernel).Done();
  };
  text = json::List(devices, [&](const cuda::FoundDevice& found) {
    json::Object object;
    object.Number("index", found.index);
    if (!found.status.ok()) return object.String("error", found.status.message).Done();
    const cuda::Device& device = found.device;
    return object.Number("arch", device.arch)
        .Number("multiprocessors", device.sms)
        .Number("shared_bytes_per_block", device.shared_bytes_per_block)
        .Number("shared_bytes_per_multiprocessor", device.shared_bytes_per_sm)
        .Number("l2_bytes", device.l2_bytes)
        .Json("kernels", json::List(cuda::ChoicesOn(device), kernel_json))
        .Done();
  });
#else
  text = "[]";
#endif
  return {};
}

}  // namespace intarsia
