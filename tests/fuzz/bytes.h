// A fuzzer's input, taken from the front. Past its end all is 0, so a short input is a plain call.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

namespace intarsia::fuzz {

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }
  uint8_t Byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  // 0 ... n - 1; 0 of none.
  size_t Below(size_t n) { return n ? Byte() % n : 0; }
  uint64_t Word() {
    uint64_t word = 0;
    for (int i = 0; i < 8; ++i) word = word << 8 | Byte();
    return word;
  }

  // Mostly small; else at an edge of a type or of a kernel's tile.
  int64_t Size() {
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    constexpr int64_t kEdges[] = {-1,        63,        64,        65,        96,
                                  127,       128,       129,       192,       255,
                                  256,       257,       512,       1023,      1024,
                                  1025,      1 << 20,   1 << 24,   1LL << 31, 1LL << 32,
                                  1LL << 33, 1LL << 40, 1LL << 58, 1LL << 62, (1LL << 31) - 1,
                                  kMax / 2,  kMax,      -2,        ~kMax,     ~kMax + 1};
    const uint8_t byte = Byte();
    if (byte < 224) return byte % 40;
    return kEdges[byte - 224 < 30 ? byte - 224 : 0];
  }

  double Number() {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    constexpr double kNumbers[] = {0.0,  1.0,   0.5,        -1.0,        1e-6,  30.0,
                                   -0.0, 1e-45, 1e-300,     1e38,        1e300, -1e300,
                                   kInf, -kInf, 0.0 * kInf, 3.4028235e38};
    return kNumbers[Below(16)];
  }

  std::string Text(size_t most) {
    std::string text;
    for (size_t n = Below(most + 1); n > 0; --n) text += static_cast<char>(Byte());
    return text;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

}  // namespace intarsia::fuzz
