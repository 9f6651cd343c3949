// A test of simd.h's functions for each instruction set that the library has.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "tests/core/simd_functions.h"

namespace intarsia {
namespace {

#if defined(__x86_64__)
constexpr Isa kIsas[] = {Isa::kAvx2, Isa::kAvx512};
#else
constexpr Isa kIsas[] = {Isa::kGeneric};
#endif

std::string IsaName(const testing::TestParamInfo<Isa>& isa) { return std::string(Name(isa.param)); }

class Simd : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > BestIsa())
      GTEST_SKIP() << "this machine has " << Name(BestIsa()) << ", or INTARSIA_ISA holds it back";
#if defined(__x86_64__)
    simd = GetParam() == Isa::kAvx512 ? GetSimdFunctions<Isa::kAvx512>()
                                      : GetSimdFunctions<Isa::kAvx2>();
#else
    simd = GetSimdFunctions<Isa::kGeneric>();
#endif
  }
  SimdFunctions simd;
};

}  // namespace
}  // namespace intarsia
