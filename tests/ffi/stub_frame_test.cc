// Every op through stub call frames, without XLA: legal calls of all its forms, then each way in
// which a call can be wrong. All of it is made from the specs, so that a new op is covered by
// itself.
#include <algorithm>
#include <limits>

#include "src/core/config.h"
#include "tests/ffi/every_op.h"

namespace intarsia::stub {
namespace {

constexpr DType kActivations[] = {DType::kF32, DType::kF16, DType::kBF16};

INSTANTIATE_TEST_SUITE_P(Ops, StubFrame, testing::ValuesIn(Targets()), TestName);

TEST_P(StubFrame, Metadata) {
  const XLA_FFI_Metadata metadata = stub::Metadata(execute);
  EXPECT_EQ(metadata.api_version.major_version, 0);
  EXPECT_EQ(metadata.api_version.minor_version, 3);
  const bool capturable = metadata.traits & XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE;
  EXPECT_EQ(capturable, !on_host && !GetConfig().check_indices);
}

TEST_P(StubFrame, HasLegalCallsOfEveryForm) {
  // A guard of the derivation itself: each optional operand, choice and result occurs in some legal
  // call.
  std::set<std::string> seen;
  for (const Example& example : Examples()) {
    for (size_t i = 0; i < op.operands.size(); ++i)
      seen.insert(Text(op.operands[i].name, example.call.operands[i] ? "" : " absent"));
    for (size_t i = 0; i < op.results.size(); ++i)
      if (example.call.results[i]) seen.insert(Text("result ", op.results[i].name));
    for (size_t i = 0; i < op.attributes.size(); ++i)
      if (const auto* text = std::get_if<std::string_view>(&example.call.attributes[i]))
        seen.insert(Text(op.attributes[i].name, "=", *text));
  }
  for (const OperandInfo& operand : op.operands) {
    EXPECT_TRUE(seen.contains(std::string(operand.name))) << operand.name;
    EXPECT_EQ(seen.contains(Text(operand.name, " absent")), operand.optional) << operand.name;
  }
  for (const ResultInfo& result : op.results)
    EXPECT_TRUE(seen.contains(Text("result ", result.name)));
  for (const AttributeInfo& attribute : op.attributes) {
    for (std::string_view rest = attribute.one_of; !rest.empty();) {
      const std::string_view choice = rest.substr(0, rest.find('|'));
      rest.remove_prefix(std::min(rest.size(), choice.size() + 1));
      EXPECT_TRUE(seen.contains(Text(attribute.name, "=", choice)));
    }
  }
}

// Runs a legal call twice over memory that holds different things at first.
void ExpectRuns(const OpInfo& op, XLA_FFI_Handler* execute, const Call& call, int64_t indices = 0) {
  SCOPED_TRACE(ExampleMaker::Describe(op, call));
  Memory first = MakeFrame(op, call, indices, 0xa5), second = MakeFrame(op, call, indices, 0x5a);
  for (Memory* memory : {&first, &second}) {
    const Outcome outcome = Invoke(execute, memory->frame);
    ASSERT_EQ(outcome.code, 0) << outcome.message;
  }
  size_t next = 0;
  for (size_t i = 0; i < op.results.size(); ++i) {
    if (!call.results[i] || op.results[i].workspace) continue;
    const void *a = first.frame.results[next].data, *b = second.frame.results[next].data;
    const auto bytes = static_cast<size_t>(call.results[i]->size() * Bytes(call.results[i]->dtype));
    ++next;
    if (bytes > 0) {
      EXPECT_EQ(std::memcmp(a, b, bytes), 0)
          << "not every element of " << op.results[i].name << " was written";
    }
  }
}

TEST_P(StubFrame, LegalCallsRunAndWriteEveryElement) {
  if (!on_host) GTEST_SKIP() << "needs memory of the device; test_ops.py runs the op there";
  for (const DType type : kActivations)
    for (const Example& example : Examples(type)) ExpectRuns(op, execute, example.call);
}

TEST_P(StubFrame, IndicesMayBeAnything) {
  if (!on_host) GTEST_SKIP() << "needs memory of the device; test_properties.py runs the op there";
  constexpr int64_t kAnything[] = {-3, -1000, 1000, std::numeric_limits<int32_t>::min(),
                                   std::numeric_limits<int32_t>::max() - 1000};
  for (const Example& example : Examples())
    for (const int64_t indices : kAnything) ExpectRuns(op, execute, example.call, indices);
}

TEST_P(StubFrame, SizesZeroAndOne) {
  if (!on_host) GTEST_SKIP() << "needs memory of the device; test_ops.py runs the op there";
  for (int symbol = 0; symbol < op.symbols.size(); ++symbol) {
    for (const int64_t size : {0, 1}) {
      Sizes sizes = SmallSizes();
      sizes[op.symbols.name(symbol)] = size;
      for (const Example& example : Examples(DType::kBF16, sizes))
        ExpectRuns(op, execute, example.call);
    }
  }
}

TEST_P(StubFrame, WrongRank) {
  for (const Example& example : Examples()) {
    const size_t operands = MakeFrame(op, example.call).frame.operands.size();
    for (size_t i = 0; i < operands; ++i) {
      // Not of size 1: one scale for all may also be that of the only block.
      ExpectRefused(example.call, "one axis more",
                    [&](Frame& frame) { frame.operands[i].dims.push_back(5); });
      ExpectRefused(
          example.call, "rank 9", [&](Frame& frame) { frame.operands[i].dims.assign(9, 1); },
          "rank 9");
      if (MakeFrame(op, example.call).frame.operands[i].dims.empty()) continue;
      ExpectRefused(example.call, "one axis less",
                    [&](Frame& frame) { frame.operands[i].dims.pop_back(); });
    }
  }
}

TEST_P(StubFrame, WrongDimension) {
  for (const Example& example : Examples()) {
    size_t next = 0;  // in the frame, where absent operands have no place
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (!example.call.operands[i]) continue;
      for (size_t axis = 0; axis < example.free[i].size(); ++axis) {
        if (example.free[i][axis]) continue;
        for (const int64_t by : {-1, 1})
          ExpectRefused(example.call,
                        Text(op.operands[i].name, " axis ", static_cast<int64_t>(axis), " by ", by),
                        [&](Frame& frame) { frame.operands[next].dims[axis] += by; });
      }
      ++next;
    }
  }
}

TEST_P(StubFrame, SizesThatOverflow) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const Example& example : Examples()) {
    const std::vector<Buffer> operands = MakeFrame(op, example.call).frame.operands;
    for (size_t i = 0; i < operands.size(); ++i) {
      for (size_t axis = 0; axis < operands[i].dims.size(); ++axis) {
        for (const int64_t size : {kHuge, kHuge / 2, int64_t{-1}, -kHuge})
          ExpectRefused(example.call,
                        Text("operand ", static_cast<int64_t>(i), " with size ", size),
                        [&](Frame& frame) { frame.operands[i].dims[axis] = size; });
      }
    }
  }
}

