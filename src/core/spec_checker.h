// Reads the words of a spec at compile time: names, conditions, dims (dims.h has their grammar) and
// dtypes. valid_spec.h gives it the fields of an op as rows without types.
#pragma once
#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "src/core/cache_layout.h"
#include "src/core/dtype.h"
#include "src/core/spec.h"
#include "src/core/spec_fault.h"

namespace intarsia {

// A field of a spec. What its kind does not have is empty.
struct FieldRow {
  FieldKind kind{};
  std::string_view name{}, dims{}, dtype{}, indexes{}, one_of{}, alias{}, mutates{}, when{};
  bool optional = false;  // operands
  // Attributes; has_type: one that the wire knows.
  bool has_type = false, is_integer = false, is_real = false, is_string = false, is_flag = false;
  bool not_negative = false;
};

class SpecChecker {
 public:
  constexpr SpecChecker(std::string_view op, std::span<const FieldRow> rows, FirstFault& fault)
      : op_(op), rows_(rows), fault_(fault) {}

  // Whether all is well; if not, the fault says what is first.
  constexpr bool Check(std::string_view separable) {
    if (!IsName(op_)) return Fault("the op's name is not of a-z, 0-9 and _");
    for (size_t i = 0; i < rows_.size(); ++i)
      if (!CheckName(i)) return false;
    if (!CheckCounts()) return false;
    for (const FieldRow& row : rows_)
      if (row.kind == FieldKind::kOperand && !CheckOperand(row)) return false;
    for (const FieldRow& row : rows_) {
      if (row.kind == FieldKind::kOperand && !CheckIndexes(row)) return false;
      if (row.kind == FieldKind::kResult && !CheckResult(row)) return false;
    }
    if (!separable.empty() && !IsBound(separable))
      return Fault("Separable(\"", separable, "\"): no operand has that letter");
    return true;
  }

 private:
  template <class... Pieces>
  constexpr bool Fault(const Pieces&... pieces) {
    return fault_.Is(op_, ": ", pieces...);
  }

  static constexpr bool IsDigits(std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  }
  static constexpr bool IsName(std::string_view text) {
    return !text.empty() && !IsDigits(text.substr(0, 1)) &&
           text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == text.npos;
  }
  // The text before the first separator, which leaves `rest` with what is behind it. `more`: there
  // was one.
  static constexpr std::string_view Next(std::string_view& rest, std::string_view separator,
                                         bool& more) {
    const size_t at = rest.find(separator);
    const std::string_view part = rest.substr(0, at);
    more = at != rest.npos;
    rest.remove_prefix(more ? at + separator.size() : rest.size());
    return part;
  }
  static constexpr bool Lists(std::string_view list, std::string_view word) {
    for (bool more = true; more;)
      if (Next(list, "|", more) == word) return true;
    return false;
  }

  constexpr const FieldRow* Find(FieldKind kind, std::string_view name) const {
    for (const FieldRow& row : rows_)
      if (row.kind == kind && row.name == name) return &row;
    return nullptr;
  }
  constexpr const FieldRow* Operand(std::string_view name) const {
    return Find(FieldKind::kOperand, name);
  }
  constexpr const FieldRow* Attribute(std::string_view name) const {
    return Find(FieldKind::kAttribute, name);
  }

  // Operands and attributes are parameters of one function, results are a list of their own.
  static constexpr bool IsParameter(FieldKind kind) {
    return kind == FieldKind::kOperand || kind == FieldKind::kAttribute;
  }
  constexpr bool CheckName(size_t i) {
    const FieldRow& row = rows_[i];
    if (!IsName(row.name)) return Fault("\"", row.name, "\" is no name: a-z, 0-9 and _");
    if (row.kind == FieldKind::kAttribute && row.name == "present")
      return Fault("present: the wire has an attribute of that name for every op");
    if (row.kind == FieldKind::kAttribute && !CheckType(row)) return false;
    for (size_t j = 0; j < i; ++j)
      if (rows_[j].name == row.name && IsParameter(rows_[j].kind) == IsParameter(row.kind))
        return Fault(row.name, ": two fields have that name");
    return true;
  }

