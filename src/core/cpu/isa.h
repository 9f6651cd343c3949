// <op>_cpu.cc is compiled once for each instruction set; the best one that the machine has is
// chosen at run time.
//
// Such a file must emit no function with external linkage that another one emits too (an inline
// function of a header, a template of the standard library): the linker keeps one of the copies,
// and if that is the AVX-512 one, an AVX2 machine dies of SIGILL. So what these files share lives
// in an anonymous namespace (simd.h), and tests/test_repo.py looks at their object files.
#pragma once
#include "src/core/context.h"
#include "src/core/status.h"

namespace intarsia {

enum class Isa { kGeneric, kAvx2, kAvx512 };

// Each <op>_cpu.cc specializes this for its op and for kIsa of simd.h.
template <Isa isa, class Op>
Status RunCpu(const Op& op, const CpuContext& context);

// The best instruction set of this machine that the library was built for. INTARSIA_ISA=avx2 in the
// environment holds it back, for tests.
Isa BestIsa();
std::string_view Name(Isa isa);

template <class Op>
Status RunOnCpu(const Op& op, const CpuContext& context) {
#if defined(__x86_64__)
  if (BestIsa() == Isa::kAvx512) return RunCpu<Isa::kAvx512>(op, context);
  if (BestIsa() == Isa::kAvx2) return RunCpu<Isa::kAvx2>(op, context);
  return Unimplemented("this CPU lacks AVX2 and FMA, which the x86-64 library needs");
#else
  return RunCpu<Isa::kGeneric>(op, context);
#endif
}

}  // namespace intarsia