TEST_P(StubFrame, WrongDType) {
  constexpr XLA_FFI_DataType kOthers[] = {
      XLA_FFI_DataType_PRED, XLA_FFI_DataType_S8,      XLA_FFI_DataType_S32, XLA_FFI_DataType_S64,
      XLA_FFI_DataType_U8,   XLA_FFI_DataType_U16,     XLA_FFI_DataType_U32, XLA_FFI_DataType_U64,
      XLA_FFI_DataType_F16,  XLA_FFI_DataType_BF16,    XLA_FFI_DataType_F32, XLA_FFI_DataType_F64,
      XLA_FFI_DataType_C64,  XLA_FFI_DataType_F8E4M3FN};
  // Another T is refused where an operand of the example is of type T.
  const auto allowed = [](std::string_view list, XLA_FFI_DataType now, XLA_FFI_DataType dtype) {
    const bool is_t = now == XLA_FFI_DataType_F32;
    if (dtype == now) return true;
    for (const auto& [name, xla] :
         {std::pair("f32", XLA_FFI_DataType_F32), std::pair("f16", XLA_FFI_DataType_F16),
          std::pair("bf16", XLA_FFI_DataType_BF16), std::pair("i32", XLA_FFI_DataType_S32),
          std::pair("i64", XLA_FFI_DataType_S64), std::pair("T", XLA_FFI_DataType_F32),
          std::pair(is_t ? "" : "T", XLA_FFI_DataType_F16),
          std::pair(is_t ? "" : "T", XLA_FFI_DataType_BF16), std::pair("u8", XLA_FFI_DataType_U8),
          std::pair("i8", XLA_FFI_DataType_S8), std::pair("f8e4m3fn", XLA_FFI_DataType_F8E4M3FN)}) {
      if (xla != dtype) continue;
      for (std::string_view rest = list; !rest.empty();) {
        const std::string_view one = rest.substr(0, rest.find('|'));
        if (one == name) return true;
        rest.remove_prefix(std::min(rest.size(), one.size() + 1));
      }
    }
    return false;
  };
  // Whether the rule is an attribute that names a dtype: out_dtype="f32".
  const auto names_dtype = [&](const Call& call, std::string_view rule) {
    for (size_t i = 0; i < op.attributes.size(); ++i)
      if (const auto* text = std::get_if<std::string_view>(&call.attributes[i]))
        if (op.attributes[i].name == rule && DTypeFromName(*text)) return true;
    return false;
  };
  // Whether T is f32 for the sake of another operand or of a result: else it may be f16 as well.
  const auto fixed_elsewhere = [&](const Call& call, size_t operand) {
    bool fixed = false;
    for (size_t i = 0; i < op.operands.size(); ++i)
      fixed |= i != operand && call.operands[i] && op.operands[i].dtype == "T";
    for (size_t i = 0; i < op.results.size(); ++i)
      fixed |= call.results[i] && call.results[i]->dtype == DType::kF32 &&
               !DTypeFromName(op.results[i].dtype) && !names_dtype(call, op.results[i].dtype);
    return fixed;
  };
  for (const Example& example : Examples(DType::kF32)) {
    size_t next = 0;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const Optional& operand = example.call.operands[i];
      if (!operand) continue;
      const bool any_t = op.operands[i].dtype == "T" && !fixed_elsewhere(example.call, i);
      for (const XLA_FFI_DataType dtype : kOthers) {
        if (any_t && (dtype == XLA_FFI_DataType_F16 || dtype == XLA_FFI_DataType_BF16)) continue;
        if (!allowed(op.operands[i].dtype, ToXla(operand->dtype), dtype))
          ExpectRefused(example.call, Text(op.operands[i].name, " of dtype ", dtype),
                        [&](Frame& frame) { frame.operands[next].dtype = dtype; });
      }
      ++next;
    }
  }
}

