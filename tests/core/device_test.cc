// What the library makes of a GPU's description; no GPU is needed.
#include "src/core/cuda/device.h"

#include <gtest/gtest.h>

#include "tests/core/gpus.h"

namespace intarsia::cuda {
namespace {

TEST(Device, PortableKernelsHaveAnImageForEveryGpu) {
  for (const auto& [name, device] : kGpus) EXPECT_TRUE(HasImage(kPortable, device)) << name;
  EXPECT_FALSE(HasImage(kPortable, Device{.arch = 75}));
}

TEST(Device, HopperKernelsHaveAnImageForHopperAlone) {
  for (const auto& [name, device] : kGpus)
    EXPECT_EQ(HasImage(kHopper, device), device.arch == 90) << name;
}

TEST(Device, SharedMemoryFollowsFromTheArchitecture) {
  for (const auto& [name, device] : kGpus) {
    EXPECT_EQ(device.shared_bytes_per_sm, SharedKilobytes(device.arch) * 1024) << name;
    EXPECT_EQ(device.shared_bytes_per_block, device.shared_bytes_per_sm - 1024) << name;
  }
}

TEST(Device, BlocksShareAMultiprocessor) {
  const Device l40s = Gpu("L40S"), h200 = Gpu("H200");
  EXPECT_EQ(ResidentBlocks(l40s, 99 * 1024), 1);
  EXPECT_EQ(ResidentBlocks(l40s, 49 * 1024), 2);
  EXPECT_EQ(ResidentBlocks(l40s, 99 * 1024 + 1), 0);
  EXPECT_EQ(ResidentBlocks(h200, 113 * 1024), 2);
  EXPECT_EQ(ResidentBlocks(h200, 113 * 1024 + 1), 1);
}

TEST(Device, IsHeldBackToAnOlderArchitecture) {
  const Device h200 = Gpu("H200");
  const Device as_a100 = HeldBack(h200, 80), as_l40s = HeldBack(h200, 89);
  EXPECT_EQ(as_a100.arch, 80);
  EXPECT_EQ(as_a100.shared_bytes_per_block, Gpu("A100").shared_bytes_per_block);
  EXPECT_EQ(as_l40s.shared_bytes_per_sm, Gpu("L40S").shared_bytes_per_sm);
  EXPECT_EQ(as_l40s.sms, h200.sms);
  EXPECT_FALSE(HasImage(kHopper, as_a100));
  // Held back to Hopper, a newer GPU still cannot run its machine code.
  EXPECT_TRUE(HasImage(kHopper, HeldBack(h200, 90)));
  EXPECT_FALSE(HasImage(kHopper, HeldBack(Gpu("B200"), 90)));
  EXPECT_FALSE(HasImage(kHopper, HeldBack(Gpu("RTX 5090"), 90)));
  // An A100 stands in for GPUs with less shared memory, too.
  EXPECT_EQ(HeldBack(Gpu("A100"), 86).arch, 80);
  EXPECT_EQ(HeldBack(Gpu("A100"), 86).shared_bytes_per_sm, Gpu("L40S").shared_bytes_per_sm);
  // Never to a newer one, nor to more memory.
  EXPECT_EQ(HeldBack(Gpu("L40S"), 90).arch, 89);
  EXPECT_EQ(HeldBack(Gpu("RTX 5090"), 90).shared_bytes_per_block, 99 * 1024);
  EXPECT_EQ(HeldBack(h200, 90).shared_bytes_per_sm, h200.shared_bytes_per_sm);
}

}  // namespace
}  // namespace intarsia::cuda
