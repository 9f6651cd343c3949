// From an op's struct to its OpInfo, and from a Call to a filled struct. The only templates between
// a front end and an op's Run.
#pragma once
#include <type_traits>

#include "src/core/op_info.h"
#include "src/core/valid_spec.h"

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

template <class Op>
bool WritesElements(const Call& call) {
  bool writes = false;
  ForEachField<Op>([&]<class Field>(const Field&, size_t i) {
    if constexpr (Field::kKind == FieldKind::kResult)
      writes |= call.results[i] && call.results[i]->size() > 0;
  });
  return writes;
}

// Results without elements take no time, however long the axes beside an empty one are.
template <class Op, class Context>
Status RunOp(const Call& call, const Context& context) {
  if (!WritesElements<Op>(call)) return {};
  return InOp(Op::kSpec.name, Fill<Op>(call).Run(context));
}

template <class Op>
OpInfo MakeOpInfo() {
  static_assert(kValidSpec<Op>);
  OpInfo info{.name = Op::kSpec.name,
              .summary = Op::kSpec.summary,
              .source = Op::kSpec.source,
              .target_alias = Op::kSpec.target_alias,
              .separable = Op::kSpec.separable,
              .platforms = Op::kSpec.platforms};
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
                                 ToAttrValue(defaults.*(field.member)), field.or_cache_axes,
                                 field.not_negative});
    } else if constexpr (Field::kKind == FieldKind::kResult) {
      info.results.push_back({field.name, field.dtype, field.doc, field.alias, field.mutates,
                              field.when, DimsPattern(field.dims, info.symbols), false});
    } else {
      info.results.push_back(
          {.name = field.name, .dtype = "f32", .doc = "for the op's own use", .workspace = true});
    }
  });
  info.ResolveNames();
  if constexpr (Op::kSpec.platforms.Has(Platform::kCpu)) info.run_cpu = &RunOp<Op, CpuContext>;
#ifdef INTARSIA_WITH_CUDA
  if constexpr (Op::kSpec.platforms.Has(Platform::kCuda)) info.run_cuda = &RunOp<Op, CudaContext>;
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
