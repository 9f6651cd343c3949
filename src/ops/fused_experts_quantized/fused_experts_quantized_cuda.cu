#include "src/core/dispatch.h"
#include "src/ops/fused_experts/steps_cuda.h"
#include "src/ops/fused_experts_quantized/few_tokens.h"
#include "src/ops/fused_experts_quantized/fused_experts_quantized.h"

namespace intarsia {
namespace {

// The products of one call.
class Products {
 public:
  Products(const FusedExpertsQuantized& op, const CudaContext& context)
      : op_(op), context_(context) {}

  // Whether the first product of a pass ends with the activation.
  bool Gates(const ExpertsPass& pass) const {
    return !pass.weights_on_input && matmul::CanGate(op_.GatedProduct(pass), context_);
  }
  Status First(const ExpertsPass& pass) const {
    matmul::QuantizedGroupsParams product =
        Gates(pass) ? op_.GatedProduct(pass) : op_.FirstProduct(pass);
    product.await = matmul::Await::kAll;
    return matmul::Run(product, context_);
  }
  Status Second(const ExpertsPass& pass) const { return matmul::Run(AfterFirst(pass), context_); }

  bool TakesFewTokens(const ExpertsPass& pass) const {
    return cuda::CanRunFewTokens(pass, op_.GatedProduct(pass).each, op_.SecondProduct(pass).each);
  }
  Status FewTokens(const ExpertsPass& pass) const {
    return DispatchDType<kF16, kBF16>("x", pass.dtype, [&]<DType kType>() {
      return cuda::RunFewTokens<kType>(pass, op_.GatedProduct(pass).each,
                                       op_.SecondProduct(pass).each, context_);
    });
  }

 private:
  // It begins with its weights.
  matmul::QuantizedGroupsParams AfterFirst(const ExpertsPass& pass) const {
    matmul::QuantizedGroupsParams product = op_.SecondProduct(pass);
    // Without columns in between no kernel ran since the sort, which this one then waits for.
    product.await = pass.i > 0 ? matmul::Await::kRows : matmul::Await::kAll;
    return product;
  }

  const FusedExpertsQuantized& op_;
  const CudaContext& context_;
};

}  // namespace

Status FusedExpertsQuantized::Run(const CudaContext& context) const {
  const Products products(*this, context);
  return cuda::RunExperts(
      Plain(), context,
      {.first = [&](const ExpertsPass& pass) { return products.First(pass); },
       .second = [&](const ExpertsPass& pass) { return products.Second(pass); },
       .few_tokens = [&](const ExpertsPass& pass) { return products.FewTokens(pass); },
       .first_gates = [&](const ExpertsPass& pass) { return products.Gates(pass); },
       .takes_few_tokens = [&](const ExpertsPass& pass) { return products.TakesFewTokens(pass); }});
}

}  // namespace intarsia
