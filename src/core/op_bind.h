// From an op's struct to its OpInfo, and from a Call to a filled struct. The only templates between
// a front end and an op's Run.
#pragma once
#include <type_traits>

#include "src/core/op_info.h"

namespace intarsia {

// float -> f32, std::optional<float> -> f32 without a default, and so on.
template <class T>
struct AttrTraits;
template <>
struct AttrTraits<bool> {
  static constexpr AttrType kType = AttrType::kBool;
};
template <>
struct AttrTraits<int64_t> {
  static constexpr AttrType kType = AttrType::kI64;
};
template <>
struct AttrTraits<float> {
  static constexpr AttrType kType = AttrType::kF32;
};
template <>
struct AttrTraits<std::string_view> {
  static constexpr AttrType kType = AttrType::kString;
};
template <class T>
struct AttrTraits<std::optional<T>> : AttrTraits<T> {};

template <class T>
AttrValue ToAttrValue(const T& member) {
  if constexpr (requires { member.has_value(); }) {
    return member ? ToAttrValue(*member) : AttrValue{};
  } else if constexpr (std::is_same_v<T, float>) {
    return static_cast<double>(member);
  } else {
    return member;
  }
}

template <class T>
void FromAttrValue(const AttrValue& value, T& member) {
  if constexpr (requires { member.has_value(); }) {
    if (!std::holds_alternative<std::monostate>(value)) FromAttrValue(value, member.emplace());
  } else if constexpr (std::is_same_v<T, float>) {
    member = static_cast<float>(std::get<double>(value));
  } else {
    member = std::get<T>(value);
  }
}

// Visits the fields of Op's spec with (field, its index within its kind; workspaces count as
// results).
template <class Op, class Visitor>
constexpr void ForEachField(Visitor&& visit) {
  size_t operand = 0, attribute = 0, result = 0;
  auto each = [&]<class Field>(const Field& field) {
    if constexpr (Field::kKind == FieldKind::kOperand)
      visit(field, operand++);
    else if constexpr (Field::kKind == FieldKind::kAttribute)
      visit(field, attribute++);
    else
      visit(field, result++);
  };
  std::apply([&](const auto&... fields) { (each(fields), ...); }, Op::kSpec.fields);
}

// Refuses a spec with a name in it that nothing bears, at compile time: what is thrown here stands
// in the compiler's message.
template <class Op>
consteval bool ValidSpec() {
  const auto is_field = [](std::string_view name, FieldKind kind) {
    bool found = false;
    ForEachField<Op>([&]<class Field>(const Field& field, size_t) {
      found |= Field::kKind == kind && field.name == name;
    });
    return found;
  };
  const auto is_dtype = [&](std::string_view rule, FieldKind of) {
    while (true) {
      const std::string_view word = rule.substr(0, rule.find('|'));
      if (word != "T" && !DTypeFromName(word) && !is_field(word, FieldKind::kOperand) &&
          !(of == FieldKind::kResult && is_field(word, FieldKind::kAttribute)))
        return false;
      if (word.size() == rule.size()) return true;
      rule.remove_prefix(word.size() + 1);
    }
  };
  size_t counts[4] = {};
  ForEachField<Op>([&]<class Field>(const Field& field, size_t) {
    ++counts[static_cast<size_t>(Field::kKind)];
    if constexpr (requires { field.dtype; })
      if (!is_dtype(field.dtype, Field::kKind)) throw "a dtype rule has an unknown word";
    if constexpr (requires { field.dims; })
      if (field.dims.find('@') != field.dims.npos && !is_field("layout", FieldKind::kAttribute))
        throw "dims of a cache without an attribute layout";
    if constexpr (Field::kKind == FieldKind::kResult) {
      if (!field.alias.empty() && !is_field(field.alias, FieldKind::kOperand))
        throw "Alias names no operand";
      if (!field.mutates.empty() && !is_field(field.mutates, FieldKind::kOperand))
        throw "Mutates names no operand";
      if (!field.when.empty() && !is_field(field.when, FieldKind::kOperand) &&
          !is_field(field.when, FieldKind::kAttribute))
        throw "When names no operand or attribute";
      if (field.dims.starts_with('=') && !is_field(field.dims.substr(1), FieldKind::kOperand))
        throw "dims of a result name no operand";
    }
  });
  if (counts[0] > kMaxOperands || counts[1] > kMaxAttributes || counts[2] + counts[3] > kMaxResults)
    throw "more fields than a Call has room for";
  return true;
}

// The struct for a checked call.
template <class Op>
Op Fill(const Call& call) {
  Op op;
  ForEachField<Op>([&]<class Field>(const Field& field, size_t i) {
    auto& member = op.*(field.member);
    if constexpr (Field::kKind == FieldKind::kOperand) {
      if (call.operands[i]) member = *call.operands[i];
    } else if constexpr (Field::kKind == FieldKind::kAttribute) {
      FromAttrValue(call.attributes[i], member);
    } else {
      if (call.results[i]) member = *call.results[i];
    }
  });
  return op;
}

template <class Op, class Context>
concept HasRun = requires(const Op& op, const Context& context) { op.Run(context); };

template <class Op, class Context>
Status RunOp(const Call& call, const Context& context) {
  return InOp(Op::kSpec.name, Fill<Op>(call).Run(context));
}

template <class Op>
OpInfo MakeOpInfo() {
  static_assert(ValidSpec<Op>());
  OpInfo info{.name = Op::kSpec.name,
              .summary = Op::kSpec.summary,
              .source = Op::kSpec.source,
              .target_alias = Op::kSpec.target_alias,
              .separable = Op::kSpec.separable,
              .cpu_only = !HasRun<Op, CudaContext>,
              .cuda_only = !HasRun<Op, CpuContext>};
  const Op defaults{};
  ForEachField<Op>([&]<class Field>(const Field& field, size_t) {
    using Member = std::remove_cvref_t<decltype(defaults.*(field.member))>;
    if constexpr (Field::kKind == FieldKind::kOperand) {
      info.operands.push_back({field.name, field.dtype, field.doc,
                               DimsPattern(field.dims, info.symbols), field.access,
                               std::is_same_v<Member, Optional>,
                               DimsPattern(field.indexes, info.symbols), field.negative_skips});
    } else if constexpr (Field::kKind == FieldKind::kAttribute) {
      info.attributes.push_back({field.name, field.doc, field.one_of, AttrTraits<Member>::kType,
                                 ToAttrValue(defaults.*(field.member)), field.or_cache_axes});
    } else if constexpr (Field::kKind == FieldKind::kResult) {
      info.results.push_back({field.name, field.dtype, field.doc, field.alias, field.mutates,
                              field.when, DimsPattern(field.dims, info.symbols), false});
    } else {
      info.results.push_back(
          {.name = field.name, .dtype = "f32", .doc = "for the op's own use", .workspace = true});
    }
  });
  info.ResolveNames();
  if constexpr (HasRun<Op, CpuContext>) info.run_cpu = &RunOp<Op, CpuContext>;
#ifdef INTARSIA_WITH_CUDA
  if constexpr (HasRun<Op, CudaContext>) info.run_cuda = &RunOp<Op, CudaContext>;
#endif
  info.check = [](const Call& call) -> Status {
    if constexpr (requires(const Op& op) { op.Check(); })
      return InOp(Op::kSpec.name, Fill<Op>(call).Check());
    return {};
  };
  info.workspace_dims = [](const Call& call) -> std::array<int64_t, 2> {
    if constexpr (requires(const Op& op) { op.WorkspaceDims(); })
      return Fill<Op>(call).WorkspaceDims();
    return {};
  };
  return info;
}

}  // namespace intarsia
