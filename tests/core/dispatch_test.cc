#include "src/core/dispatch.h"

#include <gtest/gtest.h>

namespace intarsia {
namespace {

TEST(DispatchDType, PassesTheType) {
  for (const DType dtype : {kF32, kBF16}) {
    DType got = DType::kOther;
    const Status status =
        DispatchDType<kF32, kF16, kBF16>("op: x", dtype, [&]<DType kType>() -> Status {
          got = kType;
          return {};
        });
    EXPECT_TRUE(status.ok());
    EXPECT_EQ(got, dtype);
  }
}

TEST(DispatchDType, ReturnsWhatTheFunctionReturns) {
  const Status status = DispatchDType<kF32>(
      "op: x", kF32, []<DType>() -> Status { return Internal("the function's own"); });
  EXPECT_EQ(status.code, Code::kInternal);
  EXPECT_EQ(status.message, "the function's own");
}

TEST(DispatchDType, ListsWhatIsBuilt) {
  const Status status =
      DispatchDType<kF16, kBF16>("rms_norm: x", kF32, []<DType>() -> Status { return {}; });
  EXPECT_EQ(status.code, Code::kUnimplemented);
  EXPECT_EQ(status.message, "rms_norm: x has dtype f32; built are f16 bf16");
}

TEST(DispatchInt, TakesTheFirstThatIsLargeEnough) {
  const auto chosen = [](int64_t value) {
    int got = -1;
    const Status status = DispatchInt<64, 128, 256>("op: d", value, [&]<int kD>() -> Status {
      got = kD;
      return {};
    });
    return status.ok() ? got : -1;
  };
  EXPECT_EQ(chosen(0), 64);
  EXPECT_EQ(chosen(64), 64);
  EXPECT_EQ(chosen(65), 128);
  EXPECT_EQ(chosen(256), 256);
}

TEST(DispatchInt, ListsWhatIsBuilt) {
  const Status status =
      DispatchInt<64, 128>("paged_attention: d", 129, []<int>() -> Status { return {}; });
  EXPECT_EQ(status.code, Code::kUnimplemented);
  EXPECT_EQ(status.message, "paged_attention: d is 129; built are values up to 128");
}

TEST(Text, JoinsTextAndNumbers) {
  EXPECT_EQ(Text("d=", 64, " of ", std::string("q")), "d=64 of q");
}

}  // namespace
}  // namespace intarsia
