#include "src/core/cuda/launch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <mutex>

#include "src/core/config.h"
#include "src/core/round.h"

namespace intarsia::cuda {
namespace {

const Kernel*& Registered() {
  static const Kernel* last = nullptr;
  return last;
}

Status CheckDriver() {
  int driver = 0;
  INTARSIA_RETURN_IF_ERROR(ToStatus(cudaDriverGetVersion(&driver), "cudaDriverGetVersion"));
  if (driver < CUDART_VERSION / 1000 * 1000)
    return Unimplemented(
        Text("the NVIDIA driver speaks CUDA ", driver / 1000, ".", driver % 1000 / 10,
             ", this library needs ", CUDART_VERSION / 1000,
             ".0 or newer: update the driver, or install an intarsia built for its CUDA"));
  return {};
}

std::string Capability(int arch) { return Text(arch / 10, ".", arch % 10); }

Status Describe(int index, Device& device) {
  const auto get = [&](cudaDeviceAttr attribute, auto& value) {
    int got = 0;
    const cudaError_t error = cudaDeviceGetAttribute(&got, attribute, index);
    value = got;
    return ToStatus(error, "cudaDeviceGetAttribute");
  };
  int major = 0, minor = 0;
  INTARSIA_RETURN_IF_ERROR(get(cudaDevAttrComputeCapabilityMajor, major));
  INTARSIA_RETURN_IF_ERROR(get(cudaDevAttrComputeCapabilityMinor, minor));
  INTARSIA_RETURN_IF_ERROR(get(cudaDevAttrMultiProcessorCount, device.sms));
  INTARSIA_RETURN_IF_ERROR(
      get(cudaDevAttrMaxSharedMemoryPerBlockOptin, device.shared_bytes_per_block));
  INTARSIA_RETURN_IF_ERROR(
      get(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device.shared_bytes_per_sm));
  INTARSIA_RETURN_IF_ERROR(get(cudaDevAttrL2CacheSize, device.l2_bytes));
  device.index = index;
  device.arch = device.machine_code = 10 * major + minor;
  if (device.arch < kPortable)
    return Unimplemented(Text("GPU ", index, " has compute capability ", Capability(device.arch),
                              "; this library needs 8.0 (Ampere) or newer"));
  return {};
}

// A device as it is, and as INTARSIA_ARCH wants it seen.
struct LoadedDevice {
  Device real, seen;
};

Status LoadDevice(int index, LoadedDevice& device) {
  INTARSIA_RETURN_IF_ERROR(GetConfig().status);
  INTARSIA_RETURN_IF_ERROR(CheckDriver());
  INTARSIA_RETURN_IF_ERROR(Describe(index, device.real));
  device.seen = device.real;
  if (const int arch = GetConfig().arch) device.seen = HeldBack(device.real, arch);
  for (const Kernel* kernel = Registered(); kernel; kernel = kernel->next())
    INTARSIA_RETURN_IF_ERROR(kernel->Load(device.seen, device.real));
  return {};
}

// Those that have been asked for, by CUDA's ordinal.
std::array<std::atomic<const LoadedDevice*>, kMaxDevices> loaded_devices;

// Null if it has not been asked for yet.
const LoadedDevice* Loaded(int index) {
  return index < kMaxDevices ? loaded_devices[index].load(std::memory_order_acquire) : nullptr;
}

// The dynamic shared memory to ask for, so that a device which is held back keeps no more blocks
// resident than the one that it stands in for.
int HeldBackSharedBytes(const Kernel& kernel, int bytes, const Device& seen) {
  if (bytes == 0) return bytes;
  const Device& real = Loaded(seen.index)->real;
  if (real.shared_bytes_per_sm == seen.shared_bytes_per_sm) return bytes;
  const int fixed = kernel.static_shared_bytes();
  const int resident = std::max(ResidentBlocks(seen, bytes + fixed), 1);
  const int share = std::min(real.shared_bytes_per_sm / resident - kReservedSharedBytes,
                             real.shared_bytes_per_block);
  return std::max(bytes, (share - fixed) / 128 * 128);
}

}  // namespace

Status CurrentDevice(const Device*& device) {
  int index = 0;
  INTARSIA_RETURN_IF_ERROR(ToStatus(cudaGetDevice(&index), "cudaGetDevice"));
  if (index >= kMaxDevices)
    return Unimplemented(Text("GPU ", index, " is one too many, built for are ", kMaxDevices));
  const LoadedDevice* loaded = Loaded(index);
  if (!loaded) {
    static std::mutex mutex;
    static std::array<LoadedDevice, kMaxDevices> devices;
    const std::lock_guard lock(mutex);
    loaded = Loaded(index);  // by the thread that held the mutex?
    if (!loaded) {
      INTARSIA_RETURN_IF_ERROR(LoadDevice(index, devices[index]));
      loaded = &devices[index];
      loaded_devices[index].store(loaded, std::memory_order_release);
    }
  }
  device = &loaded->seen;
  return {};
}

const Device* LoadedCurrentDevice() {
  int index = 0;
  if (cudaGetDevice(&index) != cudaSuccess) return nullptr;
  const LoadedDevice* const loaded = Loaded(index);
  return loaded ? &loaded->seen : nullptr;
}

Status MakeContext(void* stream, CudaContext& context) {
  context.stream = stream;
  return CurrentDevice(context.device);
}

Kernel::Kernel(const char* name, const void* function, int max_shared_bytes, int arch)
    : name_(name),
      function_(function),
      max_shared_bytes_(max_shared_bytes),
      arch_(arch),
      next_(Registered()) {
  Registered() = this;
}

Status Kernel::Load(const Device& device, const Device& real) const {
  if (!HasImage(arch_, device)) return {};
  // Asking for the attributes loads the kernel, which CUDA otherwise does at its first launch.
  cudaFuncAttributes attributes;
  INTARSIA_RETURN_IF_ERROR(ToStatus(cudaFuncGetAttributes(&attributes, function_), name_));
  const int fixed = static_cast<int>(attributes.sharedSizeBytes);
  static_shared_bytes_ = fixed;
  if (max_shared_bytes_ + fixed > device.shared_bytes_per_block) return {};
  // A held-back device may ask for more than the kernel needs: HeldBackSharedBytes.
  const bool held_back =
      max_shared_bytes_ > 0 && device.shared_bytes_per_sm != real.shared_bytes_per_sm;
  const int limit = held_back ? real.shared_bytes_per_block - fixed : max_shared_bytes_;
  if (limit + fixed > 48 * 1024)
    INTARSIA_RETURN_IF_ERROR(ToStatus(
        cudaFuncSetAttribute(function_, cudaFuncAttributeMaxDynamicSharedMemorySize, limit),
        name_));
  if (attributes.ptxVersion >= 90) awaits_.fetch_or(uint64_t{1} << device.index);
  loaded_.fetch_or(uint64_t{1} << device.index);
  return {};
}

Status Kernel::CheckLoaded(const Device& device) const {
  if (loaded_.load(std::memory_order_relaxed) & uint64_t{1} << device.index) return {};
  if (!HasImage(arch_, device))
    return Unimplemented(Text(name_, " is built for compute capability ", Capability(arch_),
                              " alone, GPU ", device.index, " has ",
                              Capability(device.machine_code)));
  return Unimplemented(Text(name_, " needs ", max_shared_bytes_ + static_shared_bytes_.load(),
                            " bytes of shared memory per block, GPU ", device.index, " has ",
                            device.shared_bytes_per_block));
}

Status ToStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return Internal(Text(what, ": ", cudaGetErrorString(error),
                       " (may come from an earlier launch on this stream)"));
}

