// Which parameters that a program gives up become the buffers of which results, over
// HloModuleProtos written by hand.
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "src/pjrt/plugin/in_place.h"

namespace intarsia::pjrt {
namespace {

std::string Varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  return out + static_cast<char>(value);
}
std::string N(uint64_t field, int64_t value) {
  return Varint(field << 3) + Varint(static_cast<uint64_t>(value));
}
std::string M(uint64_t field, const std::string& message) {
  return Varint(field << 3 | 2) + Varint(message.size()) + message;
}

std::string Instruction(int64_t id, const std::string& opcode,
                        std::initializer_list<int64_t> operands, const std::string& more = "") {
  std::string packed;
  for (const int64_t operand : operands) packed += Varint(static_cast<uint64_t>(operand));
  return M(2, M(1, "name") + M(2, opcode) + N(35, id) + M(36, packed) + more);
}
std::string Parameter(int64_t id, int64_t number) {
  return Instruction(id, "parameter", {}, N(9, number));
}
std::string Element(int64_t id, int64_t of, int64_t index) {
  return Instruction(id, "get-tuple-element", {of}, N(13, index));
}
// Result `result` of a custom call has the buffer of `operand`.
std::string Shares(int64_t result, int64_t operand) {
  return M(74, M(1, Varint(static_cast<uint64_t>(result))) + N(2, operand));
}
std::string Computation(int64_t id, int64_t root, const std::string& instructions) {
  return M(3, instructions + N(5, id) + N(6, root));
}
std::string GivenUp(std::initializer_list<int64_t> parameters) {
  std::string entries;
  for (const int64_t parameter : parameters) entries += M(1, N(1, parameter));
  return M(18, entries);
}
std::string Aliased(std::initializer_list<std::pair<int64_t, int64_t>> pairs) {
  std::string entries;
  for (const auto& [result, parameter] : pairs)
    entries += M(1, N(1, result) + N(2, parameter) + N(4, 1));
  return M(8, entries);
}

// As torch_xla writes it: a write of two caches (operands 0 and 1) within a call, and the caches
// are parameters 2 and 1 of the program.
const std::string kWrite =
    Computation(7, 16,
                Parameter(11, 0) + Parameter(12, 1) +
                    Instruction(13, "custom-call", {11, 12}, Shares(0, 0) + Shares(1, 1)) +
                    Element(14, 13, 0) + Element(15, 13, 1) + Instruction(16, "tuple", {14, 15}));
const std::string kHead = M(1, "program") + N(6, 8);
const std::string kParameters = Parameter(20, 0) + Parameter(21, 1) + Parameter(22, 2);
const std::string kCall =
    Instruction(23, "call", {22, 21}, N(38, 7)) + Element(24, 23, 0) + Element(25, 23, 1);

TEST(InPlace, EachCacheKeepsItsBuffer) {
  const std::string entry =
      kWrite + Computation(8, 26, kParameters + kCall + Instruction(26, "tuple", {24, 20, 25}));
  EXPECT_EQ(AliasGivenUpParameters(kHead + entry + M(8, "") + GivenUp({0, 1, 2})),
            kHead + entry + M(8, "") + Aliased({{0, 2}, {2, 1}}) + GivenUp({0}));
}

TEST(InPlace, SeveralWritesOfACacheAreOne) {
  const std::string again = Instruction(27, "call", {24, 25}, N(38, 7)) + Element(28, 27, 0);
  const std::string entry =
      kWrite + Computation(8, 26, kParameters + kCall + again + Instruction(26, "tuple", {28}));
  EXPECT_EQ(AliasGivenUpParameters(kHead + entry + GivenUp({2})),
            kHead + entry + Aliased({{0, 2}}) + GivenUp({}));
}

TEST(InPlace, ABufferIsGivenOnce) {
  const std::string entry =
      kWrite + Computation(8, 26, kParameters + kCall + Instruction(26, "tuple", {24, 24}));
  EXPECT_EQ(AliasGivenUpParameters(kHead + entry + GivenUp({2})),
            kHead + entry + Aliased({{0, 2}}) + GivenUp({}));
}

TEST(InPlace, LeavesOtherProgramsAlone) {
  const auto program = [](const std::string& root, const std::string& more) {
    return kHead + kWrite + Computation(8, 26, kParameters + kCall + root) + more;
  };
  const std::string root = Instruction(26, "tuple", {24, 25});
  EXPECT_EQ(AliasGivenUpParameters(program(root, "")), "") << "nothing is given up";
  EXPECT_EQ(AliasGivenUpParameters(program(root, GivenUp({0}))), "") << "no cache is given up";
  EXPECT_EQ(AliasGivenUpParameters(program(root, Aliased({{0, 1}}) + GivenUp({2}))), "")
      << "the caller said it already";
  EXPECT_EQ(AliasGivenUpParameters(program(Instruction(26, "tuple", {22}), GivenUp({2}))), "")
      << "no custom call writes";
  EXPECT_EQ(AliasGivenUpParameters(program(
                Instruction(27, "add", {24, 24}) + Instruction(26, "tuple", {27}), GivenUp({2}))),
            "")
      << "the result is another buffer";
  EXPECT_EQ(AliasGivenUpParameters(program(root, M(18, M(1, N(1, 2) + M(2, "\1"))))), "")
      << "an element of a tuple is given up";
  EXPECT_EQ(AliasGivenUpParameters(
                program(Element(27, 26, 0) + Instruction(26, "tuple", {27}), GivenUp({2}))),
            "")
      << "a cycle";
  EXPECT_EQ(AliasGivenUpParameters(program(Instruction(27, "call", {20}, N(38, 8)) +
                                               Element(28, 27, 0) + Instruction(26, "tuple", {28}),
                                           GivenUp({2}))),
            "")
      << "a computation that calls itself";
}

TEST(InPlace, WhatIsNoModuleIsLeftAlone) {
  const std::string whole =
      kHead + kWrite +
      Computation(8, 26, kParameters + kCall + Instruction(26, "tuple", {24, 25})) +
      GivenUp({1, 2});
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_EQ(AliasGivenUpParameters(whole.substr(0, size)), "") << size;
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string broken = whole;
    broken[at] = static_cast<char>(~broken[at]);
    AliasGivenUpParameters(broken);  // whatever it says: it ends, and reads nothing outside
  }
}

}  // namespace
}  // namespace intarsia::pjrt
