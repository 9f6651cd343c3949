#include "src/ops/fused_experts/steps_cuda.h"
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
    return !pass.weights_on_input && matmul::CanGate(Gated(pass), context_);
  }
  Status First(const ExpertsPass& pass) const {
    matmul::QuantizedGroupsParams product = Gates(pass) ? Gated(pass) : op_.FirstProduct(pass);
    product.await = matmul::Await::kAll;
    return matmul::Run(product, context_);
  }
  Status Second(const ExpertsPass& pass) const { return matmul::Run(AfterFirst(pass), context_); }

  // Each pair by itself: row t k + j of gated and of down is token t's expert j.
  Status OfPairs(const ExpertsPass& pass) const {
    matmul::QuantizedGroupsParams first = Gated(pass), second = AfterFirst(pass);
    first.each.rows = second.each.rows = {};
    first.groups.all = second.groups.all = 0;  // nobody counted them
    first.by_id = {.ids = pass.ids,
                   .map = pass.expert_map,
                   .mapped = pass.mapped,
                   .share = pass.k,
                   .places = pass.places};
    second.by_id = first.by_id;
    second.by_id.share = 1;
    second.by_id.places = nullptr;
    INTARSIA_RETURN_IF_ERROR(matmul::Run(first, context_));
    return matmul::Run(second, context_);
  }

 private:
  matmul::QuantizedGroupsParams Gated(const ExpertsPass& pass) const {
    matmul::QuantizedGroupsParams product = op_.FirstProduct(pass);
    product.each.gating = Gating::Of(op_.activation, op_.limit, op_.alpha);
    product.each.out = pass.gated;
    return product;
  }
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
       .few_pairs = [&](const ExpertsPass& pass) { return products.OfPairs(pass); },
       .first_gates = [&](const ExpertsPass& pass) { return products.Gates(pass); }});
}

}  // namespace intarsia