LaunchConfig GridStride(int64_t items) {
  constexpr int64_t kThreads = 256, kMaxBlocks = 1 << 20;
  return {{std::min(CeilDiv(items, kThreads), kMaxBlocks)}, dim3(kThreads)};
}

dim3 RowBlock(const Device& device, int64_t rows, int64_t items, int kept, int most) {
  constexpr int64_t kFewRows = 4, kSmallBlock = 128;
  if (rows < kFewRows * device.sms) kept = 1;
  const int64_t per_warp = 32 * int64_t{kept};
  if (items <= per_warp) {
    // A short row goes to few threads, which then have as much in flight as those of a long one.
    const int64_t of_row = items < 32 ? CeilDiv<int64_t>(items, kept) : 32;
    const auto x = std::bit_ceil(static_cast<unsigned>(std::max<int64_t>(of_row, 1)));
    return dim3(x, static_cast<unsigned>(kSmallBlock) / x);
  }
  const int64_t threads = CeilDiv(items, per_warp) * 32;
  return dim3(static_cast<unsigned>(std::min<int64_t>(threads, most)));
}

int ResidentClusters(const CudaContext& context, const Kernel& kernel, const LaunchConfig& config) {
  const Device& device = *context.device;
  if (device.arch < kHopper || !kernel.AwaitsPrevious(device) || !kernel.CheckLoaded(device).ok())
    return 0;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {config.cluster.x, config.cluster.y, config.cluster.z};
  cudaLaunchConfig_t launch{};
  launch.gridDim = config.cluster;
  launch.blockDim = config.block;
  launch.dynamicSmemBytes =
      static_cast<size_t>(HeldBackSharedBytes(kernel, config.shared_bytes, device));
  launch.attrs = &attribute;
  launch.numAttrs = 1;
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel.function(), &launch) == cudaSuccess)
    return clusters;
  cudaGetLastError();  // or the next launch would return it
  return 0;
}

