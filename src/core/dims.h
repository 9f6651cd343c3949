// The little language in which a spec states shapes.
//
//   dims     := "=" operand                     the shape of that operand (results only)
//             | variant (" | " variant)*        the first whose conditions hold and whose rank and
//                                               plain integers fit ("1 | hk")
//   variant  := (condition ": ")* term (" " term)*
//   condition:= ["!"] name | name "=" value     an operand or attribute is given (a bool: is true),
//   or
//                                               a string is that value
//   term     := "..." | [name "?"] size         "layer?l": the axis l is there if layer is given
//   size     := factor ("*" factor)* ["/" name] ["+" integer]
//   factor   := integer | letter(s) | attribute
//
// "..." stands for any number of axes, the same ones wherever it occurs. A letter has one size in
// the whole call. "@key_cache" and "@value_cache" stand for the layouts of cache_layout.h: those
// that have names, and the order of axes that the attribute `layout` may spell.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/status.h"

namespace intarsia {

// Names to small integers, so that a check compares numbers and not text.
class SymbolTable {
 public:
  int Intern(std::string_view name);
  int Find(std::string_view name) const;  // -1: not there
  int size() const { return static_cast<int>(names_.size()); }
  const std::string& name(int symbol) const { return names_[static_cast<size_t>(symbol)]; }

 private:
  std::vector<std::string> names_;
};

struct DimsTerm {
  bool ellipsis = false;
  std::string condition;     // of the axis; empty: always
  int64_t constant = 1;      // times
  std::vector<int> factors;  // these symbols
  int divisor = -1;          // over this one, if any
  int64_t addend = 0;        // plus
  std::string text;
};

struct DimsVariant {
  std::vector<std::string> conditions;  // all must hold
  std::vector<DimsTerm> terms;
  std::string cache = {};  // "@key_cache": the terms are those that the call's `layout` spells
};

class DimsPattern {
 public:
  DimsPattern() = default;
  DimsPattern(std::string_view text, SymbolTable& symbols);  // text is trusted: it is ours
  const std::string& text() const { return text_; }
  const std::vector<DimsVariant>& variants() const { return variants_; }

 private:
  std::string text_;
  std::vector<DimsVariant> variants_;
};

// Whether a condition holds in the call at hand, and what a string attribute says there.
class Conditions {
 public:
  virtual bool Holds(std::string_view condition) const = 0;
  virtual std::string_view Value(std::string_view attribute) const = 0;

 protected:
  ~Conditions() = default;
};

// What the symbols of one call stand for, and which operand said so first.
class DimsBinding {
 public:
  explicit DimsBinding(const SymbolTable& symbols);

  // An attribute's value.
  void Set(int symbol, int64_t value, std::string_view from);
  // Matches a shape, binding what is new. The message completes "<op>: <operand> ".
  Status Match(const DimsPattern& pattern, std::span<const int64_t> shape,
               const Conditions& conditions, std::string_view from);
  // The shape that a pattern stands for; fails if a symbol in it is unknown.
  Status Evaluate(const DimsPattern& pattern, const Conditions& conditions,
                  std::vector<int64_t>& shape) const;
  // How many axes "..." stands for; -1 while nothing that matched has it.
  int leading_axes() const { return static_cast<int>(ellipsis_.value); }

 private:
  struct Binding {
    int64_t value;  // -1: unknown
    std::string_view from;
  };
  static constexpr size_t kMaxSymbols = 48;
  // The variant if its conditions hold, else null. One whose terms the call spells is put into
  // `spelled`.
  const DimsVariant* Applying(const DimsVariant& variant, const Conditions& conditions,
                              std::optional<DimsVariant>& spelled) const;
  // What to say besides of an axis of the wrong size.
  std::string WhyText(const DimsVariant& variant, std::span<const int64_t> shape,
                      const Conditions& conditions, std::string_view from) const;
  // What a shape could have been, where none of the variants fits it.
  Status NoneFits(const DimsPattern& pattern, std::span<const int64_t> shape,
                  const Conditions& conditions) const;
  Status MatchTerm(const DimsTerm& term, int64_t axis_size, std::string_view from);
  int64_t value(int symbol) const { return values_[static_cast<size_t>(symbol)].value; }

  const SymbolTable& symbols_;
  std::array<Binding, kMaxSymbols> values_;  // of the symbols that there are
  Binding ellipsis_{-1, {}};                 // value: how many axes
  std::array<int64_t, 8> ellipsis_dims_;
};

}  // namespace intarsia
