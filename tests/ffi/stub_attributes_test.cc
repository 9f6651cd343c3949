// Every op through stub call frames: attributes that are wrong, of the future, or of the past.
#include <algorithm>

#include "tests/ffi/every_op.h"

namespace intarsia::stub {
namespace {

class StubAttributes : public StubFrame {};

INSTANTIATE_TEST_SUITE_P(Ops, StubAttributes, testing::ValuesIn(Targets()), TestName);

TEST_P(StubAttributes, UnknownAttribute) {
  for (const Example& example : Examples())
    ExpectRefused(
        example.call, "unknown attribute",
        [](Frame& frame) { frame.attributes["no_such"] = int64_t{1}; },
        "no_such; exported by a newer intarsia");
}

TEST_P(StubAttributes, UnknownBitsOfPresent) {
  size_t optional = 0;
  for (const OperandInfo& operand : op.operands) optional += operand.optional;
  for (const Example& example : Examples()) {
    for (const size_t bit : {optional, optional + 1, size_t{40}, size_t{63}})
      ExpectRefused(
          example.call, "a bit too many",
          [&](Frame& frame) {
            const auto found = frame.attributes.find("present");
            const int64_t present =
                found == frame.attributes.end() ? 0 : std::get<int64_t>(found->second);
            frame.attributes["present"] =
                static_cast<int64_t>(static_cast<uint64_t>(present) | uint64_t{1} << bit);
          },
          "exported by a newer intarsia");
    for (const Value& value : {Value(true), Value(1.0f), Value(std::string("1")), Value(Array{})})
      ExpectRefused(
          example.call, "present of another type",
          [&](Frame& frame) { frame.attributes["present"] = value; }, "present");
  }
}

TEST_P(StubAttributes, TypesOfAttributes) {
  const std::vector<Example> examples = Examples();
  const Call& call = examples.front().call;
  for (size_t i = 0; i < op.attributes.size(); ++i) {
    const AttributeInfo& attribute = op.attributes[i];
    const auto* given = std::get_if<int64_t>(&call.attributes[i]);
    const int64_t number = given ? *given : 16;
    const auto* text = std::get_if<std::string_view>(&call.attributes[i]);
    const std::vector<std::pair<Value, std::vector<AttrType>>> values = {
        {true, {AttrType::kBool}},
        {number, {AttrType::kI64}},
        {static_cast<int32_t>(number), {AttrType::kI64}},
        {0.25f, {AttrType::kF32}},
        {0.25, {AttrType::kF32}},
        {std::string(text ? *text : "text"), {AttrType::kString}},
        {Array{}, {}},
    };
    for (const auto& [value, fits] : values) {
      const std::string name(attribute.name);
      if (std::find(fits.begin(), fits.end(), attribute.type) == fits.end()) {
        ExpectRefused(
            call, name + " of another type", [&](Frame& frame) { frame.attributes[name] = value; },
            name);
      } else if (on_host) {
        // One that is not given, and a bool, may ask for other results.
        const bool is_size =
            std::any_of(op.results.begin(), op.results.end(), [&](const ResultInfo& result) {
              return result.dims.text().find(attribute.name) != std::string::npos;
            });
        if (attribute.type == AttrType::kBool || (!given && is_size)) continue;
        Memory memory = MakeFrame(op, call);
        memory.frame.attributes[name] = value;
        const Outcome outcome = Invoke(execute, memory.frame);
        EXPECT_EQ(outcome.code, 0) << name << ": " << outcome.message;
      }
    }
    if (!attribute.one_of.empty())
      ExpectRefused(
          call, "a choice that is none",
          [&](Frame& frame) {
            frame.attributes[std::string(attribute.name)] = std::string("no such");
          },
          attribute.one_of);
  }
}

TEST_P(StubAttributes, AttributesMayBeLeftOut) {
  // What a program exported before an attribute existed looks like.
  for (const Example& example : Examples()) {
    Memory memory = MakeFrame(op, example.call);
    for (size_t i = 0; i < op.attributes.size(); ++i)
      if (example.call.attributes[i] == op.attributes[i].default_value)
        memory.frame.attributes.erase(std::string(op.attributes[i].name));
    if (!on_host) continue;
    const Outcome outcome = Invoke(execute, memory.frame);
    EXPECT_EQ(outcome.code, 0) << outcome.message << ExampleMaker::Describe(op, example.call);
  }
}

}  // namespace
}  // namespace intarsia::stub
