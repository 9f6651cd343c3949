// The result of anything that can fail. The library neither throws nor aborts: it returns one of
// these.
#pragma once
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace intarsia {

// The numbers are absl's (and so XLA's and gRPC's) codes.
enum class Code : int32_t {
  kOk = 0,
  kInvalidArgument = 3,  // the caller is wrong
  kUnimplemented = 12,   // legal, but not built here; the text lists what is
  kInternal = 13,        // CUDA failed, or a bug of ours
};

// nvcc 13.0 warns of every `status = Call()` of a [[nodiscard]] class, so only the host compiler
// minds.
#ifdef __CUDACC__
struct Status {
#else
struct [[nodiscard]] Status {
#endif
  Code code = Code::kOk;
  std::string message;
  bool ok() const { return code == Code::kOk; }
};

inline Status InvalidArgument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
inline Status Unimplemented(std::string m) { return {Code::kUnimplemented, std::move(m)}; }
inline Status Internal(std::string m) { return {Code::kInternal, std::move(m)}; }

#define INTARSIA_RETURN_IF_ERROR(expression)                                      \
  do {                                                                            \
    if (::intarsia::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

// Joins pieces of text and numbers: Text("has d=", 64).
inline std::string ToText(std::string_view s) { return std::string(s); }
inline std::string ToText(int64_t n) { return std::to_string(n); }
template <std::same_as<uint64_t> Count>  // and nothing that would fit into int64
std::string ToText(Count n) {
  return std::to_string(n);
}
template <class... Pieces>
std::string Text(const Pieces&... pieces) {
  std::string text;
  ((text += ToText(pieces)), ...);
  return text;
}

// Puts "<op>: " before the message of a failed status. The bridge does it once for every op, so an
// op writes only "<operand> <what> <got> <expected>".
inline Status InOp(std::string_view op, Status status) {
  if (!status.ok()) status.message = Text(op, ": ", status.message);
  return status;
}

}  // namespace intarsia
