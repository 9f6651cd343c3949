#include "src/ops/topk_router/topk_router.h"

namespace intarsia {

Status TopkRouter::Check() const {
  const int64_t e = logits.dim(-1);
  if (num_groups < 1 || e % num_groups != 0)
    return InvalidArgument(
        Text("num_groups is ", num_groups, ", expected a divisor of the e=", e, " experts"));
  if (topk_groups < 1 || topk_groups > num_groups)
    return InvalidArgument(
        Text("topk_groups is ", topk_groups, ", expected 1 to num_groups=", num_groups));
  const int64_t most = topk_groups * (e / num_groups);
  if (top_k < 1 || top_k > most)
    return InvalidArgument(Text("top_k is ", top_k, ", expected 1 to ", most, ", the experts of ",
                                topk_groups, " of ", num_groups, " groups"));
  if (e > kMostExperts || num_groups > kMostGroups)
    return Unimplemented(Text("logits has e=", e, " experts in ", num_groups,
                              " groups, built are up to ", kMostExperts, " in ", kMostGroups));
  return {};
}

}  // namespace intarsia