TEST_P(StubFrame, WrongNumberOfOperands) {
  for (const Example& example : Examples()) {
    const size_t operands = MakeFrame(op, example.call).frame.operands.size();
    for (size_t i = 0; i < operands; ++i)
      ExpectRefused(example.call, Text("without operand ", static_cast<int64_t>(i)),
                    [&](Frame& frame) {
                      frame.operands.erase(frame.operands.begin() + static_cast<long>(i));
                    });
    ExpectRefused(
        example.call, "one operand too many",
        [](Frame& frame) { frame.operands.push_back(frame.operands[0]); }, "operands, expected");
    ExpectRefused(
        example.call, "no operand at all", [](Frame& frame) { frame.operands.clear(); },
        "is missing");
  }
}

TEST_P(StubFrame, WrongResults) {
  for (const Example& example : Examples()) {
    const size_t results = NumResults(op, example.call);
    for (size_t i = 0; i < results; ++i) {
      const std::vector<int64_t> dims = MakeFrame(op, example.call).frame.results[i].dims;
      for (size_t axis = 0; axis < dims.size(); ++axis)
        for (const int64_t by : {-1, 1})
          ExpectRefused(
              example.call, "result size", [&](Frame& frame) { frame.results[i].dims[axis] += by; },
              "has shape");
      ExpectRefused(
          example.call, "result rank", [&](Frame& frame) { frame.results[i].dims.push_back(1); },
          "has shape");
      ExpectRefused(
          example.call, "result dtype",
          [&](Frame& frame) { frame.results[i].dtype = XLA_FFI_DataType_F64; }, "has dtype");
    }
    ExpectRefused(
        example.call, "one result less", [](Frame& frame) { frame.results.pop_back(); }, "missing");
    ExpectRefused(
        example.call, "one result more",
        [](Frame& frame) { frame.results.push_back(frame.results[0]); }, "results, expected");
  }
}