Status LaunchUntyped(const CudaContext& context, const Kernel& kernel, const LaunchConfig& config,
                     void** arguments) {
  const Grid& grid = config.grid;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return {};
  if (grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
    return Unimplemented(Text(kernel.name(), " would need a grid of ", grid.x, " x ", grid.y, " x ",
                              grid.z, " blocks, CUDA has room for 2147483647 x 65535 x 65535"));
  const Device& device = *context.device;
  INTARSIA_RETURN_IF_ERROR(kernel.CheckLoaded(device));
  if (config.shared_bytes > kernel.max_shared_bytes())
    return Internal(Text(kernel.name(), " asks for ", config.shared_bytes,
                         " bytes of shared memory, registered are ", kernel.max_shared_bytes()));
  cudaLaunchAttribute attributes[3];
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                        static_cast<unsigned>(grid.z));
  launch.blockDim = config.block;
  launch.dynamicSmemBytes =
      static_cast<size_t>(HeldBackSharedBytes(kernel, config.shared_bytes, device));
  launch.stream = static_cast<cudaStream_t>(context.stream);
  launch.attrs = attributes;
  if (const dim3& c = config.cluster; c.x * c.y * c.z > 1) {
    attributes[launch.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[launch.numAttrs++].val.clusterDim = {c.x, c.y, c.z};
  }
  if (config.overlaps_previous && kernel.AwaitsPrevious(device)) {
    attributes[launch.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[launch.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (config.cooperative) {
    attributes[launch.numAttrs].id = cudaLaunchAttributeCooperative;
    attributes[launch.numAttrs++].val.cooperative = 1;
  }
  // Without attributes the older call is the cheaper one, by the host's time.
  if (launch.numAttrs == 0)
    return ToStatus(cudaLaunchKernel(kernel.function(), launch.gridDim, launch.blockDim, arguments,
                                     launch.dynamicSmemBytes, launch.stream),
                    kernel.name());
  return ToStatus(cudaLaunchKernelExC(&launch, kernel.function(), arguments), kernel.name());
}

}  // namespace intarsia::cuda