  constexpr bool CheckType(const FieldRow& row) {
    if (!row.has_type)
      return Fault(row.name, ": its type is none of float, int64_t, bool and std::string_view");
    if (row.not_negative && !row.is_real) return Fault(row.name, ": NotNegative() is for floats");
    return true;
  }

  constexpr bool CheckCounts() {
    size_t operands = 0, attributes = 0, results = 0;
    for (const FieldRow& row : rows_)
      ++(row.kind == FieldKind::kOperand     ? operands
         : row.kind == FieldKind::kAttribute ? attributes
                                             : results);
    if (operands > kMaxOperands) return Fault("more operands than kMaxOperands");
    if (attributes > kMaxAttributes) return Fault("more attributes than kMaxAttributes");
    if (results > kMaxResults) return Fault("more results than kMaxResults");
    return true;
  }

  constexpr bool CheckOperand(const FieldRow& row) { return CheckDType(row) && CheckDims(row); }

  constexpr bool CheckIndexes(const FieldRow& row) {
    return row.indexes.empty() || CheckSize(row, row.indexes, row.indexes, false);
  }

  constexpr bool CheckResult(const FieldRow& row) {
    if (!row.alias.empty() && !Operand(row.alias))
      return Fault(row.name, ": Alias(\"", row.alias, "\") names no operand");
    if (!row.mutates.empty() && !Operand(row.mutates))
      return Fault(row.name, ": Mutates(\"", row.mutates, "\") names no operand");
    if (!row.when.empty()) {
      const FieldRow *operand = Operand(row.when), *flag = Attribute(row.when);
      if (!(operand && operand->optional) && !(flag && flag->is_flag))
        return Fault(row.name, ": When(\"", row.when, "\") names no optional operand or bool");
    }
    if (row.dims.starts_with('=')) {
      if (!Operand(row.dims.substr(1)))
        return Fault(row.name, ": dims \"", row.dims, "\" name no operand");
      return CheckDType(row);
    }
    return CheckDType(row) && CheckDims(row);
  }

  constexpr bool CheckDType(const FieldRow& row) {
    std::string_view rest = row.dtype;
    for (bool more = true; more;) {
      const std::string_view word = Next(rest, "|", more);
      const FieldRow* attribute = row.kind == FieldKind::kResult ? Attribute(word) : nullptr;
      if (word != "T" && (!DTypeFromName(word) || word == Name(DType::kOther)) && !Operand(word) &&
          !(attribute && attribute->is_string))
        return Fault(row.name, ": dtype \"", row.dtype, "\" has the unknown word \"", word, "\"");
    }
    return true;
  }

  // Each variant of an operand's dims binds letters of its own; those of all are known afterwards.
  constexpr bool CheckDims(const FieldRow& row) {
    const size_t before = num_bound_;
    std::array<std::string_view, kMostLetters> all = bound_;
    size_t num_all = before;
    std::string_view rest = row.dims;
    for (bool more = true; more;) {
      num_bound_ = before;
      if (!CheckVariant(row, Next(rest, " | ", more))) return false;
      for (size_t i = before; i < num_bound_; ++i) {
        const auto* end = all.data() + num_all;
        if (std::find(static_cast<const std::string_view*>(all.data()), end, bound_[i]) != end)
          continue;  // another variant binds it, too
        if (num_all == kMostLetters) return Fault(row.name, ": the op has too many letters");
        all[num_all++] = bound_[i];
      }
    }
    bound_ = all;
    num_bound_ = num_all;
    return true;
  }

  constexpr bool CheckVariant(const FieldRow& row, std::string_view text) {
    while (text.find(": ") != text.npos) {
      bool more = false;
      if (!CheckCondition(row, Next(text, ": ", more))) return false;
    }
    if (text == "@key_cache" || text == "@value_cache") {
      if (!Attribute("layout"))
        return Fault(row.name, ": dims \"", row.dims, "\" want an attribute layout");
      for (const std::string_view axis : {"l", "p", "s", "hk", "d"})
        if (!Bind(row, axis)) return false;
      return true;
    }
    bool is_first = true;
    for (bool more = !text.empty(); more; is_first = false)
      if (!CheckTerm(row, Next(text, " ", more), is_first)) return false;
    return true;
  }

