#include "src/ops/registry.h"

#include <all_ops.h>  // written by CMake from ops.inc

#include <type_traits>

#include "src/core/cpu/isa.h"
#include "src/core/op_bind.h"

namespace intarsia {
namespace {

// Stands for an op that has no CPU half, so that one macro defines Run for every op.
template <class Op>
struct NoCpuHalf {};

template <class Op>
Status Dispatch(const Op& op, const CpuContext& context) {
  return RunOnCpu(op, context);
}
template <class Op>
Status Dispatch(const NoCpuHalf<Op>&, const CpuContext&) {
  return Internal("an op without a CPU half");
}

}  // namespace

// Each op's Run on CPUs: the half that <op>_cpu.cc has for the best instruction set.
#define INTARSIA_OP(folder, Op)                                                               \
  static_assert(Op::kSpec.name == #folder, "src/ops/" #folder ": the spec has another name"); \
  namespace {                                                                                 \
  struct folder##_no_cpu : NoCpuHalf<Op> {                                                    \
    [[maybe_unused]] Status Run(const CpuContext& context) const;                             \
  };                                                                                          \
  }                                                                                           \
  using folder##_cpu =                                                                        \
      std::conditional_t<Op::kSpec.platforms.Has(Platform::kCpu), Op, folder##_no_cpu>;       \
  Status folder##_cpu::Run(const CpuContext& context) const { return Dispatch(*this, context); }
#include <ops.inc>
#undef INTARSIA_OP

std::span<const OpInfo> Ops() {
  static const OpInfo ops[] = {
#define INTARSIA_OP(folder, Op) MakeOpInfo<Op>(),
#include <ops.inc>
#undef INTARSIA_OP
  };
  return ops;
}

const OpInfo* FindOp(std::string_view name) {
  for (const OpInfo& op : Ops())
    if (op.name == name || (!op.target_alias.empty() && op.target_alias == name)) return &op;
  return nullptr;
}

}  // namespace intarsia
