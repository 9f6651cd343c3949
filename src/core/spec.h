// How an op describes itself: an op is a struct whose members are its operands, attributes and
// results, and a constexpr spec beside them says what each member means. See rms_norm.h for a
// whole one, op_info.h for what is made of it, and dims.h for the grammar of `dims`.
#pragma once
#include <array>
#include <cstddef>
#include <string_view>
#include <tuple>

#include "src/core/platform.h"

namespace intarsia {

// What the kernel can take. A front end with strided tensors (torch) makes an input dense when the
// op needs that; XLA's buffers are always dense.
enum class Access {
  kDense,
  kRows /* last stride is 1 */,
  kEvenRows /* and all rows lie at one distance */,
  kEvenLeading /* as kRows, and the axes of "..." are walked at one distance */
};

// What a Call has room for; workspaces count as results.
inline constexpr size_t kMaxOperands = 20, kMaxAttributes = 16, kMaxResults = 6;

enum class FieldKind { kOperand, kAttribute, kResult, kWorkspace };

// An operand. dtype: "T" (one type of f32, f16, bf16 for all that say T), names such as "i32|i64",
// both ("T|f32"), or the name of another operand whose dtype it shares. Optional if the member is
// `Optional`.
template <class Member>
struct In {
  static constexpr FieldKind kKind = FieldKind::kOperand;
  std::string_view name;
  Member member;
  std::string_view dims, dtype, doc;
  Access access = Access::kDense;
  std::string_view indexes = {};
  bool negative_skips = false;

  constexpr In Takes(Access a) const {
    In copy = *this;
    copy.access = a;
    return copy;
  }
  // Its elements are indices below this size ("max_pos", "p*s"). Kernels skip what is outside,
  // since one bad request must not take down a server; INTARSIA_CHECK=1 reports it.
  constexpr In Indexes(std::string_view size) const {
    In copy = *this;
    copy.indexes = size;
    return copy;
  }
  // The same, but a negative index is a legal way to say "none".
  constexpr In IndexesOrNegative(std::string_view size) const {
    In copy = Indexes(size);
    copy.negative_skips = true;
    return copy;
  }
};

// An attribute. Its type and default are the member's; std::optional has no default value.
template <class Member>
struct Attr {
  static constexpr FieldKind kKind = FieldKind::kAttribute;
  std::string_view name;
  Member member;
  std::string_view doc;
  std::string_view one_of = {};  // "once|before_weight"
  bool or_cache_axes = false;
  bool not_negative = false;

  // A float that NaN, infinity and what is below 0 are refused for.
  constexpr Attr NotNegative() const {
    Attr copy = *this;
    copy.not_negative = true;
    return copy;
  }
  constexpr Attr OneOf(std::string_view choices) const {
    Attr copy = *this;
    copy.one_of = choices;
    return copy;
  }
  // The choices are names of cache layouts; another order of axes may be spelled (cache_layout.h).
  constexpr Attr OrCacheAxes() const {
    Attr copy = *this;
    copy.or_cache_axes = true;
    return copy;
  }
};

// A result. dtype: "T", a name, an operand's name, or that of a string attribute whose value says
// it: a dtype's name, or another word for T. T is bf16 if no operand is one. `alias` shares the
// operand's buffer in XLA; `mutates` is what the op writes in place where tensors are mutable
// (torch). `when` names the optional operand or the bool attribute without which the result does
// not exist.
template <class Member>
struct Out {
  static constexpr FieldKind kKind = FieldKind::kResult;
  std::string_view name;
  Member member;
  std::string_view dims, dtype, doc;
  std::string_view alias = {}, mutates = {}, when = {};

  constexpr Out Alias(std::string_view operand) const {
    Out copy = *this;
    copy.alias = copy.mutates = operand;
    return copy;
  }
  constexpr Out Mutates(std::string_view operand) const {
    Out copy = *this;
    copy.mutates = operand;
    return copy;
  }
  constexpr Out When(std::string_view condition) const {
    Out copy = *this;
    copy.when = condition;
    return copy;
  }
};

// Memory for the op's own use, f32 [dim 0, dim 1]. An op with one has
//   std::array<int64_t, 2> WorkspaceDims() const;
// a pure function of shapes and attributes. XLA records the answer in the program, so Run must take
// its sizes from the workspace that it gets and never from what it would ask for today.
template <class Member>
struct Workspace {
  static constexpr FieldKind kKind = FieldKind::kWorkspace;
  std::string_view name;
  Member member;
};

template <class M>
In(const char*, M, const char*, const char*, const char*) -> In<M>;
template <class M>
Attr(const char*, M, const char*) -> Attr<M>;
template <class M>
Out(const char*, M, const char*, const char*, const char*) -> Out<M>;
template <class M>
Workspace(const char*, M) -> Workspace<M>;

template <class... Fields>
struct Spec {
  std::string_view name, summary, source;
  std::tuple<Fields...> fields;
  std::string_view target_alias = {};
  std::string_view separable = {};
  PlatformSet platforms = PlatformSet(Platform::kCpu, Platform::kCuda);

  // A second target under which the handlers are registered, word for word.
  constexpr Spec AlsoTarget(std::string_view target) const {
    Spec copy = *this;
    copy.target_alias = target;
    return copy;
  }
  // A letter whose elements do not meet: a call on a part of that axis gives that part of the
  // results, so the axis can be spread over devices. Heads ("h", "hk") and "..." always can.
  constexpr Spec Separable(std::string_view letter) const {
    Spec copy = *this;
    copy.separable = letter;
    return copy;
  }
  // The platforms that the op has a Run for; all, if the spec does not say. Front ends, docs and
  // tests derive from it what to offer where (CONTRIBUTING.md, "An op on one platform").
  template <class... Platforms>
  constexpr Spec On(Platforms... those) const {
    Spec copy = *this;
    copy.platforms = PlatformSet(those...);
    return copy;
  }
};

// source: where the definition comes from (a paper, another library's op).
template <class... Fields>
constexpr auto MakeSpec(std::string_view name, std::string_view summary, std::string_view source,
                        Fields... fields) {
  return Spec<Fields...>{name, summary, source, std::tuple<Fields...>(fields...)};
}

}  // namespace intarsia
