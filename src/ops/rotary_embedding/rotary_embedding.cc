#include "src/ops/rotary_embedding/rotary_embedding.h"

namespace intarsia {

Status RotaryEmbedding::Check() const {
  const int64_t d = head_dim(), r = cos_sin_cache.dim(1);
  if (r % 2 != 0)
    return InvalidArgument(Text("cos_sin_cache has r=", r, ", expected an even number"));
  if (r > kMaxRotaryDim)
    return Unimplemented(Text("cos_sin_cache has r=", r, "; built are up to ", kMaxRotaryDim));
  if (rope_dim_offset < 0)
    return InvalidArgument(Text("rope_dim_offset is ", rope_dim_offset, ", expected 0 or more"));
  if (rope_dim_offset > d - r)
    return InvalidArgument(Text("rope_dim_offset=", rope_dim_offset, " plus r=", r,
                                " of cos_sin_cache exceeds the head's d=", d));
  if (pair_axes && pair_axes->dim(0) != r / 2)
    return InvalidArgument(Text("pair_axes has pairs=", pair_axes->dim(0), ", expected r/2=", r / 2,
                                " of cos_sin_cache"));
  if (key && key->rank == token_axes() + 2 && key->dim(-1) != d)
    return InvalidArgument(Text("key has d=", key->dim(-1), " but query has d=", d));
  if (head_size && *head_size != d)
    return InvalidArgument(Text("head_size is ", *head_size, " but query has d=", d));
  return {};
}

}  // namespace intarsia
