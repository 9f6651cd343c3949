// The platforms that an op can have a half for. The list is here and nowhere else.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "src/core/status.h"

namespace intarsia {

enum class Platform : uint8_t { kCpu, kCuda };

struct PlatformRow {
  Platform platform;
  std::string_view name;  // in the manifest, in JAX and in messages
  std::string_view xla;   // of XLA's handlers, and of intarsia_call
};
inline constexpr std::array<PlatformRow, 2> kPlatforms{
    {{Platform::kCpu, "cpu", "Host"}, {Platform::kCuda, "cuda", "CUDA"}}};

constexpr std::string_view Name(Platform platform) {
  return kPlatforms[static_cast<size_t>(platform)].name;
}

class PlatformSet {
 public:
  template <class... Platforms>
  constexpr explicit PlatformSet(Platforms... platforms) : bits_((0u | ... | Bit(platforms))) {}

  constexpr bool Has(Platform platform) const { return bits_ & Bit(platform); }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool operator==(const PlatformSet&) const = default;

 private:
  static constexpr unsigned Bit(Platform platform) { return 1u << static_cast<unsigned>(platform); }

  unsigned bits_;
};

// "cpu, cuda"
inline std::string Names(PlatformSet platforms) {
  std::string names;
  for (const PlatformRow& row : kPlatforms)
    if (platforms.Has(row.platform)) names += Text(names.empty() ? "" : ", ", row.name);
  return names;
}

}  // namespace intarsia
