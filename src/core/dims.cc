#include "src/core/dims.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "src/core/cache_layout.h"
#include "src/core/tensor_view.h"

namespace intarsia {
namespace {

std::vector<std::string_view> Split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  for (size_t end; (end = text.find(separator)) != text.npos;
       text.remove_prefix(end + separator.size()))
    parts.push_back(text.substr(0, end));
  parts.push_back(text);
  return parts;
}

// `symbol`: from a name to its number.
template <class Symbol>
DimsTerm ParseTerm(std::string_view text, Symbol symbol) {
  DimsTerm term;
  term.text = text;
  if (text == "...") {
    term.ellipsis = true;
    return term;
  }
  if (const size_t mark = text.find('?'); mark != text.npos) {
    term.condition = text.substr(0, mark);
    text.remove_prefix(mark + 1);
    term.text = text;
  }
  if (const size_t plus = text.find('+'); plus != text.npos) {
    term.addend = std::atoll(std::string(text.substr(plus + 1)).c_str());
    text = text.substr(0, plus);
  }
  if (const size_t slash = text.find('/'); slash != text.npos) {
    term.divisor = symbol(text.substr(slash + 1));
    text = text.substr(0, slash);
  }
  for (std::string_view factor : Split(text, "*")) {
    if (std::isdigit(static_cast<unsigned char>(factor[0])))
      term.constant *= std::atoll(std::string(factor).c_str());
    else
      term.factors.push_back(symbol(factor));
  }
  return term;
}

template <class Symbol>
std::vector<DimsTerm> ParseTerms(std::string_view text, Symbol symbol) {
  std::vector<DimsTerm> terms;
  if (!text.empty())
    for (const std::string_view term : Split(text, " ")) terms.push_back(ParseTerm(term, symbol));
  return terms;
}

bool Holds(const std::vector<std::string>& all, const Conditions& conditions) {
  return std::ranges::all_of(all, [&](const std::string& one) { return conditions.Holds(one); });
}
bool Holds(const DimsTerm& term, const Conditions& conditions) {
  return term.condition.empty() || conditions.Holds(term.condition);
}

std::string VariantText(const DimsVariant& variant, const Conditions& conditions) {
  std::string text;
  for (const DimsTerm& term : variant.terms)
    if (Holds(term, conditions)) text += (text.empty() ? "" : " ") + term.text;
  return "[" + text + "]";
}

// A condition as a caller reads it: " where layout=combined", " with block_table", " without it".
std::string ConditionText(std::string_view condition) {
  if (condition.find('=') != condition.npos) return Text(" where ", condition);
  const bool absent = condition.starts_with('!');
  return Text(absent ? " without " : " with ", condition.substr(absent));
}

// Whether `shape` is what the variant's last two axes would be the other way round: a transposed
// matrix, whose sizes alone do not tell a reader what is wrong.
bool LooksTransposed(const DimsVariant& variant, std::span<const int64_t> shape,
                     std::span<const int64_t> wanted) {
  return variant.terms.size() == 2 && shape.size() == 2 && shape[0] != shape[1] &&
         (wanted[0] < 0 || wanted[0] == shape[1]) && (wanted[1] < 0 || wanted[1] == shape[0]) &&
         (wanted[0] >= 0 || wanted[1] >= 0);
}

// Whether the axes that a variant gives as plain integers have those sizes; its "..." stands for
// `rest` axes.
bool IntegersFit(const DimsVariant& variant, std::span<const int64_t> shape, int64_t rest,
                 const Conditions& conditions) {
  size_t axis = 0;
  for (const DimsTerm& term : variant.terms) {
    if (!Holds(term, conditions)) continue;
    if (term.ellipsis) {
      axis += static_cast<size_t>(rest);
      continue;
    }
    if (term.factors.empty() && shape[axis] != term.constant + term.addend) return false;
    ++axis;
  }
  return true;
}

}  // namespace

int SymbolTable::Find(std::string_view name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  return found == names_.end() ? -1 : static_cast<int>(found - names_.begin());
}

int SymbolTable::Intern(std::string_view name) {
  if (const int found = Find(name); found >= 0) return found;
  names_.emplace_back(name);
  return size() - 1;
}