  constexpr bool CheckCondition(const FieldRow& row, std::string_view text) {
    bool has_value = false;
    std::string_view rest = text.starts_with('!') ? text.substr(1) : text;
    const std::string_view name = Next(rest, "=", has_value);
    const FieldRow* attribute = Attribute(name);
    if (!attribute && !Operand(name))
      return Fault(row.name, ": dims \"", row.dims, "\": condition \"", text,
                   "\" names no operand or attribute");
    if (has_value && !(attribute && attribute->is_string &&
                       (attribute->one_of.empty() || Lists(attribute->one_of, rest))))
      return Fault(row.name, ": dims \"", row.dims, "\": condition \"", text,
                   "\" compares with what ", name, " cannot be");
    return true;
  }

  constexpr bool CheckTerm(const FieldRow& row, std::string_view term, bool is_first) {
    if (term == "...")
      return is_first || Fault(row.name, ": dims \"", row.dims, "\": ... does not come first");
    if (term.find('?') != term.npos) {
      bool more = false;
      if (!CheckCondition(row, Next(term, "?", more))) return false;
    }
    return CheckSize(row, row.dims, term, row.kind == FieldKind::kOperand);
  }

  // size := factor ("*" factor)* ["/" name] ["+" integer]. Where it binds, one letter may be new:
  // it is what the axis says.
  constexpr bool CheckSize(const FieldRow& row, std::string_view dims, std::string_view size,
                           bool binds) {
    const std::string_view whole = size;
    bool has_addend = false, has_divisor = false;
    std::string_view rest = size;
    size = Next(rest, "+", has_addend);
    if (has_addend && !IsDigits(rest))
      return Fault(row.name, ": dims \"", dims, "\": no integer behind + in \"", whole, "\"");
    rest = size;
    size = Next(rest, "/", has_divisor);
    if (has_divisor && !IsName(rest))
      return Fault(row.name, ": dims \"", dims, "\": no name behind / in \"", whole, "\"");
    if (has_divisor && !IsKnown(rest))
      return Fault(row.name, ": dims \"", dims, "\": nothing says what ", rest, " is");
    for (bool more = true; more;) {
      const std::string_view factor = Next(size, "*", more);
      if (IsDigits(factor)) continue;
      if (!IsName(factor))
        return Fault(row.name, ": dims \"", dims, "\": \"", whole, "\" is no size of an axis");
      if (const FieldRow* attribute = Attribute(factor); attribute && !attribute->is_integer)
        return Fault(row.name, ": dims \"", dims, "\": attribute ", factor, " is no integer");
      if (IsKnown(factor)) continue;
      if (!binds)
        return Fault(row.name, ": dims \"", dims, "\": nothing says what ", factor, " is");
      binds = false;
      if (!Bind(row, factor)) return false;
    }
    return true;
  }

  constexpr bool IsBound(std::string_view letter) const {
    for (size_t i = 0; i < num_bound_; ++i)
      if (bound_[i] == letter) return true;
    return false;
  }
  constexpr bool IsKnown(std::string_view name) const { return IsBound(name) || Attribute(name); }
  constexpr bool Bind(const FieldRow& row, std::string_view letter) {
    if (IsBound(letter)) return true;
    if (num_bound_ == kMostLetters) return Fault(row.name, ": the op has too many letters");
    bound_[num_bound_++] = letter;
    return true;
  }

  static constexpr size_t kMostLetters = 48;  // as DimsBinding has room for

  std::string_view op_;
  std::span<const FieldRow> rows_;
  FirstFault& fault_;
  std::array<std::string_view, kMostLetters> bound_{};  // letters that the operands so far bind
  size_t num_bound_ = 0;
};

}  // namespace intarsia
