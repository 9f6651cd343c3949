#include "src/core/op_info.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "src/core/cache_layout.h"
#include "src/core/check_range.h"
#include "src/core/config.h"
#include "src/core/log_call.h"
#include "src/core/overlap.h"
#ifdef INTARSIA_WITH_CUDA
#include "src/core/cuda/device.h"
#endif

namespace intarsia {
namespace {

// Whether `list` ("i32|i64") names `word`.
bool Lists(std::string_view list, std::string_view word) {
  for (;;) {
    const size_t bar = list.find('|');
    if (list.substr(0, bar) == word) return true;
    if (bar == list.npos) return false;
    list.remove_prefix(bar + 1);
  }
}

constexpr std::string_view kActivations = "f32|f16|bf16";  // what T may be

// `leading`: how many axes "..." stands for.
bool Fits(Access access, const TensorView& operand, int leading) {
  if (operand.dense()) return true;
  const bool rows = operand.dim(-1) < 2 || operand.stride(-1) == 1;
  if (access == Access::kEvenRows) return rows && EvenStride(operand, operand.rank - 1);
  if (access == Access::kEvenLeading) return rows && EvenStride(operand, leading);
  return access == Access::kRows && rows;
}

// What the whole of a call agrees on, gathered operand by operand.
class Checker {
 public:
  Checker(const OpInfo& op, const Call& call)
      : op_(op), call_(call), conditions_(op, call), dims_(op.symbols) {}

  Status Attributes() {
    for (size_t i = 0; i < op_.attributes.size(); ++i) {
      const AttributeInfo& info = op_.attributes[i];
      const AttrValue& value = call_.attributes[i];
      if (const auto* text = std::get_if<std::string_view>(&value))
        INTARSIA_RETURN_IF_ERROR(CheckChoice(info, *text));
      const auto* real = std::get_if<double>(&value);
      if (real && info.not_negative && !(*real >= 0 && std::isfinite(*real)))
        return Invalid(op_, info.name, " is ", std::to_string(*real),
                       ", expected a finite number of at least 0");
      const auto* number = std::get_if<int64_t>(&value);
      if (!number || info.symbol < 0) continue;
      if (*number < 1) return Invalid(op_, info.name, " is ", *number, ", expected at least 1");
      dims_.Set(info.symbol, *number, "attribute");
    }
    return {};
  }

  Status Operands() {
    for (size_t i = 0; i < op_.operands.size(); ++i) {
      const OperandInfo& info = op_.operands[i];
      const Optional& operand = call_.operands[i];
      if (!operand) {
        if (!info.optional) return Invalid(op_, info.name, " is missing");
        continue;
      }
      INTARSIA_RETURN_IF_ERROR(CheckDType(info, operand->dtype));
      INTARSIA_RETURN_IF_ERROR(
          Named(info.name, dims_.Match(info.dims, operand->shape(), conditions_, info.name)));
      INTARSIA_RETURN_IF_ERROR(CheckAccess(info, *operand));
    }
    return {};
  }

  // The size below which the elements of an operand must lie.
  Status IndexBound(const OperandInfo& info, int64_t& bound) const {
    std::vector<int64_t> shape;
    INTARSIA_RETURN_IF_ERROR(Named(info.name, dims_.Evaluate(info.indexes, conditions_, shape)));
    bound = shape.front();
    return {};
  }

  bool Exists(const ResultInfo& info) const {
    return info.when.empty() || conditions_.Holds(info.when);
  }

  // Shape and dtype that a result must have.
  Status Expect(const ResultInfo& info, TensorView& result) const {
    const auto make = [&](std::span<const int64_t> shape) {
      return Named(info.name, MakeDense(nullptr, ResultDType(info), shape, result));
    };
    if (info.workspace) return make(op_.workspace_dims(call_));
    if (info.shape_operand >= 0)
      return make(call_.operands[static_cast<size_t>(info.shape_operand)]->shape());
    std::vector<int64_t> shape;
    INTARSIA_RETURN_IF_ERROR(Named(info.name, dims_.Evaluate(info.dims, conditions_, shape)));
    return make(shape);
  }

 private:
  Status Named(std::string_view name, Status status) const {
    if (!status.ok()) status.message = Text(op_.name, ": ", name, " ", status.message);
    return status;
  }