DimsPattern::DimsPattern(std::string_view text, SymbolTable& symbols) {
  for (std::string_view part : Split(text, " | "))
    text_ += (text_.empty() ? "" : " | ") + ExpandCacheDims(part);
  for (std::string_view part : Split(text_, " | ")) {
    DimsVariant variant;
    for (size_t colon; (colon = part.find(": ")) != part.npos; part.remove_prefix(colon + 2))
      variant.conditions.emplace_back(part.substr(0, colon));
    if (part.starts_with('@'))
      variant.cache = part;
    else
      variant.terms = ParseTerms(part, [&](std::string_view name) { return symbols.Intern(name); });
    variants_.push_back(std::move(variant));
  }
}

DimsBinding::DimsBinding(const SymbolTable& symbols) : symbols_(symbols) {
  std::fill_n(values_.begin(), symbols.size(), Binding{-1, {}});
}

void DimsBinding::Set(int symbol, int64_t value, std::string_view from) {
  values_[static_cast<size_t>(symbol)] = {value, from};
}

const DimsVariant* DimsBinding::Applying(const DimsVariant& variant, const Conditions& conditions,
                                         std::optional<DimsVariant>& spelled) const {
  if (!Holds(variant.conditions, conditions)) return nullptr;
  if (variant.cache.empty()) return &variant;
  const std::string_view layout = conditions.Value("layout");
  CacheLayout row;
  if (layout.find(' ') == layout.npos || !FindLayout(layout, row).ok()) return nullptr;
  const std::string dims = CacheDims(variant.cache, row);
  if (dims.empty()) return nullptr;
  spelled.emplace().terms =
      ParseTerms(dims, [&](std::string_view name) { return symbols_.Find(name); });
  return &*spelled;
}

Status DimsBinding::Match(const DimsPattern& pattern, std::span<const int64_t> shape,
                          const Conditions& conditions, std::string_view from) {
  std::optional<DimsVariant> spelled;
  for (const DimsVariant& candidate : pattern.variants()) {
    const DimsVariant* const applying = Applying(candidate, conditions, spelled);
    if (!applying) continue;
    const DimsVariant& variant = *applying;
    // How many axes this variant names, and whether the rest can be "...".
    int64_t named = 0;
    bool open = false;
    for (const DimsTerm& term : variant.terms) {
      open |= term.ellipsis;
      named += !term.ellipsis && Holds(term, conditions);
    }
    const int64_t rest = static_cast<int64_t>(shape.size()) - named;
    bool fits = open ? rest >= 0 && (ellipsis_.value < 0 || rest == ellipsis_.value) : rest == 0;
    if (fits && &candidate != &pattern.variants().back())
      fits = IntegersFit(variant, shape, rest, conditions);
    if (open && rest >= 0 && !fits && pattern.variants().size() == 1)
      return InvalidArgument(
          Text("has ", rest, " leading axes but ", ellipsis_.from, " has ", ellipsis_.value));
    if (!fits) continue;
    size_t axis = 0;
    for (const DimsTerm& term : variant.terms) {
      if (!Holds(term, conditions)) continue;
      if (!term.ellipsis) {
        Status status = MatchTerm(term, shape[axis++], from);
        if (!status.ok()) status.message += WhyText(variant, shape, conditions, from);
        INTARSIA_RETURN_IF_ERROR(std::move(status));
        continue;
      }
      const auto axes = shape.subspan(axis, static_cast<size_t>(rest));
      if (ellipsis_.value < 0) {
        ellipsis_ = {rest, from};
        std::copy(axes.begin(), axes.end(), ellipsis_dims_.begin());
      } else if (!std::equal(axes.begin(), axes.end(), ellipsis_dims_.begin())) {
        return InvalidArgument(Text("has leading axes ", ShapeText(axes), " but ", ellipsis_.from,
                                    " has ",
                                    ShapeText({ellipsis_dims_.data(), static_cast<size_t>(rest)})));
      }
      axis += static_cast<size_t>(rest);
    }
    return {};
  }
  return NoneFits(pattern, shape, conditions);
}

std::string DimsBinding::WhyText(const DimsVariant& variant, std::span<const int64_t> shape,
                                 const Conditions& conditions, std::string_view from) const {
  std::string text;
  if (!variant.conditions.empty()) text = ConditionText(variant.conditions.front());
  // What the axes should be, where another operand has said so.
  int64_t wanted[2] = {-1, -1};
  for (size_t i = 0; i < std::min<size_t>(variant.terms.size(), 2); ++i) {
    const DimsTerm& term = variant.terms[i];
    if (term.factors.size() != 1 || term.text != symbols_.name(term.factors[0])) return text;
    const Binding& binding = values_[static_cast<size_t>(term.factors[0])];
    if (binding.from != from) wanted[i] = binding.value;
  }
  if (LooksTransposed(variant, shape, wanted))
    text +=
        Text("; its shape is ", ShapeText(shape), ", expected ", VariantText(variant, conditions));
  return text;
}

