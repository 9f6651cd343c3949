// Legal calls of an op, made from nothing but its spec: each letter gets a small size.
#pragma once
#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "src/core/op_info.h"

namespace intarsia::stub {

using Sizes = std::map<std::string, int64_t>;

// All different where the grammar allows, so that no mix-up passes: h a multiple of hk, d of 8, r
// twice pairs, slots <= t, heads = num_heads + 2 hk, hk not next to 1 where that is allowed, kb and
// kg what 3 columns k take, nb, ng, ib and ig what 3 tiles u and c have. A letter that is
// not here has size 3.
inline Sizes SmallSizes() {
  return {{"b", 2},         {"kb", 1}, {"kg", 1},         {"ko", 1},       {"d", 16},
          {"dv", 16},       {"h", 6},  {"head_size", 16}, {"hk", 3},       {"heads", 12},
          {"num_heads", 6}, {"l", 4},  {"m", 7},          {"max_pos", 11}, {"n", 128},
          {"max_rows", 6},  {"p", 12}, {"packs", 32},     {"pairs", 4},    {"r", 8},
          {"ranks", 2},     {"s", 5},  {"slots", 8},      {"t", 9},        {"tk", 13},
          {"tq", 10},       {"nb", 2}, {"ng", 1},         {"ib", 1},       {"ig", 1},
          {"no", 1},        {"io", 1}};
}

struct Example {
  Call call;  // shapes and dtypes, no addresses; results as inferred
  // For each operand and axis: whether only this axis says what its letter is, so that another size
  // is another legal call.
  std::vector<std::vector<bool>> free;
  Status inferred;
};

class ExampleMaker {
 public:
  // `lead`: the sizes of "...".
  ExampleMaker(const OpInfo& op, DType type, Sizes sizes, std::vector<int64_t> lead = {2, 3})
      : op_(op), type_(type), sizes_(std::move(sizes)), lead_(std::move(lead)) {}

  struct Form {
    size_t given;    // bits: which optional operands are
    size_t choice;   // of the strings with choices
    size_t variant;  // of the dims, those that the conditions leave
    size_t types;    // of the dtypes; an operand that allows fewer has its last
    bool flags;      // bools and attributes without default differ from the default
  };

  // One for each set of optional operands, choice of strings and variant of dims that is legal.
  std::vector<Example> LegalCalls() const {
    std::vector<Example> legal;
    std::set<std::string> seen;
    for (Example& example : AllCalls())
      if (example.inferred.ok() && seen.insert(Describe(op_, example.call)).second)
        legal.push_back(std::move(example));
    return legal;
  }

  std::vector<Example> AllCalls() const {
    std::vector<Example> examples;
    size_t optional = 0;
    for (const OperandInfo& operand : op_.operands) optional += operand.optional;
    for (size_t given = 0; given < size_t{1} << optional; ++given) {
      if (std::popcount(given) > kMaxGiven && given + 1 != size_t{1} << optional) continue;
      for (size_t choice = 0; choice < MostChoices(); ++choice)
        for (const bool flags : {false, true}) {
          for (size_t variant = 0; variant < kVariants; ++variant)
            examples.push_back(Make({given, choice, variant, 0, flags}));
          for (size_t types = 1; types < MostTypes(); ++types)
            examples.push_back(Make({given, choice, 0, types, flags}));
        }
    }
    return examples;
  }

  Example Make(const Form& form) const {
    Example example;
    Call& call = example.call;
    for (size_t i = 0; i < op_.attributes.size(); ++i)
      call.attributes[i] = Attribute(op_.attributes[i], form.choice, form.flags);
    size_t bit = 0;
    for (size_t i = 0; i < op_.operands.size(); ++i)
      if (!op_.operands[i].optional || (form.given >> bit++ & 1)) call.operands[i].emplace();
    const CallConditions conditions(op_, call);
    std::vector<std::vector<const DimsTerm*>> axes(op_.operands.size());
    for (size_t i = 0; i < op_.operands.size(); ++i) {
      if (!call.operands[i]) continue;
      const auto dims = Expand(op_.operands[i].dims, conditions, form.variant, axes[i]);
      const DType dtype = DTypeOf(op_.operands[i], form.types);
      if (Status s = MakeDense(nullptr, dtype, dims, *call.operands[i]); !s.ok()) {
        example.inferred = s;
        return example;
      }
    }
    example.inferred = Infer(op_, call);
    example.free = Free(axes, conditions);
    return example;
  }

  static size_t CountWords(std::string_view list) {  // "i32|i64"
    return 1 + static_cast<size_t>(std::ranges::count(list, '|'));
  }
  size_t MostChoices() const {
    size_t most = 1;
    for (const AttributeInfo& info : op_.attributes) most = std::max(most, CountWords(info.one_of));
    return most;
  }
  size_t MostTypes() const {
    size_t most = 1;
    for (const OperandInfo& operand : op_.operands)
      most = std::max(most, CountWords(operand.dtype));
    return most;
  }

