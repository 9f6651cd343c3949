// Whether memory can be read, written and copied 16 bytes at a time.
#pragma once
#include <cstdint>

namespace intarsia {

inline bool IsAligned16(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

}  // namespace intarsia
