// An op's spec without its C++ types: what the checks, the inference of results, the manifest and
// every front end work on.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/core/context.h"
#include "src/core/dims.h"
#include "src/core/spec.h"
#include "src/core/status.h"
#include "src/core/tensor_view.h"

namespace intarsia {

// monostate: not given.
using AttrValue = std::variant<std::monostate, bool, int64_t, double, std::string_view>;
enum class AttrType { kBool = 1, kI64, kF32, kString };  // the alternative's index in AttrValue

// What a spec's dtype says, its names looked up: one call of an op compares numbers and no text.
struct DTypeRule {
  uint32_t listed = 0;  // bit i: the DType i
  bool is_t = false;    // T is listed
  int operand = -1;     // whose dtype it is
  int attribute = -1;   // whose value says it

  bool Lists(DType dtype) const { return listed >> static_cast<int>(dtype) & 1; }
};

struct OperandInfo {
  std::string_view name, dtype, doc;
  DimsPattern dims;
  Access access;
  bool optional;
  DimsPattern indexes;  // one size; empty text: its elements are no indices
  bool negative_skips;
  DTypeRule rule = {};
};
struct AttributeInfo {
  std::string_view name, doc, one_of;
  AttrType type;
  AttrValue default_value;  // monostate: none
  bool or_cache_axes = false;
  bool not_negative = false;
  int symbol = -1;  // that `dims` know it by
};
struct ResultInfo {
  std::string_view name, dtype, doc, alias = {}, mutates = {}, when = {};
  DimsPattern dims = {};
  bool workspace = false;
  DTypeRule rule = {};
  // Of `alias`, of `mutates` and of dims "=operand"; -1: none.
  int alias_operand = -1, mutated_operand = -1, shape_operand = -1;
};

// One call of an op as a front end hands it over, in spec order. What is absent has no value.
struct Call {
  // One by one: GCC 12 would clear the arrays whole, 5 KB.
  Call() {
    for (Optional& operand : operands) std::construct_at(&operand);
    for (Optional& result : results) std::construct_at(&result);
  }

  union {
    std::array<Optional, kMaxOperands> operands;
  };
  union {
    std::array<Optional, kMaxResults> results;
  };
  std::array<AttrValue, kMaxAttributes> attributes;
};

struct OpInfo {
  std::string_view name, summary, source, target_alias, separable;
  PlatformSet platforms = PlatformSet();
  std::vector<OperandInfo> operands = {};
  std::vector<AttributeInfo> attributes = {};
  std::vector<ResultInfo> results = {};
  SymbolTable symbols = {};  // the letters and attributes that `dims` speak of

  // Fill the struct and run it; the call has been checked.
  // Null where `platforms` lacks theirs; run_cuda also in a library without CUDA.
  Status (*run_cpu)(const Call&, const CpuContext&) = nullptr;
  Status (*run_cuda)(const Call&, const CudaContext&) = nullptr;
  // Fill the struct and ask what only the op can say of a call. Addresses are not looked at.
  Status (*check)(const Call&) = nullptr;
  std::array<int64_t, 2> (*workspace_dims)(const Call&) = nullptr;

  int FindOperand(std::string_view operand) const;
  int FindAttribute(std::string_view attribute) const;
  DTypeRule ToRule(std::string_view dtype) const;
  // Looks up the names that operands, attributes and results speak of, once all of them are there.
  void ResolveNames();
};

// What the conditions of a spec's dims and results come to in a call.
class CallConditions final : public Conditions {
 public:
  CallConditions(const OpInfo& op, const Call& call) : op_(op), call_(call) {}
  bool Holds(std::string_view condition) const override;
  std::string_view Value(std::string_view attribute) const override;

 private:
  const OpInfo& op_;
  const Call& call_;
};

// Checks operands and attributes and sets the shape and dtype of every result that exists; their
// addresses stay null. This is the only shape inference there is.
Status Infer(const OpInfo& op, Call& call);

// The dtypes that an operand may have, as errors name them.
std::string ExpectedDTypes(const OpInfo& op, const OperandInfo& info);

// Whether the kernel can take an operand as it lies. Shapes that do not fit are Infer's to refuse.
bool Fits(const OpInfo& op, const Call& call, size_t operand);

// Runs a call that Infer and CheckResults have passed. With INTARSIA_CHECK=1, an index outside of
// what the spec says is an error; otherwise nobody looks, and the kernels skip it.
Status RunCpu(const OpInfo& op, const Call& call, const CpuContext& context);
Status RunCuda(const OpInfo& op, const Call& call, const CudaContext& context);

// Checks the results of a call against the inferred ones: shapes, dtypes, dense, and that aliased
// ones lie where their operands do.
Status CheckResults(const OpInfo& op, const Call& call, std::span<const Optional> inferred);

// Refuses an operand that is written and shares memory with another operand, a result that lies
// over a part of one, and results that share memory. XLA's buffers never do.
Status CheckOverlap(const OpInfo& op, const Call& call);

// "rms_norm: weight has n=5 but x has n=64"
template <class... Pieces>
Status Invalid(const OpInfo& op, const Pieces&... pieces) {
  return InvalidArgument(Text(op.name, ": ", pieces...));
}

}  // namespace intarsia
