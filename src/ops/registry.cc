#include "src/ops/registry.h"

#include <all_ops.h>  // written by CMake from ops.inc

#include "src/core/cpu/isa.h"
#include "src/core/op_bind.h"

namespace intarsia {

#define INTARSIA_CPU_OP(folder, Op)
#define INTARSIA_CUDA_OP(folder, Op)
#define INTARSIA_OP(folder, Op) \
  Status Op::Run(const CpuContext& context) const { return RunOnCpu(*this, context); }
#include <ops.inc>
#undef INTARSIA_OP
#undef INTARSIA_CUDA_OP
#undef INTARSIA_CPU_OP

std::span<const OpInfo> Ops() {
  static const OpInfo ops[] = {
#define INTARSIA_OP(folder, Op) MakeOpInfo<Op>(),
#define INTARSIA_CPU_OP(folder, Op) MakeOpInfo<Op>(),
#define INTARSIA_CUDA_OP(folder, Op) MakeOpInfo<Op>(),
#include <ops.inc>
#undef INTARSIA_CUDA_OP
#undef INTARSIA_CPU_OP
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