  DType ResultDType(const ResultInfo& info) const {
    DTypeRule rule = info.rule;
    if (rule.attribute >= 0)
      rule = op_.ToRule(
          std::get<std::string_view>(call_.attributes[static_cast<size_t>(rule.attribute)]));
    if (rule.listed) return static_cast<DType>(std::countr_zero(rule.listed));
    if (rule.operand >= 0) return call_.operands[static_cast<size_t>(rule.operand)]->dtype;
    return type_ == DType::kOther ? DType::kBF16 : type_;  // no operand is a T: all are quantized
  }

  Status CheckChoice(const AttributeInfo& info, std::string_view text) const {
    if (info.one_of.empty() || Lists(info.one_of, text)) return {};
    CacheLayout layout;
    if (info.or_cache_axes) return InOp(op_.name, FindLayout(text, layout));
    return Invalid(op_, info.name, " is \"", text, "\", expected one of ", info.one_of);
  }

  Status CheckDType(const OperandInfo& info, DType dtype) {
    const std::string_view got = Name(dtype);
    if (info.rule.operand >= 0) {
      const DType other = call_.operands[static_cast<size_t>(info.rule.operand)]->dtype;
      if (other == dtype) return {};
      return Invalid(op_, info.name, " has dtype ", got, " but ", info.dtype, " has ", Name(other));
    }
    if (info.rule.Lists(dtype)) return {};
    if (!info.rule.is_t)
      return Invalid(op_, info.name, " has dtype ", got, ", expected ", info.dtype);
    if (!type_from_.empty() && type_ == dtype) return {};
    if (!type_from_.empty())
      return Invalid(op_, info.name, " has dtype ", got, " but ", type_from_, " has ", Name(type_));
    if (!Lists(kActivations, got))
      return Invalid(op_, info.name, " has dtype ", got, ", expected ", ExpectedDTypes(op_, info));
    type_ = dtype;
    type_from_ = info.name;
    return {};
  }

  Status CheckAccess(const OperandInfo& info, const TensorView& operand) const {
    const int leading = dims_.leading_axes();
    if (Fits(info.access, operand, leading)) return {};
    if (info.access == Access::kDense)
      return Invalid(op_, info.name, " is strided, expected a dense row-major array");
    if (!Fits(Access::kRows, operand, leading))
      return Invalid(op_, info.name, " has last stride ", operand.stride(-1), ", expected 1");
    if (info.access == Access::kEvenLeading)
      return Invalid(op_, info.name, " has ", leading,
                     " leading axes at uneven distances, expected even ones");
    return Invalid(op_, info.name, " has rows at uneven distances, expected even ones");
  }

