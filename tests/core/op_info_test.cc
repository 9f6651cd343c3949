// What the spec of an op promises: checks of operands, attributes and results, and shape inference.
#include "src/core/op_info.h"

#include <gtest/gtest.h>

#include "src/core/dispatch.h"  // kF32, kF16, kBF16
#include "src/core/op.h"
#include "src/core/op_bind.h"

namespace intarsia {
namespace {

// An op with one of everything.
struct Sampler {
  TensorView x;
  Optional weight;
  TensorView index, cache;
  std::string_view mode = "plain";
  bool more = false;
  float eps = 0.25f;
  int64_t group = 2;
  std::optional<int64_t> window;
  TensorView out, extra, cache_out, scratch;

  static constexpr auto kSpec =
      MakeSpec("sampler", "An op for tests.", "nowhere",
               In("x", &Sampler::x, "t n", "T", "rows").Takes(Access::kRows),
               In("weight", &Sampler::weight, "n", "T|f32", "scale"),
               In("index", &Sampler::index, "t", "i32|i64", "rows' indices"),
               In("cache", &Sampler::cache, "c n", "T", "kept"),
               Attr("mode", &Sampler::mode, "how").OneOf("plain|fancy"),
               Attr("more", &Sampler::more, "also extra"), Attr("eps", &Sampler::eps, "a number"),
               Attr("group", &Sampler::group, "columns of a group"),
               Attr("window", &Sampler::window, "default none"),
               Out("out", &Sampler::out, "t n/group", "T", "the result"),
               Out("extra", &Sampler::extra, "n t", "f32", "more").When("more"),
               Out("cache", &Sampler::cache_out, "=cache", "cache", "the same").Alias("cache"),
               Workspace("scratch", &Sampler::scratch));

  Status Check() const {
    return window && *window < 0 ? InvalidArgument("window is negative") : Status{};
  }
  std::array<int64_t, 2> WorkspaceDims() const { return {x.dim(0), 2 * group}; }
  Status Run(const CpuContext&) const {
    return Internal(Text("ran with group ", group, ", window ", window.value_or(-7)));
  }
  Status Run(const CudaContext&) const { return {}; }
};

// One with a half for GPUs alone.
struct OnGpus {
  TensorView x, out;

  static constexpr auto kSpec =
      MakeSpec("on_gpus", "An op for tests.", "nowhere", In("x", &OnGpus::x, "n", "T", "numbers"),
               Out("out", &OnGpus::out, "n", "T", "the same"))
          .On(Platform::kCuda);

  Status Run(const CudaContext&) const { return {}; }
};

float memory[4];  // addresses to tell apart

TensorView Dense(DType dtype, std::vector<int64_t> dims, void* data = nullptr) {
  TensorView view;
  EXPECT_TRUE(MakeDense(data, dtype, dims, view).ok());
  return view;
}

class OpInfoTest : public testing::Test {
 protected:
  OpInfoTest() {
    call.operands[0] = Dense(kF16, {3, 8});
    call.operands[1] = Dense(kF16, {8});
    call.operands[2] = Dense(DType::kI64, {3});
    call.operands[3] = Dense(kF16, {5, 8}, &memory[0]);
    for (size_t i = 0; i < op.attributes.size(); ++i)
      call.attributes[i] = op.attributes[i].default_value;
  }
  // "" if the call is right.
  std::string InferError() {
    Call copy = call;
    const Status status = Infer(op, copy);
    EXPECT_EQ(status.ok(), status.message.empty());
    EXPECT_TRUE(status.ok() || status.code == Code::kInvalidArgument);
    return status.message;
  }
  std::string ResultsError(const Call& with_results) {
    Call inferred = call;
    EXPECT_TRUE(Infer(op, inferred).ok());
    return CheckResults(op, with_results, inferred.results).message;
  }
  Call WithResults() {
    Call copy = call;
    EXPECT_TRUE(Infer(op, copy).ok());
    copy.results[2]->data = copy.operands[3]->data;
    return copy;
  }
  AttrValue& attribute(std::string_view name) {
    return call.attributes[static_cast<size_t>(op.FindAttribute(name))];
  }

