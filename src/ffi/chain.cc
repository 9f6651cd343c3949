#include "src/ffi/chain.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <system_error>
#include <vector>

#include "src/ops/registry.h"

namespace intarsia {
namespace {

template <class... Pieces>
Status InvalidChain(const Pieces&... pieces) {
  return InvalidArgument(Text(kChain, ": ", pieces...));
}

// A program's text, read from front to back.
class Program {
 public:
  explicit Program(std::string_view text) : left_(text) { SkipSpaces(); }

  bool ends() const { return left_.empty(); }
  // Reads `mark` if it is next.
  bool Consume(char mark) {
    if (left_.empty() || left_.front() != mark) return false;
    left_.remove_prefix(1);
    SkipSpaces();
    return true;
  }
  // A number in [0, end).
  Status ReadNumber(std::string_view what, int64_t end, int64_t& number) {
    const char* const last = left_.data() + left_.size();
    const auto [read, error] = std::from_chars(left_.data(), last, number);
    if (error != std::errc() || number < 0 || number >= end)
      return InvalidChain("program has \"", left_.substr(0, 16), "\", expected ", what, " below ",
                          end);
    left_.remove_prefix(static_cast<size_t>(read - left_.data()));
    SkipSpaces();
    return {};
  }

 private:
  void SkipSpaces() { left_.remove_prefix(std::min(left_.find_first_not_of(' '), left_.size())); }

  std::string_view left_;
};

// A buffer of the chain, perhaps with sizes of its own.
struct ReshapedBuffer {
  Buffer Get() const {
    return rank < 0 ? buffer
                    : Buffer{buffer.data, buffer.dtype, {sizes.data(), static_cast<size_t>(rank)}};
  }
  // Sizes, "2,512", of as many elements.
  Status Read(Program& program) {
    int64_t elements = 1, count = 1;
    for (const int64_t size : buffer.dims) elements *= size;
    rank = 0;
    do {
      if (rank == kMaxRank) return InvalidChain("program has more than ", kMaxRank, " sizes");
      int64_t& size = sizes[static_cast<size_t>(rank++)];
      INTARSIA_RETURN_IF_ERROR(
          program.ReadNumber("a size", std::numeric_limits<int64_t>::max(), size));
      if (__builtin_mul_overflow(count, size, &count)) return Differ();
    } while (program.Consume(','));
    return count == elements ? Status{} : Differ();
  }
  Status Differ() const {
    return InvalidChain("program takes ", ShapeText(buffer.dims), " for ", ShapeText(Get().dims));
  }

  Buffer buffer;
  int rank = -1;  // that of `sizes`; -1: the buffer's own
  std::array<int64_t, kMaxRank> sizes;
};

// A call of a chain, as a frame of its own.
class ChainedCall {
 public:
  explicit ChainedCall(ffi::Dictionary attributes) : attributes_(attributes) {}
  size_t operands() const { return operands_.size(); }
  size_t results() const { return results_.size(); }
  Buffer operand(size_t i) const { return operands_[i].Get(); }
  Buffer result(size_t i) const { return results_[i].Get(); }
  ffi::Dictionary attributes() const { return attributes_; }

  // "2 5:2,512 > 7 8;" with the buffers of `chain`.
  Status Read(Program& program, const XlaFrame& chain) {
    while (!program.Consume('>')) INTARSIA_RETURN_IF_ERROR(ReadBuffer(program, chain, operands_));
    while (!program.Consume(';')) INTARSIA_RETURN_IF_ERROR(ReadBuffer(program, chain, results_));
    return {};
  }

 private:
  Status ReadBuffer(Program& program, const XlaFrame& chain,
                    std::vector<ReshapedBuffer>& buffers) const {
    int64_t number = 0;
    INTARSIA_RETURN_IF_ERROR(program.ReadNumber(
        "a buffer", static_cast<int64_t>(chain.operands() + chain.results()), number));
    const auto i = static_cast<size_t>(number);
    const bool is_operand = i < chain.operands();
    // XLA may keep operands in memory that is only read. Who writes in place names the result.
    if (is_operand && &buffers == &results_)
      return InvalidChain("program has operand ", number, " for a result");
    ReshapedBuffer& read = buffers.emplace_back();
    read.buffer = is_operand ? chain.operand(i) : chain.result(i - chain.operands());
    return program.Consume(':') ? read.Read(program) : Status{};
  }

  const ffi::Dictionary attributes_;
  std::vector<ReshapedBuffer> operands_, results_;
};

// Reads which op a call is of, and its attributes.
Status ReadOp(Program& program, const ffi::Dictionary& attributes, const OpInfo*& op,
              ffi::Dictionary& of_call) {
  int64_t kind = 0;
  INTARSIA_RETURN_IF_ERROR(
      program.ReadNumber("the number of an op", static_cast<int64_t>(attributes.size() / 2), kind));
  const auto name = attributes.get<std::string_view>(Text("op_", kind));
  if (!name.has_value()) return InvalidChain("attribute op_", kind, " must be a string");
  op = FindOp(*name);
  if (!op) return InvalidChain("no op ", *name, "; exported by a newer intarsia");
  const auto found = attributes.get<ffi::Dictionary>(Text("attributes_", kind));
  if (!found.has_value())
    return InvalidChain("attribute attributes_", kind, " must be a dictionary");
  of_call = *found;
  return {};
}

// Whether it is "program", "op_i" or "attributes_i" of so many ops.
bool IsAttribute(std::string_view name, size_t ops) {
  if (name == "program") return true;
  for (const std::string_view prefix : {"op_", "attributes_"}) {
    if (!name.starts_with(prefix)) continue;
    size_t i = 0;
    const char* const end = name.data() + name.size();
    const auto [read, error] = std::from_chars(name.data() + prefix.size(), end, i);
    return error == std::errc() && read == end && i < ops;
  }
  return false;
}

// A program that a newer release exported must not be half understood.
Status CheckNames(const ffi::Dictionary& attributes) {
  for (const std::string_view name : attributes)
    if (!IsAttribute(name, attributes.size() / 2))
      return InvalidChain("unknown attribute ", name, "; exported by a newer intarsia");
  return {};
}

Status Run(const XlaFrame& chain, const RunCall& run) {
  const ffi::Dictionary attributes = chain.attributes();
  INTARSIA_RETURN_IF_ERROR(CheckNames(attributes));
  const auto text = attributes.get<std::string_view>("program");
  if (!text.has_value()) return InvalidChain("attribute program must be a string");
  for (Program program(*text); !program.ends();) {
    const OpInfo* op = nullptr;
    ffi::Dictionary of_call = attributes;
    INTARSIA_RETURN_IF_ERROR(ReadOp(program, attributes, op, of_call));
    ChainedCall chained(of_call);
    INTARSIA_RETURN_IF_ERROR(chained.Read(program, chain));
    INTARSIA_RETURN_IF_ERROR(DecodeAndRun(*op, chained, run));
  }
  return {};
}

}  // namespace

ffi::Error RunChain(const XlaFrame& frame, const RunCall& run) {
  return Guarded(kChain, [&] { return Run(frame, run); });
}

}  // namespace intarsia