  const OpInfo& op_;
  const Call& call_;
  CallConditions conditions_;
  DimsBinding dims_;
  DType type_ = DType::kOther;  // what T is
  std::string_view type_from_ = {};
};

}  // namespace

bool CallConditions::Holds(std::string_view condition) const {
  if (condition.starts_with('!')) return !Holds(condition.substr(1));
  const size_t equals = condition.find('=');
  const std::string_view name = condition.substr(0, equals);
  if (const int i = op_.FindOperand(name); i >= 0)
    return call_.operands[static_cast<size_t>(i)].has_value();
  if (equals != condition.npos) return Value(name) == condition.substr(equals + 1);
  const AttrValue& value = call_.attributes[static_cast<size_t>(op_.FindAttribute(name))];
  const bool* flag = std::get_if<bool>(&value);
  return flag ? *flag : !std::holds_alternative<std::monostate>(value);
}

std::string_view CallConditions::Value(std::string_view attribute) const {
  return std::get<std::string_view>(
      call_.attributes[static_cast<size_t>(op_.FindAttribute(attribute))]);
}

std::string ExpectedDTypes(const OpInfo& op, const OperandInfo& info) {
  if (op.FindOperand(info.dtype) >= 0) return Text("that of ", info.dtype);
  std::string expected(Lists(info.dtype, "T") ? kActivations : "");
  for (const DTypeRow& row : kDTypes)
    if (Lists(info.dtype, row.name) && !Lists(expected, row.name))
      expected += Text(expected.empty() ? "" : "|", row.name);
  return expected;
}

bool Fits(const OpInfo& op, const Call& call, size_t operand) {
  const Access access = op.operands[operand].access;
  const TensorView& view = *call.operands[operand];
  if (access != Access::kEvenLeading || view.dense()) return Fits(access, view, 0);
  DimsBinding dims(op.symbols);
  const CallConditions conditions(op, call);
  for (size_t i = 0; i <= operand && dims.leading_axes() < 0; ++i)
    if (const Optional& before = call.operands[i])
      if (!dims.Match(op.operands[i].dims, before->shape(), conditions, {}).ok()) return true;
  return Fits(access, view, dims.leading_axes());
}

int OpInfo::FindOperand(std::string_view operand) const {
  for (size_t i = 0; i < operands.size(); ++i)
    if (operands[i].name == operand) return static_cast<int>(i);
  return -1;
}

int OpInfo::FindAttribute(std::string_view attribute) const {
  for (size_t i = 0; i < attributes.size(); ++i)
    if (attributes[i].name == attribute) return static_cast<int>(i);
  return -1;
}

DTypeRule OpInfo::ToRule(std::string_view dtype) const {
  DTypeRule rule{.operand = FindOperand(dtype), .attribute = FindAttribute(dtype)};
  for (size_t i = 0; i < kDTypes.size(); ++i)
    if (Lists(dtype, kDTypes[i].name)) rule.listed |= uint32_t{1} << i;
  rule.is_t = Lists(dtype, "T");
  return rule;
}

void OpInfo::ResolveNames() {
  for (OperandInfo& operand : operands) operand.rule = ToRule(operand.dtype);
  for (AttributeInfo& attribute : attributes) attribute.symbol = symbols.Find(attribute.name);
  for (ResultInfo& result : results) {
    result.rule = ToRule(result.dtype);
    result.alias_operand = FindOperand(result.alias);
    result.mutated_operand = FindOperand(result.mutates);
    const std::string_view dims = result.dims.text();
    if (dims.starts_with('=')) result.shape_operand = FindOperand(dims.substr(1));
  }
}

Status Infer(const OpInfo& op, Call& call) {
  INTARSIA_RETURN_IF_ERROR(InOp(op.name, GetConfig().status));
  Checker checker(op, call);
  INTARSIA_RETURN_IF_ERROR(checker.Attributes());
  INTARSIA_RETURN_IF_ERROR(checker.Operands());
  INTARSIA_RETURN_IF_ERROR(op.check(call));
  for (size_t i = 0; i < op.results.size(); ++i) {
    if (!checker.Exists(op.results[i])) continue;
    INTARSIA_RETURN_IF_ERROR(checker.Expect(op.results[i], call.results[i].emplace()));
  }
  return {};
}

// The operand whose memory a result lies in, by alias or in place; else -1.
static int WrittenOperand(const ResultInfo& info, const Call& call, const TensorView& result) {
  const int i = info.alias.empty() ? info.mutated_operand : info.alias_operand;
  if (i < 0) return -1;
  const TensorView& operand = *call.operands[static_cast<size_t>(i)];
  return operand.data == result.data && operand.same_strides(result) ? i : -1;
}

static Status CheckWritten(const OpInfo& op, const Call& call) {
  std::array<int, kMaxResults> written;
  for (size_t i = 0; i < op.results.size(); ++i) {
    const Optional& result = call.results[i];
    written[i] = result ? WrittenOperand(op.results[i], call, *result) : -1;
    for (size_t j = 0; j < i; ++j) {
      if (written[i] < 0 || written[j] < 0 || !Overlap(*result, *call.results[j])) continue;
      return Invalid(op, op.operands[static_cast<size_t>(written[i])].name, " shares memory with ",
                     op.operands[static_cast<size_t>(written[j])].name, " and both are written");
    }
  }
  return {};
}

Status CheckResults(const OpInfo& op, const Call& call, std::span<const Optional> inferred) {
  for (size_t i = 0; i < op.results.size(); ++i) {
    const ResultInfo& info = op.results[i];
    const Optional &got = call.results[i], &want = inferred[i];
    if (got.has_value() != want.has_value())
      return Invalid(op, "result ", info.name,
                     got ? " is given but must not exist" : " is missing");
    if (!got) continue;
    if (got->dtype != want->dtype)
      return Invalid(op, "result ", info.name, " has dtype ", Name(got->dtype), ", expected ",
                     Name(want->dtype));
    // A program may hold a workspace of an earlier release's size: the op takes what it gets.
    const bool same =
        info.workspace ? got->rank == want->rank : std::ranges::equal(got->shape(), want->shape());
    if (!same)
      return Invalid(op, "result ", info.name, " has shape ", ShapeText(got->shape()),
                     ", expected ", ShapeText(want->shape()));
    if (info.alias.empty() && !got->dense() && WrittenOperand(info, call, *got) < 0)
      return Invalid(op, "result ", info.name, " is strided, expected a dense row-major array");
    if (info.alias.empty() || got->size() == 0) continue;
    const TensorView& operand = *call.operands[static_cast<size_t>(info.alias_operand)];
    if (!operand.same_strides(*got))
      return Invalid(op, "result ", info.name, " has other strides than ", info.alias,
                     ", whose buffer it shares");
    if (operand.data != got->data)
      return Invalid(op, "result ", info.name, " must share the buffer of ", info.alias,
                     "; pass input_output_aliases (StableHLO: output_operand_aliases)");
  }
  return CheckWritten(op, call);
}

static bool IsWritten(const OpInfo& op, const Call& call, int operand) {
  for (size_t i = 0; i < op.results.size(); ++i)
    if (call.results[i] && WrittenOperand(op.results[i], call, *call.results[i]) == operand)
      return true;
  return false;
}

Status CheckOverlap(const OpInfo& op, const Call& call) {
  for (size_t i = 0; i < op.results.size(); ++i) {
    const Optional& result = call.results[i];
    if (!result) continue;
    const int written = WrittenOperand(op.results[i], call, *result);
    for (size_t j = 0; j < i; ++j) {
      const Optional& other = call.results[j];
      if (written < 0 && other && WrittenOperand(op.results[j], call, *other) < 0 &&
          Overlap(*result, *other))
        return Invalid(op, "result ", op.results[i].name, " shares memory with result ",
                       op.results[j].name, ", expected memory of its own");
    }
    for (size_t j = 0; j < op.operands.size(); ++j) {
      const Optional& operand = call.operands[j];
      // Of two that are written CheckResults speaks.
      if (!operand || static_cast<int>(j) == written || IsWritten(op, call, static_cast<int>(j)) ||
          !Overlap(*result, *operand))
        continue;
      // A result may take the place of an operand, as in XLA. What the op writes may not.
      const bool same = written < 0 && operand->data == result->data &&
                        operand->dtype == result->dtype &&
                        std::ranges::equal(operand->shape(), result->shape());
      if (!same)
        return Invalid(
            op, written < 0 ? "result " : "",
            written < 0 ? op.results[i].name : op.operands[static_cast<size_t>(written)].name,
            written < 0 ? " lies" : " is written and lies", " over a part of ", op.operands[j].name,
            ", expected memory of its own");
    }
  }
  return {};
}

namespace {

template <class Context>
Status CheckIndices(const OpInfo& op, const Call& call, const Context& context) {
  if (!GetConfig().check_indices) return {};
  Checker checker(op, call);
  INTARSIA_RETURN_IF_ERROR(checker.Attributes());
  INTARSIA_RETURN_IF_ERROR(checker.Operands());
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const OperandInfo& info = op.operands[i];
    if (info.indexes.text().empty() || !call.operands[i]) continue;
    int64_t bound = 0;
    INTARSIA_RETURN_IF_ERROR(checker.IndexBound(info, bound));
    const int64_t low = info.negative_skips ? kAnyNegative : 0;
    INTARSIA_RETURN_IF_ERROR(
        InOp(op.name, CheckRange(context, info.name, *call.operands[i], low, bound)));
  }
  return {};
}

// The error for a platform that an op has no half for.
Status Lacks(const OpInfo& op, Platform platform) {
  return Unimplemented(
      Text(op.name, ": runs on ", Names(op.platforms), ", not on ", Name(platform)));
}

}  // namespace

Status RunCpu(const OpInfo& op, const Call& call, const CpuContext& context) {
  if (!op.run_cpu) return Lacks(op, Platform::kCpu);
  if (GetConfig().log_calls) LogCall(op, call, Platform::kCpu);
  INTARSIA_RETURN_IF_ERROR(CheckIndices(op, call, context));
  return op.run_cpu(call, context);
}

Status RunCuda(const OpInfo& op, const Call& call, const CudaContext& context) {
  if (!op.platforms.Has(Platform::kCuda)) return Lacks(op, Platform::kCuda);
  if (!op.run_cuda) return Unimplemented(Text(op.name, ": this library was built without CUDA"));
  if (GetConfig().log_calls) LogCall(op, call, Platform::kCuda);
  CudaContext on_device = context;
#ifdef INTARSIA_WITH_CUDA
  if (!on_device.device)
    INTARSIA_RETURN_IF_ERROR(InOp(op.name, cuda::CurrentDevice(on_device.device)));
  INTARSIA_RETURN_IF_ERROR(CheckIndices(op, call, on_device));
#endif
  return op.run_cuda(call, on_device);
}

}  // namespace intarsia
