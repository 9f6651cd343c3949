#include "src/pjrt/plugin/in_place.h"

#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

namespace intarsia::pjrt {
namespace {

// The numbers of fields are those of xla/service/hlo.proto and xla/xla_data.proto.

enum Kind : uint64_t { kVarint = 0, kEightBytes = 1, kLengthAndBytes = 2, kFourBytes = 5 };

// A field of a serialized protobuf message.
struct Field {
  uint64_t number = 0, kind = 0;
  uint64_t value = 0;      // of a varint
  std::string_view bytes;  // of a string or message
  std::string_view whole;  // with its tag
};

// Reads a message field by field; whatever is no message ends it with `ok` false.
class Reader {
 public:
  explicit Reader(std::string_view message) : rest_(message) {}
  bool ok() const { return ok_; }

  bool Next(Field& field) {
    if (rest_.empty() || !ok_) return false;
    const std::string_view start = rest_;
    const uint64_t tag = Varint();
    field = Field();
    field.number = tag >> 3;
    field.kind = tag & 7;
    switch (field.kind) {
      case kVarint:
        field.value = Varint();
        break;
      case kEightBytes:
        Take(8);
        break;
      case kLengthAndBytes:
        field.bytes = Take(Varint());
        break;
      case kFourBytes:
        Take(4);
        break;
      default:
        ok_ = false;
    }
    field.whole = start.substr(0, start.size() - rest_.size());
    return ok_;
  }

  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::string_view byte = Take(1);
      if (!ok_) return 0;
      value |= static_cast<uint64_t>(byte[0] & 0x7F) << shift;
      if (!(byte[0] & 0x80)) return value;
    }
    ok_ = false;
    return 0;
  }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view Take(uint64_t size) {
    if (size > rest_.size()) ok_ = false;
    const std::string_view taken = rest_.substr(0, ok_ ? size : 0);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest_;
  bool ok_ = true;
};

using Numbers = std::vector<int64_t>;

// A repeated number comes one by one or packed.
bool Append(const Field& field, Numbers& numbers) {
  if (field.kind == kVarint) return numbers.push_back(static_cast<int64_t>(field.value)), true;
  Reader packed(field.bytes);
  while (!packed.empty() && packed.ok()) numbers.push_back(static_cast<int64_t>(packed.Varint()));
  return packed.ok();
}

struct Alias {
  Numbers result;  // the path into a tuple of results
  int64_t operand = 0;
  Numbers within;  // the path into that operand
};

struct Instruction {
  int64_t id = 0, parameter = 0, element = 0;
  std::string_view opcode;
  Numbers operands, called;
  std::vector<Alias> aliases;
};

struct Computation {
  int64_t id = 0, root = 0;
  std::unordered_map<int64_t, Instruction> instructions;
};

struct Module {
  int64_t entry = 0;
  std::unordered_map<int64_t, Computation> computations;
  std::set<int64_t> given_up;  // parameters; those that are arrays
  bool has_aliases = false;
};

bool Read(std::string_view bytes, Alias& alias) {
  Reader reader(bytes);
  bool ok = true;
  for (Field f; reader.Next(f);) {
    if (f.number == 1) ok &= Append(f, alias.result);
    if (f.number == 2) alias.operand = static_cast<int64_t>(f.value);
    if (f.number == 3) ok &= Append(f, alias.within);
  }
  return ok && reader.ok();
}

bool Read(std::string_view bytes, Instruction& instruction) {
  Reader reader(bytes);
  bool ok = true;
  for (Field f; reader.Next(f);) {
    if (f.number == 2) instruction.opcode = f.bytes;
    if (f.number == 9) instruction.parameter = static_cast<int64_t>(f.value);
    if (f.number == 13) instruction.element = static_cast<int64_t>(f.value);
    if (f.number == 35) instruction.id = static_cast<int64_t>(f.value);
    if (f.number == 36) ok &= Append(f, instruction.operands);
    if (f.number == 38) ok &= Append(f, instruction.called);
    if (f.number == 74) ok &= Read(f.bytes, instruction.aliases.emplace_back());
  }
  return ok && reader.ok();
}

bool Read(std::string_view bytes, Computation& computation) {
  Reader reader(bytes);
  for (Field f; reader.Next(f);) {
    if (f.number == 5) computation.id = static_cast<int64_t>(f.value);
    if (f.number == 6) computation.root = static_cast<int64_t>(f.value);
    if (f.number != 2) continue;
    Instruction instruction;
    if (!Read(f.bytes, instruction)) return false;
    const int64_t id = instruction.id;
    computation.instructions.emplace(id, std::move(instruction));
  }
  return reader.ok();
}

bool ReadGivenUp(std::string_view bytes, std::set<int64_t>& parameters) {
  Reader entries(bytes);
  for (Field entry; entries.Next(entry);) {
    Reader reader(entry.bytes);
    int64_t parameter = 0;
    for (Field f; reader.Next(f);) {
      if (f.number == 1) parameter = static_cast<int64_t>(f.value);
      if (f.number == 2) return false;  // a part of a tuple
    }
    if (!reader.ok()) return false;
    parameters.insert(parameter);
  }
  return entries.ok();
}

bool Read(std::string_view bytes, Module& module) {
  Reader reader(bytes);
  for (Field f; reader.Next(f);) {
    if (f.number == 6) module.entry = static_cast<int64_t>(f.value);
    if (f.number == 8) module.has_aliases |= !f.bytes.empty();
    if (f.number == 18 && !ReadGivenUp(f.bytes, module.given_up)) return false;
    if (f.number != 3) continue;
    Computation computation;
    if (!Read(f.bytes, computation)) return false;
    const int64_t id = computation.id;
    module.computations.emplace(id, std::move(computation));
  }
  return reader.ok();
}

// Follows values to where they come from.
class Tracer {
 public:
  explicit Tracer(const Module& module) : module_(module) {}

