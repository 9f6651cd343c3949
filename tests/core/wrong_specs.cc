// Specs that must not compile. tests/test_wrong_specs.py compiles this file, which fails, and looks
// for each fault below in what the compiler says: the text behind "// fault:" above a struct.
#include "src/core/op.h"
#include "src/core/valid_spec.h"

namespace intarsia {

struct Members {
  TensorView x;
  Optional weight;
  int64_t group = 2;
  float eps = 0;
  std::string_view mode = "plain";
  TensorView out;
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};

// A spec of Members, right but for what a case puts in the place of a part.
struct Parts {
  std::string_view name;
  const char *x = "... n", *x_dtype = "T", *weight_name = "weight", *weight = "n", *mode = "mode",
             *out = "... n/group", *out_dtype = "mode";
};
template <class M>
constexpr auto SpecOf(const Parts& p) {
  return MakeSpec(p.name, "An op for tests.", "nowhere", In("x", &M::x, p.x, p.x_dtype, "rows"),
                  In(p.weight_name, &M::weight, p.weight, "T|f32", "scale"),
                  Attr("group", &M::group, "columns of a group"), Attr("eps", &M::eps, "a number"),
                  Attr(p.mode, &M::mode, "how").OneOf("plain|f32"),
                  Out("out", &M::out, p.out, p.out_dtype, "result"));
}

struct Right : Members {
  static constexpr auto kSpec = SpecOf<Members>({.name = "right"});
};
static_assert(kValidSpec<Right>);

// fault: no_addend: x: dims "... n+": no integer behind + in "n+"
struct NoAddend : Members {
  static constexpr auto kSpec = SpecOf<Members>({.name = "no_addend", .x = "... n+"});
};
static_assert(kValidSpec<NoAddend>);

// fault: two_blanks: x: dims "...  n": "" is no size of an axis
struct TwoBlanks : Members {
  static constexpr auto kSpec = SpecOf<Members>({.name = "two_blanks", .x = "...  n"});
};
static_assert(kValidSpec<TwoBlanks>);

// fault: late_ellipsis: x: dims "n ...": ... does not come first
struct LateEllipsis : Members {
  static constexpr auto kSpec = SpecOf<Members>({.name = "late_ellipsis", .x = "n ..."});
};
static_assert(kValidSpec<LateEllipsis>);

// fault: unknown_condition: x: dims "wight: n | n 2": condition "wight" names no operand or
// attribute
struct UnknownCondition : Members {
  static constexpr auto kSpec =
      SpecOf<Members>({.name = "unknown_condition", .x = "wight: n | n 2"});
};
static_assert(kValidSpec<UnknownCondition>);

// fault: two_new: weight: dims "k*j": nothing says what j is
struct TwoNew : Members {
  static constexpr auto kSpec = SpecOf<Members>({.name = "two_new", .weight = "k*j"});
};
static_assert(kValidSpec<TwoNew>);

// fault: unknown_letter: out: dims "... z": nothing says what z is
struct UnknownLetter : Members {
  static constexpr auto kSpec = SpecOf<Members>({.name = "unknown_letter", .out = "... z"});
};
static_assert(kValidSpec<UnknownLetter>);

// fault: no_integer: out: dims "... n*eps": attribute eps is no integer
struct NoInteger : Members {
  static constexpr auto kSpec = SpecOf<Members>({.name = "no_integer", .out = "... n*eps"});
};
static_assert(kValidSpec<NoInteger>);

// fault: wrong_dtype: x: dtype "T|float8" has the unknown word "float8"
struct WrongDType : Members {
  static constexpr auto kSpec = SpecOf<Members>({.name = "wrong_dtype", .x_dtype = "T|float8"});
};
static_assert(kValidSpec<WrongDType>);

// fault: same_name: x: two fields have that name
struct SameName : Members {
  static constexpr auto kSpec = SpecOf<Members>({.name = "same_name", .weight_name = "x"});
};
static_assert(kValidSpec<SameName>);

// fault: same_parameter: x: two fields have that name
struct SameParameter : Members {
  static constexpr auto kSpec =
      SpecOf<Members>({.name = "same_parameter", .mode = "x", .out_dtype = "T"});
};
static_assert(kValidSpec<SameParameter>);

// fault: missing_member: a member of the struct is in no field of the spec
struct MissingMember : Members {
  TensorView forgotten;
  static constexpr auto kSpec = SpecOf<Members>({.name = "missing_member"});
};
static_assert(kValidSpec<MissingMember>);

struct MoreMembers {
  TensorView x;
  Optional weight;
  int64_t group = 2;
  float eps = 0;
  std::string_view mode = "plain";
  TensorView out;
  std::optional<int64_t> forgotten;
};
// fault: missing_in_base: a member of the struct is in no field of the spec
struct MissingInBase : MoreMembers {
  static constexpr auto kSpec = SpecOf<MoreMembers>({.name = "missing_in_base"});
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};
static_assert(kValidSpec<MissingInBase>);

// fault: no_cuda: platform cuda wants Run(const CudaContext&) const, which the struct lacks
struct NoCuda {
  TensorView x, out;
  static constexpr auto kSpec =
      MakeSpec("no_cuda", "An op for tests.", "nowhere", In("x", &NoCuda::x, "n", "T", "numbers"),
               Out("out", &NoCuda::out, "=x", "T", "the same"));
  Status Run(const CpuContext&) const;
};
static_assert(kValidSpec<NoCuda>);

// fault: too_much: has Run(const CpuContext&) const, but On(...) leaves out platform cpu
struct TooMuch : Members {
  static constexpr auto kSpec = SpecOf<Members>({.name = "too_much"}).On(Platform::kCuda);
};
static_assert(kValidSpec<TooMuch>);

// fault: no_type: eps: its type is none of float, int64_t, bool and std::string_view
struct NoType {
  TensorView x, out;
  double eps = 0;
  static constexpr auto kSpec = MakeSpec(
      "no_type", "An op for tests.", "nowhere", In("x", &NoType::x, "n", "T", "numbers"),
      Attr("eps", &NoType::eps, "a number"), Out("out", &NoType::out, "=x", "T", "the same"));
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};
static_assert(kValidSpec<NoType>);

// fault: no_float: group: NotNegative() is for floats
struct NoFloat {
  TensorView x, out;
  int64_t group = 0;
  static constexpr auto kSpec =
      MakeSpec("no_float", "An op for tests.", "nowhere", In("x", &NoFloat::x, "n", "T", "numbers"),
               Attr("group", &NoFloat::group, "columns").NotNegative(),
               Out("out", &NoFloat::out, "=x", "T", "the same"));
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};
static_assert(kValidSpec<NoFloat>);

// fault: no_workspace_dims: scratch: the struct has no WorkspaceDims() const
struct NoWorkspaceDims : Members {
  TensorView scratch;
  static constexpr auto kSpec = MakeSpec(
      "no_workspace_dims", "An op for tests.", "nowhere", In("x", &Members::x, "n", "T", "numbers"),
      In("weight", &Members::weight, "n", "T", "scale"),
      Attr("group", &Members::group, "columns of a group"), Attr("eps", &Members::eps, "a number"),
      Attr("mode", &Members::mode, "how"), Out("out", &Members::out, "=x", "T", "the same"),
      Workspace("scratch", &NoWorkspaceDims::scratch));
};
static_assert(kValidSpec<NoWorkspaceDims>);

// fault: wrong_when: out: When("mode") names no optional operand or bool
struct WrongWhen {
  TensorView x, out;
  std::string_view mode = "plain";
  static constexpr auto kSpec =
      MakeSpec("wrong_when", "An op for tests.", "nowhere",
               In("x", &WrongWhen::x, "n", "T", "numbers"), Attr("mode", &WrongWhen::mode, "how"),
               Out("out", &WrongWhen::out, "=x", "T", "the same").When("mode"));
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;
};
static_assert(kValidSpec<WrongWhen>);

}  // namespace intarsia
