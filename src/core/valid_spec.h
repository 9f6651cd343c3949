// Refuses a wrong spec at compile time. The compiler's message names the op and the field:
//   FaultInSpec<FaultText<55>{"rms_norm: weight: dims \"... n+\": no integer behind + in \"n+\""}>
// Only registry.cc includes this for the library's ops.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "src/core/context.h"
#include "src/core/spec_checker.h"
#include "src/core/tensor_view.h"

namespace intarsia {

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

template <class Op, class Context>
concept HasRun = requires(const Op& op, const Context& context) { op.Run(context); };

namespace internal {

template <class Member, class Struct>
Struct StructOf(Member Struct::*);
template <class Member, class Struct>
Member MemberOf(Member Struct::*);

// Initializes a member of any type that a field can have, or a base. Not templates but for the
// base, so that std::optional's own converting constructor is the worse choice.
template <class Struct>
struct AnyMember {
  operator TensorView() &&;
  operator Optional() &&;
  operator bool() &&;
  operator int64_t() &&;
  operator float() &&;
  operator std::string_view() &&;
  operator std::optional<bool>() &&;
  operator std::optional<int64_t>() &&;
  operator std::optional<float>() &&;
  operator std::optional<std::string_view>() &&;
  template <class Base>
    requires(std::is_base_of_v<Base, Struct> && !std::is_same_v<Base, Struct>)
  operator Base() &&;
};

// Whether an aggregate has room for so many initializers.
template <class Struct, size_t kCount>
constexpr bool kTakes = []<size_t... i>(std::index_sequence<i...>) {
  return requires { Struct{(void(i), AnyMember<Struct>{})...}; };
}(std::make_index_sequence<kCount>{});

// Whether a member has the type, or may be without it.
template <class Member, class Type>
constexpr bool kIs = std::is_same_v<Member, Type> || std::is_same_v<Member, std::optional<Type>>;

template <class Op>
constexpr auto RowsOf() {
  constexpr size_t kCount = std::tuple_size_v<decltype(Op::kSpec.fields)>;
  std::array<FieldRow, kCount> rows{};
  size_t next = 0;
  ForEachField<Op>([&]<class Field>(const Field& field, size_t) {
    using Member = decltype(MemberOf(field.member));
    FieldRow& row = rows[next++];
    row.kind = Field::kKind;
    row.name = field.name;
    if constexpr (requires { field.dims; }) row.dims = field.dims;
    if constexpr (requires { field.dtype; }) row.dtype = field.dtype;
    if constexpr (requires { field.indexes; }) row.indexes = field.indexes;
    if constexpr (requires { field.one_of; }) row.one_of = field.one_of;
    if constexpr (Field::kKind == FieldKind::kResult) {
      row.alias = field.alias;
      row.mutates = field.mutates;
      row.when = field.when;
    }
    row.optional = std::is_same_v<Member, Optional>;
    if constexpr (requires { field.not_negative; }) row.not_negative = field.not_negative;
    row.is_flag = std::is_same_v<Member, bool>;
    row.is_string = std::is_same_v<Member, std::string_view>;
    row.is_integer = kIs<Member, int64_t>;
    row.is_real = kIs<Member, float>;
    row.has_type =
        row.is_integer || row.is_real || kIs<Member, bool> || kIs<Member, std::string_view>;
  });
  return rows;
}

// Whether the members of Struct, Op itself or its base, are those that fields of Op name, each
// once.
template <class Struct, class Op>
constexpr void CheckMembers(FirstFault& fault) {
  constexpr size_t kNamed = [] {
    size_t named = 0;
    bool has_base = false;
    ForEachField<Op>([&]<class Field>(const Field& field, size_t) {
      using Owner = decltype(StructOf(field.member));
      named += std::is_same_v<Owner, Struct>;
      has_base |= std::is_same_v<Struct, Op> && !std::is_same_v<Owner, Op>;
    });
    return named + has_base;
  }();
  if constexpr (kTakes<Struct, kNamed + 1>)
    fault.Is(Op::kSpec.name, ": a member of the struct is in no field of the spec");
  if constexpr (!kTakes<Struct, kNamed>)
    fault.Is(Op::kSpec.name,
             ": two fields name one member, or a member has a type that no field can have");
}

// Op must have a Run for the platforms that its spec names, and for no other.
template <class Op, class Context>
constexpr void CheckRun(Platform platform, std::string_view signature, FirstFault& fault) {
  const bool declared = Op::kSpec.platforms.Has(platform);
  if (declared && !HasRun<Op, Context>)
    fault.Is(Op::kSpec.name, ": platform ", Name(platform), " wants ", signature,
             ", which the struct lacks; or On(...) names the others");
  if (!declared && HasRun<Op, Context>)
    fault.Is(Op::kSpec.name, ": has ", signature, ", but On(...) leaves out platform ",
             Name(platform));
}

template <class Op>
consteval FirstFault FindFault() {
  FirstFault fault;
  const auto rows = RowsOf<Op>();
  if (!SpecChecker(Op::kSpec.name, rows, fault).Check(Op::kSpec.separable)) return fault;
  CheckMembers<Op, Op>(fault);
  ForEachField<Op>([&]<class Field>(const Field& field, size_t) {
    CheckMembers<decltype(StructOf(field.member)), Op>(fault);
    if (Field::kKind == FieldKind::kWorkspace && !requires(const Op& op) { op.WorkspaceDims(); })
      fault.Is(Op::kSpec.name, ": ", field.name, ": the struct has no WorkspaceDims() const");
  });
  if (Op::kSpec.platforms.empty()) fault.Is(Op::kSpec.name, ": On() names no platform");
  CheckRun<Op, CpuContext>(Platform::kCpu, "Run(const CpuContext&) const", fault);
  CheckRun<Op, CudaContext>(Platform::kCuda, "Run(const CudaContext&) const", fault);
  return fault;
}

template <class Op>
consteval bool IsValid() {
  constexpr FirstFault kFault = FindFault<Op>();
  if constexpr (kFault.size() > 0)
    return sizeof(FaultInSpec<Shortened<kFault.size() + 1>(kFault)>) > 0;
  return true;
}

}  // namespace internal

template <class Op>
constexpr bool kValidSpec = internal::IsValid<Op>();

}  // namespace intarsia