  // The parameter of the computation whose buffer the value of an instruction, or that element of
  // its tuple, has after at least one custom call wrote to it; none if it is another buffer.
  std::optional<int64_t> Parameter(const Computation& computation, int64_t id,
                                   std::optional<int64_t> element) {
    written_ = false;
    steps_ = 0;
    const std::optional<int64_t> found = Follow(computation, id, element);
    return written_ ? found : std::nullopt;
  }

 private:
  // Bounds that programs stay far below, for those that lead in a circle.
  static constexpr int kMostSteps = 10000;
  static constexpr int kMostCalls = 100;  // within one another

  std::optional<int64_t> Follow(const Computation& computation, int64_t id,
                                std::optional<int64_t> element, int calls = 0) {
    while (++steps_ <= kMostSteps) {
      const auto at = computation.instructions.find(id);
      if (at == computation.instructions.end()) return {};
      const Instruction& instruction = at->second;
      std::optional<int64_t> from;  // the operand that the value is
      std::optional<int64_t> inner;
      if (instruction.opcode == "parameter" && !element) return instruction.parameter;
      if (instruction.opcode == "tuple") {
        from = element;
      } else if (instruction.opcode == "get-tuple-element" && !element) {
        from = 0;
        inner = instruction.element;
      } else if (instruction.opcode == "call" && instruction.called.size() == 1) {
        const auto callee = module_.computations.find(instruction.called[0]);
        if (callee == module_.computations.end() || calls == kMostCalls) return {};
        from = Follow(callee->second, callee->second.root, element, calls + 1);
      } else if (instruction.opcode == "custom-call") {
        from = Shared(instruction, element);
        written_ |= from.has_value();
      }
      if (!from || *from < 0 || *from >= static_cast<int64_t>(instruction.operands.size()))
        return {};
      id = instruction.operands[static_cast<size_t>(*from)];
      element = inner;
    }
    return {};
  }

  // The operand whose buffer the result of a custom call, or that element of it, has.
  static std::optional<int64_t> Shared(const Instruction& custom_call,
                                       std::optional<int64_t> element) {
    for (const Alias& alias : custom_call.aliases) {
      if (alias.result == (element ? Numbers{*element} : Numbers{}) && alias.within.empty())
        return alias.operand;
    }
    return {};
  }

  const Module& module_;
  bool written_ = false;
  int steps_ = 0;
};

void AddVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void AddNumber(std::string& out, uint64_t field, int64_t value) {
  AddVarint(out, field << 3 | kVarint);
  AddVarint(out, static_cast<uint64_t>(value));
}

void AddMessage(std::string& out, uint64_t field, std::string_view message) {
  AddVarint(out, field << 3 | kLengthAndBytes);
  AddVarint(out, message.size());
  out += message;
}

}  // namespace

std::string AliasGivenUpParameters(std::string_view hlo_module) {
  Module module;
  if (!Read(hlo_module, module) || module.has_aliases || module.given_up.empty()) return {};
  const auto entry = module.computations.find(module.entry);
  if (entry == module.computations.end()) return {};
  const auto root = entry->second.instructions.find(entry->second.root);
  if (root == entry->second.instructions.end() || root->second.opcode != "tuple") return {};

  std::string aliases;
  Tracer tracer(module);
  for (size_t i = 0; i < root->second.operands.size(); ++i) {
    const auto parameter = tracer.Parameter(entry->second, root->second.operands[i], {});
    if (!parameter || !module.given_up.erase(*parameter)) continue;
    constexpr int64_t kMayAlias = 1;
    std::string alias;
    AddNumber(alias, 1, static_cast<int64_t>(i));
    AddNumber(alias, 2, *parameter);
    AddNumber(alias, 4, kMayAlias);
    AddMessage(aliases, 1, alias);
  }
  if (aliases.empty()) return {};

  std::string result;
  Reader reader(hlo_module);
  for (Field f; reader.Next(f);)
    if (f.number != 18) result += f.whole;
  std::string given_up;
  for (const int64_t parameter : module.given_up) {
    std::string one;
    AddNumber(one, 1, parameter);
    AddMessage(given_up, 1, one);
  }
  AddMessage(result, 8, aliases);
  AddMessage(result, 18, given_up);
  return result;
}

}  // namespace intarsia::pjrt