Status DimsBinding::NoneFits(const DimsPattern& pattern, std::span<const int64_t> shape,
                             const Conditions& conditions) const {
  std::string expected;
  std::optional<DimsVariant> spelled;
  for (const DimsVariant& candidate : pattern.variants())
    if (const DimsVariant* variant = Applying(candidate, conditions, spelled))
      expected += (expected.empty() ? "" : " or ") + VariantText(*variant, conditions);
  if (expected.empty()) return InvalidArgument("is given, but must be absent in such a call");
  // What one more operand or attribute would allow.
  for (const DimsVariant& candidate : pattern.variants())
    if (candidate.cache.empty() && candidate.conditions.size() == 1 &&
        candidate.conditions[0].find_first_of("=!") == std::string::npos &&
        !Holds(candidate.conditions, conditions))
      expected +=
          Text(", or ", VariantText(candidate, conditions), ConditionText(candidate.conditions[0]));
  return InvalidArgument(Text("has shape ", ShapeText(shape), ", expected ", expected));
}

Status DimsBinding::MatchTerm(const DimsTerm& term, int64_t axis_size, std::string_view from) {
  const int64_t size = axis_size - term.addend;
  if (size < 0)
    return InvalidArgument(
        Text("has ", term.text, "=", axis_size, ", expected at least ", term.addend));
  // The product of what is known, and the one symbol that may be unknown.
  int64_t known = term.constant;
  int unknown = -1;
  bool overflow = false;
  for (int symbol : term.factors) {
    if (value(symbol) < 0 && unknown < 0)
      unknown = symbol;
    else
      overflow |= __builtin_mul_overflow(known, value(symbol), &known);
  }
  int64_t product = size;  // what the factors must make
  if (term.divisor >= 0) overflow |= __builtin_mul_overflow(size, value(term.divisor), &product);
  if (unknown >= 0) {
    if (overflow || known <= 0 || product % known != 0)
      return InvalidArgument(
          Text("has ", term.text, "=", size, ", expected a multiple of ", known));
    Set(unknown, product / known, from);
    return {};
  }
  if (!overflow && known == product) return {};
  std::string why;
  for (int symbol : term.factors) {
    const Binding& binding = values_[static_cast<size_t>(symbol)];
    why += Text(why.empty() ? " but " : " and ", binding.from, " has ", symbols_.name(symbol), "=",
                binding.value);
  }
  if (term.factors.empty())
    return InvalidArgument(Text("has size ", size, " where ", known, " is expected"));
  if (term.text != symbols_.name(term.factors[0]) && !overflow && term.divisor < 0)
    why += Text(", expected ", known + term.addend);
  return InvalidArgument(Text("has ", term.text, "=", axis_size, why));
}

Status DimsBinding::Evaluate(const DimsPattern& pattern, const Conditions& conditions,
                             std::vector<int64_t>& shape) const {
  shape.clear();
  shape.reserve(kMaxRank);
  std::optional<DimsVariant> spelled;
  for (const DimsVariant& candidate : pattern.variants()) {
    const DimsVariant* const applying = Applying(candidate, conditions, spelled);
    if (!applying) continue;
    for (const DimsTerm& term : applying->terms) {
      if (!Holds(term, conditions)) continue;
      if (term.ellipsis) {
        shape.insert(shape.end(), ellipsis_dims_.begin(),
                     ellipsis_dims_.begin() + std::max<int64_t>(ellipsis_.value, 0));
        continue;
      }
      int64_t size = term.constant;
      for (int symbol : term.factors) {
        if (value(symbol) < 0)
          return Internal(Text("nothing says what ", symbols_.name(symbol), " is"));
        if (__builtin_mul_overflow(size, value(symbol), &size))
          return InvalidArgument("has a size above 2^63");
      }
      if (term.divisor >= 0) {
        const int64_t by = value(term.divisor);
        if (by <= 0 || size % by != 0)
          return InvalidArgument(Text("has ", term.text, " with ", symbols_.name(term.divisor), "=",
                                      by, ", which does not divide ", size));
        size /= by;
      }
      if (__builtin_add_overflow(size, term.addend, &size))
        return InvalidArgument("has a size above 2^63");
      shape.push_back(size);
    }
    return {};
  }
  return Internal("no dims for this call");
}

}  // namespace intarsia
