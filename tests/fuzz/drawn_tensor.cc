// A drawn tensor's memory: how much it is, and what it holds.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "tests/fuzz/drawn_call.h"

namespace intarsia::fuzz {
namespace {

// The largest index that small examples have a use for, and what lies around the edges of types.
int64_t Index(uint64_t word) {
  constexpr int64_t kWild[] = {-1,
                               -2,
                               1000,
                               std::numeric_limits<int32_t>::min(),
                               std::numeric_limits<int32_t>::max(),
                               std::numeric_limits<int64_t>::min(),
                               std::numeric_limits<int64_t>::max(),
                               int64_t{1} << 32};
  if (word % 8 == 0) return kWild[word >> 8 & 7];
  return static_cast<int64_t>(word >> 8) & 15;
}

uint64_t Next(uint64_t& state) {  // Steele, Lea and Flood 2014: SplitMix
  uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

// The bits of a finite number, or of a code.
uint64_t Number(DType dtype, uint64_t n) {
  constexpr auto kNumbers = [] {
    std::array<uint32_t, 16> bits{};
    for (size_t i = 0; i < bits.size(); ++i)
      bits[i] = std::bit_cast<uint32_t>(0.25f + 0.125f * static_cast<float>(i));
    return bits;
  }();
  if (dtype == DType::kBool) return n & 1;
  if (dtype == DType::kF16) return 0x3400 + n % 1024;
  if (dtype == DType::kBF16) return kNumbers[n % 16] >> 16;
  return dtype == DType::kF32 ? kNumbers[n % 16] : 0x30 + n % 16;
}

}  // namespace

std::optional<Extent> ExtentOf(const intarsia_tensor& tensor) {
  if (tensor.dtype < 0 || tensor.dtype > INTARSIA_F8E8M0FNU || tensor.rank < 0 ||
      tensor.rank > INTARSIA_MAX_RANK)
    return std::nullopt;
  const std::span<const int64_t> dims(tensor.dims, static_cast<size_t>(tensor.rank));
  if (std::ranges::any_of(dims, [](int64_t size) { return size < 0; })) return std::nullopt;
  if (std::ranges::find(dims, 0) != dims.end()) return Extent{};
  constexpr __int128 kMost = kMostBytes;
  __int128 low = 0, high = 0;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 2) continue;
    const __int128 reach = static_cast<__int128>(tensor.strides[i]) * (dims[i] - 1);
    if (reach < -kMost || reach > kMost) return std::nullopt;
    (reach < 0 ? low : high) += reach;
  }
  const int bytes = intarsia::Bytes(static_cast<DType>(tensor.dtype));
  const __int128 all = (high - low + 1) * bytes;
  if (all > kMost) return std::nullopt;
  // Zero strides make many elements of few bytes.
  int64_t elements = 1;
  for (int i = 0; i < tensor.rank; ++i)
    if (__builtin_mul_overflow(elements, tensor.dims[i], &elements) ||
        elements > static_cast<int64_t>(kMostBytes))
      return std::nullopt;
  return Extent{static_cast<size_t>(all), static_cast<size_t>(-low * bytes)};
}

int64_t Elements(const intarsia_tensor& tensor) {
  int64_t elements = 1;
  for (int i = 0; i < tensor.rank; ++i)
    if (__builtin_mul_overflow(elements, tensor.dims[i], &elements)) return 0;  // one of them is 0
  return elements;
}

bool IsIndex(const intarsia_tensor& tensor) {
  return tensor.dtype == INTARSIA_I32 || tensor.dtype == INTARSIA_I64;
}

void FillMemory(const DrawnTensor& drawn, std::vector<unsigned char>& memory) {
  uint64_t state = drawn.seed;
  const int kind = drawn.fill % 4;
  const auto dtype = static_cast<DType>(drawn.tensor.dtype);
  const auto width = static_cast<size_t>(intarsia::Bytes(dtype));
  const bool index = IsIndex(drawn.tensor);
  if (kind == 3 && !index && dtype != DType::kBool) {  // any bits, NaN and inf among them
    for (size_t at = 0; at < memory.size(); at += 8) {
      const uint64_t word = Next(state);
      std::memcpy(memory.data() + at, &word, std::min<size_t>(8, memory.size() - at));
    }
    return;
  }
  uint64_t counter = 0;
  for (size_t at = 0; at + width <= memory.size(); at += width, ++counter) {
    uint64_t word = counter;
    if (index && kind == 0) {
      word += drawn.seed;
    } else if (index) {
      word = static_cast<uint64_t>(Index(Next(state)));
      if (kind == 2) word %= 16;  // within most ranges
    } else {
      word = Number(dtype, drawn.seed + (kind == 0 ? counter : counter * counter * 7));
    }
    std::memcpy(memory.data() + at, &word, width);
  }
}

std::vector<bool> MaskOf(const intarsia_tensor& tensor, const Extent& extent) {
  std::vector<bool> mask(extent.bytes);
  const int64_t width = intarsia::Bytes(static_cast<DType>(tensor.dtype));
  for (int64_t element = Elements(tensor); element-- > 0;) {
    int64_t rest = element, at = static_cast<int64_t>(extent.first);
    for (int i = tensor.rank; i-- > 0; rest /= tensor.dims[i])
      if (tensor.dims[i] > 1) at += rest % tensor.dims[i] * tensor.strides[i] * width;
    for (int64_t byte = 0; byte < width; ++byte) mask[static_cast<size_t>(at + byte)] = true;
  }
  return std::ranges::find(mask, false) == mask.end() ? std::vector<bool>() : mask;
}

}  // namespace intarsia::fuzz