TEST_P(StubFrame, AliasAtAnotherAddress) {
  int aliases = 0;
  for (const Example& example : Examples()) {
    size_t next = 0;
    for (size_t i = 0; i < op.results.size(); ++i) {
      if (!example.call.results[i] || op.results[i].workspace) continue;
      const size_t position = next++;
      if (op.results[i].alias.empty()) continue;
      ++aliases;
      std::vector<char> elsewhere(1 << 16);
      ExpectRefused(
          example.call, "elsewhere",
          [&](Frame& frame) { frame.results[position].data = elsewhere.data(); },
          "must share the buffer of");
    }
  }
  const bool has_alias = std::any_of(op.results.begin(), op.results.end(),
                                     [](const auto& r) { return !r.alias.empty(); });
  EXPECT_EQ(aliases > 0, has_alias);
}

TEST_P(StubFrame, WrongStageIsRefused) {
  const Example example = Examples().front();
  const Outcome outcome =
      Invoke(execute, MakeFrame(op, example.call).frame, XLA_FFI_ExecutionStage_PREPARE);
  EXPECT_EQ(outcome.code, XLA_FFI_Error_Code_INVALID_ARGUMENT);
}

TEST(Handlers, EachOpAndAliasOnEachPlatform) {
  std::set<std::string> got, want{"intarsia.chain Host"};
#ifdef INTARSIA_WITH_CUDA
  want.insert("intarsia.chain CUDA");
#endif
  for (const intarsia_handler& handler : Handlers()) {
    EXPECT_TRUE(got.insert(Text(handler.target, " ", handler.platform)).second)
        << "twice: " << handler.target;
    EXPECT_NE(handler.execute, nullptr);
    EXPECT_EQ(handler.initialize != nullptr, std::string_view(handler.platform) == "CUDA");
  }
  for (const OpInfo& op : Ops()) {
    for (const char* platform : {"Host", "CUDA"}) {
      if (!(std::string_view(platform) == "CUDA" ? op.run_cuda != nullptr : op.run_cpu != nullptr))
        continue;
      want.insert(Text("intarsia.", op.name, " ", platform));
      if (!op.target_alias.empty()) want.insert(Text(op.target_alias, " ", platform));
    }
  }
  EXPECT_EQ(got, want);
}

TEST(Handlers, InitializeIsCapturable) {
  for (const intarsia_handler& handler : Handlers()) {
    if (!handler.initialize) continue;
    const XLA_FFI_Metadata metadata =
        stub::Metadata(reinterpret_cast<XLA_FFI_Handler*>(handler.initialize));
    EXPECT_TRUE(metadata.traits & XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);
  }
}

}  // namespace
}  // namespace intarsia::stub
