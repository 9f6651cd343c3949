// What is wrong with an op's spec, as text that the compiler prints: it is a template argument of
// the assertion that fails.
#pragma once
#include <algorithm>
#include <cstddef>
#include <string_view>

namespace intarsia {

template <size_t kSize>
struct FaultText {
  char text[kSize]{};  // ends in 0

  constexpr std::string_view view() const { return text; }
};

// Keeps the first fault that is found.
class FirstFault {
 public:
  static constexpr size_t kMost = 256;  // characters and the 0; what is beyond is cut off

  // Returns false, for `return fault.Is(...)`.
  template <class... Pieces>
  constexpr bool Is(const Pieces&... pieces) {
    if (size_ == 0) (Append(pieces), ...);
    return false;
  }
  constexpr size_t size() const { return size_; }
  constexpr const FaultText<kMost>& text() const { return text_; }

 private:
  constexpr void Append(std::string_view piece) {
    for (const char c : piece)
      if (size_ + 1 < kMost) text_.text[size_++] = c;
  }

  FaultText<kMost> text_;
  size_t size_ = 0;
};

template <FaultText kFault>
struct FaultInSpec {
  static_assert(sizeof(kFault) == 1,
                "the spec of an op is wrong; FaultInSpec<...> in this message says where and why");
};

template <size_t kSize>
constexpr FaultText<kSize> Shortened(const FirstFault& fault) {
  FaultText<kSize> text;
  std::copy_n(fault.text().text, kSize - 1, text.text);
  return text;
}

}  // namespace intarsia