  static std::string Describe(const OpInfo& op, const Call& call) {
    std::string text(op.name);
    for (size_t i = 0; i < op.operands.size(); ++i)
      if (call.operands[i])
        text += Text(" ", op.operands[i].name, ":", Name(call.operands[i]->dtype),
                     ShapeText(call.operands[i]->shape()));
    for (size_t i = 0; i < op.attributes.size(); ++i) {
      const AttrValue& value = call.attributes[i];
      text += Text(" ", op.attributes[i].name, "=");
      if (const auto* b = std::get_if<bool>(&value)) text += *b ? "true" : "false";
      if (const auto* n = std::get_if<int64_t>(&value)) text += std::to_string(*n);
      if (const auto* x = std::get_if<double>(&value)) text += std::to_string(*x);
      if (const auto* s = std::get_if<std::string_view>(&value)) text += *s;
    }
    return text;
  }

 private:
  static constexpr size_t kVariants = 2;
  static constexpr int kMaxGiven = 3;  // optional operands of a call, but for one that has all

  int64_t SizeOf(std::string_view letter) const {
    const auto found = sizes_.find(std::string(letter));
    return found == sizes_.end() ? 3 : found->second;
  }

  AttrValue Attribute(const AttributeInfo& info, size_t choice, bool flags) const {
    if (info.type == AttrType::kString) {
      std::string_view rest = info.one_of;
      for (; choice > 0 && rest.find('|') != rest.npos; --choice)
        rest.remove_prefix(rest.find('|') + 1);
      return rest.substr(0, rest.find('|'));
    }
    if (!flags) return info.default_value;
    if (info.type == AttrType::kBool) return !std::get<bool>(info.default_value);
    if (!std::holds_alternative<std::monostate>(info.default_value)) return info.default_value;
    return info.type == AttrType::kI64 ? AttrValue(SizeOf(info.name)) : AttrValue(0.5);
  }

  DType DTypeOf(const OperandInfo& info, size_t types) const {
    if (const int like = op_.FindOperand(info.dtype); like >= 0)
      return DTypeOf(op_.operands[static_cast<size_t>(like)], types);
    std::string_view rest = info.dtype;
    for (size_t i = std::min(types, CountWords(info.dtype) - 1); i > 0; --i)
      rest.remove_prefix(rest.find('|') + 1);
    return DTypeFromName(rest.substr(0, rest.find('|'))).value_or(type_);
  }

  // The shape; `axes` gets the term of each axis, null for those of "...".
  std::vector<int64_t> Expand(const DimsPattern& pattern, const Conditions& conditions,
                              size_t choice, std::vector<const DimsTerm*>& axes) const {
    const DimsVariant* chosen = nullptr;
    for (const DimsVariant& variant : pattern.variants()) {
      bool holds = variant.cache.empty();  // an order of axes that some call spells is for others
      for (const std::string& condition : variant.conditions) holds &= conditions.Holds(condition);
      if (holds) chosen = &variant;
      if (holds && choice-- == 0) break;
    }
    std::vector<int64_t> dims;
    if (!chosen) return dims;
    for (const DimsTerm& term : chosen->terms) {
      if (!term.condition.empty() && !conditions.Holds(term.condition)) continue;
      if (term.ellipsis) {
        dims.insert(dims.end(), lead_.begin(), lead_.end());
        axes.insert(axes.end(), lead_.size(), nullptr);
        continue;
      }
      int64_t size = term.constant;
      for (const int symbol : term.factors)  // may wrap: a fuzzer's letters have any size
        __builtin_mul_overflow(size, SizeOf(op_.symbols.name(symbol)), &size);
      if (term.divisor >= 0) size /= std::max<int64_t>(SizeOf(op_.symbols.name(term.divisor)), 1);
      __builtin_add_overflow(size, term.addend, &size);
      dims.push_back(size);
      axes.push_back(&term);
    }
    return dims;
  }

  std::vector<std::vector<bool>> Free(const std::vector<std::vector<const DimsTerm*>>& axes,
                                      const Conditions& conditions) const {
    std::map<int, int> uses;
    std::set<int> mirrored;  // operands whose shape a result has
    const auto count = [&](const std::vector<const DimsTerm*>& terms) {
      for (const DimsTerm* term : terms)
        if (term)
          for (const int symbol : term->factors) ++uses[symbol];
    };
    for (const auto& terms : axes) count(terms);
    for (const ResultInfo& result : op_.results) {
      std::vector<const DimsTerm*> terms;
      if (result.workspace || (!result.when.empty() && !conditions.Holds(result.when))) continue;
      if (result.dims.text().starts_with('='))
        mirrored.insert(op_.FindOperand(result.dims.text().substr(1)));
      else
        Expand(result.dims, conditions, 0, terms);
      count(terms);
    }
    std::vector<std::vector<bool>> free(axes.size());
    for (size_t i = 0; i < axes.size(); ++i)
      for (const DimsTerm* term : axes[i])
        free[i].push_back(term && !mirrored.contains(static_cast<int>(i)) &&
                          term->factors.size() == 1 && term->constant == 1 &&
                          uses[term->factors[0]] == 1);
    return free;
  }

  const OpInfo& op_;
  DType type_;
  Sizes sizes_;
  std::vector<int64_t> lead_;
};

}  // namespace intarsia::stub
