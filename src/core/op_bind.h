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

// Visits the fields of Op's spec with (kind-specific field, its index within its kind).
template <class Op, class Visitor>
void ForEachField(Visitor&& visit) {
  size_t operand = 0, attribute = 0, result = 0;
  auto each = [&]<class Field>(const Field& field) {
    if constexpr (requires { field.access; })
      visit(field, operand++);
    else if constexpr (requires { field.one_of; })
      visit(field, attribute++);
    else
      visit(field, result++);
  };
  std::apply([&](const auto&... fields) { (each(fields), ...); }, Op::kSpec.fields);
}

// The struct for a checked call.
template <class Op>
Op Fill(const Call& call) {
  Op op;
  ForEachField<Op>([&](const auto& field, size_t i) {
    auto& member = op.*(field.member);
    if constexpr (requires { field.access; }) {
      if (call.operands[i]) member = *call.operands[i];
    } else if constexpr (requires { field.one_of; }) {
      FromAttrValue(call.attributes[i], member);
    } else {
      if (call.results[i]) member = *call.results[i];
    }
  });
  return op;
}

template <class Op>
OpInfo MakeOpInfo() {
  OpInfo info{.name = Op::kSpec.name,
              .summary = Op::kSpec.summary,
              .source = Op::kSpec.source,
              .target_alias = Op::kSpec.target_alias};
  const Op defaults{};
  ForEachField<Op>([&](const auto& field, size_t) {
    using Member = std::remove_cvref_t<decltype(defaults.*(field.member))>;
    if constexpr (requires { field.access; }) {
      info.operands.push_back({field.name, field.dtype, field.doc, DimsPattern(field.dims, info.symbols), field.access,
                               std::is_same_v<Member, Optional>});
    } else if constexpr (requires { field.one_of; }) {
      info.attributes.push_back(
          {field.name, field.doc, field.one_of, AttrTraits<Member>::kType, ToAttrValue(defaults.*(field.member))});
    } else if constexpr (requires { field.alias; }) {
      info.results.push_back({field.name, field.dtype, field.doc, field.alias, field.mutates, field.when,
                              DimsPattern(field.dims, info.symbols), false});
    } else {
      info.results.push_back({.name = field.name, .dtype = "f32", .doc = "for the op's own use", .workspace = true});
    }
  });
  info.run_cpu = [](const Call& call, const CpuContext& context) { return Fill<Op>(call).Run(context); };
#ifdef INTARSIA_WITH_CUDA
  info.run_cuda = [](const Call& call, const CudaContext& context) { return Fill<Op>(call).Run(context); };
#endif
  info.check = [](const Call& call) -> Status {
    if constexpr (requires(const Op& op) { op.Check(); }) return Fill<Op>(call).Check();
    return {};
  };
  info.workspace_dims = [](const Call& call) -> std::array<int64_t, 2> {
    if constexpr (requires(const Op& op) { op.WorkspaceDims(); }) return Fill<Op>(call).WorkspaceDims();
    return {};
  };
  return info;
}

}  // namespace intarsia