  const OpInfo op = MakeOpInfo<Sampler>();
  Call call;
};

TEST_F(OpInfoTest, DescribesTheStruct) {
  EXPECT_EQ(op.name, "sampler");
  ASSERT_EQ(op.operands.size(), 4u);
  EXPECT_FALSE(op.operands[0].optional);
  EXPECT_TRUE(op.operands[1].optional);
  EXPECT_EQ(op.operands[0].access, Access::kRows);
  ASSERT_EQ(op.attributes.size(), 5u);
  EXPECT_EQ(op.attributes[0].type, AttrType::kString);
  EXPECT_EQ(std::get<double>(op.attributes[2].default_value), 0.25);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(op.attributes[4].default_value));
  ASSERT_EQ(op.results.size(), 4u);
  EXPECT_EQ(op.results[2].alias, "cache");
  EXPECT_TRUE(op.results[3].workspace);
}

TEST_F(OpInfoTest, InfersResults) {
  Call inferred = call;
  ASSERT_TRUE(Infer(op, inferred).ok());
  EXPECT_EQ(ShapeText(inferred.results[0]->shape()), "[3, 4]");
  EXPECT_EQ(inferred.results[0]->dtype, kF16);
  EXPECT_FALSE(inferred.results[1].has_value());
  EXPECT_EQ(ShapeText(inferred.results[2]->shape()), "[5, 8]");
  EXPECT_EQ(ShapeText(inferred.results[3]->shape()), "[3, 4]");
  EXPECT_EQ(inferred.results[3]->dtype, kF32);
  attribute("more") = true;
  inferred = call;
  ASSERT_TRUE(Infer(op, inferred).ok());
  EXPECT_EQ(ShapeText(inferred.results[1]->shape()), "[8, 3]");
  EXPECT_EQ(inferred.results[1]->dtype, kF32);
}

TEST_F(OpInfoTest, FillsTheStruct) {
  EXPECT_EQ(op.run_cpu(call, CpuContext()).message, "") << "there is nothing to write";
  attribute("group") = int64_t{4};
  ASSERT_TRUE(Infer(op, call).ok());
  EXPECT_EQ(op.run_cpu(call, CpuContext()).message, "sampler: ran with group 4, window -7");
  attribute("window") = int64_t{3};
  EXPECT_EQ(op.run_cpu(call, CpuContext()).message, "sampler: ran with group 4, window 3");
}

TEST_F(OpInfoTest, MissingOperand) {
  call.operands[1].reset();
  EXPECT_EQ(InferError(), "");
  call.operands[2].reset();
  EXPECT_EQ(InferError(), "sampler: index is missing");
}

TEST_F(OpInfoTest, WrongShape) {
  call.operands[1] = Dense(kF16, {5});
  EXPECT_EQ(InferError(), "sampler: weight has n=5 but x has n=8");
  call.operands[1] = Dense(kF16, {1, 8});
  EXPECT_EQ(InferError(), "sampler: weight has shape [1, 8], expected [n]");
}

TEST_F(OpInfoTest, WrongDType) {
  call.operands[1] = Dense(kF32, {8});
  EXPECT_EQ(InferError(), "");
  call.operands[1] = Dense(kBF16, {8});
  EXPECT_EQ(InferError(), "sampler: weight has dtype bf16 but x has f16");
  call.operands[1].reset();
  call.operands[2] = Dense(DType::kU8, {3});
  EXPECT_EQ(InferError(), "sampler: index has dtype u8, expected i32|i64");
  call.operands[0] = Dense(DType::kI32, {3, 8});
  EXPECT_EQ(InferError(), "sampler: x has dtype i32, expected f32|f16|bf16");
}

TEST_F(OpInfoTest, Strides) {
  call.operands[0]->strides = {16, 1};
  EXPECT_EQ(InferError(), "");
  call.operands[0]->strides = {1, 3};
  EXPECT_EQ(InferError(), "sampler: x has last stride 3, expected 1");
  call.operands[0]->strides = {8, 1};
  call.operands[2]->strides[0] = 2;
  EXPECT_EQ(InferError(), "sampler: index is strided, expected a dense row-major array");
}

TEST_F(OpInfoTest, WrongAttribute) {
  attribute("mode") = "other";
  EXPECT_EQ(InferError(), "sampler: mode is \"other\", expected one of plain|fancy");
  attribute("mode") = "fancy";
  EXPECT_EQ(InferError(), "");
  attribute("group") = int64_t{3};
  EXPECT_EQ(InferError(), "sampler: out has n/group with group=3, which does not divide 8");
  for (const int64_t group : {int64_t{0}, int64_t{-2}, INT64_MIN}) {
    attribute("group") = group;
    EXPECT_EQ(InferError(), Text("sampler: group is ", group, ", expected at least 1"));
  }
  attribute("group") = int64_t{2};
  attribute("window") = int64_t{-1};
  EXPECT_EQ(InferError(), "sampler: window is negative");
}

TEST_F(OpInfoTest, RightResults) { EXPECT_EQ(ResultsError(WithResults()), ""); }

TEST_F(OpInfoTest, WrongResults) {
  Call results = WithResults();
  results.results[0] = Dense(kF16, {3, 5});
  EXPECT_EQ(ResultsError(results), "sampler: result out has shape [3, 5], expected [3, 4]");
  results.results[0] = Dense(kF32, {3, 4});
  EXPECT_EQ(ResultsError(results), "sampler: result out has dtype f32, expected f16");
  results.results[0].reset();
  EXPECT_EQ(ResultsError(results), "sampler: result out is missing");
  results = WithResults();
  results.results[1] = Dense(kF32, {8, 3});
  EXPECT_EQ(ResultsError(results), "sampler: result extra is given but must not exist");
}

TEST_F(OpInfoTest, AliasMustLieWhereItsOperandLies) {
  Call results = WithResults();
  results.results[2]->data = &memory[1];
  EXPECT_EQ(
      ResultsError(results),
      "sampler: result cache must share the buffer of cache; pass input_output_aliases (StableHLO: "
      "output_operand_aliases)");
  call.operands[3] = Dense(kF16, {0, 8});  // nothing in it, so it may lie anywhere
  results = WithResults();
  results.results[2]->data = &memory[1];
  EXPECT_EQ(ResultsError(results), "");
}

TEST_F(OpInfoTest, AWorkspaceOfAnEarlierRelease) {
  Call results = WithResults();
  results.results[3] = Dense(kF32, {1, 99});
  EXPECT_EQ(ResultsError(results), "");
  results.results[3] = Dense(kF32, {99});
  EXPECT_NE(ResultsError(results), "");
}

TEST(OpInfoPlatforms, AreTheSpecs) {
  const OpInfo every = MakeOpInfo<Sampler>(), one = MakeOpInfo<OnGpus>();
  EXPECT_EQ(Names(every.platforms), "cpu, cuda");
  EXPECT_EQ(Names(one.platforms), "cuda");
  EXPECT_NE(every.run_cpu, nullptr);
  EXPECT_EQ(one.run_cpu, nullptr);
}

TEST(OpInfoPlatforms, ACallOnAnotherIsRefused) {
  const OpInfo op = MakeOpInfo<OnGpus>();
  Call call;
  call.operands[0] = Dense(kF32, {3});
  ASSERT_TRUE(Infer(op, call).ok());
  const Status status = RunCpu(op, call, CpuContext());
  EXPECT_EQ(status.code, Code::kUnimplemented);
  EXPECT_EQ(status.message, "on_gpus: runs on cuda, not on cpu");
}

}  // namespace
}  // namespace intarsia
