// Element types, their names (as in StableHLO) and sizes.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace intarsia {

// The values are part of the C ABI (intarsia.h); add at the end.
enum class DType : int32_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kU8,
  kI8,
  kI32,
  kI64,
  kBool,
  kF8E8M0,
  kOther
};

struct DTypeRow {
  std::string_view name;
  int bytes;
};
inline constexpr std::array<DTypeRow, 12> kDTypes{{{"f32", 4},
                                                   {"f16", 2},
                                                   {"bf16", 2},
                                                   {"f8e4m3fn", 1},
                                                   {"f8e5m2", 1},
                                                   {"u8", 1},
                                                   {"i8", 1},
                                                   {"i32", 4},
                                                   {"i64", 8},
                                                   {"bool", 1},
                                                   {"f8e8m0fnu", 1},
                                                   {"unknown", 1}}};

constexpr std::string_view Name(DType t) { return kDTypes[static_cast<size_t>(t)].name; }
constexpr int Bytes(DType t) { return kDTypes[static_cast<size_t>(t)].bytes; }
constexpr bool IsFp8(DType t) { return t == DType::kF8E4M3 || t == DType::kF8E5M2; }
constexpr std::optional<DType> DTypeFromName(std::string_view name) {
  for (size_t i = 0; i < kDTypes.size(); ++i)
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  return std::nullopt;
}

}  // namespace intarsia
