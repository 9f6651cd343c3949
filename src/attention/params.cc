#include "src/attention/params.h"

#include <algorithm>
#include <cmath>

#include "src/core/checked.h"

namespace intarsia::attention {

void SetQuery(Params& params, const TensorView& q, const TensorView& cu_seqlens_q,
              const TensorView& out, const TensorView& lse, std::optional<float> scale,
              float softcap) {
  params.dtype = params.out_dtype = q.dtype;
  params.q = q.data;
  params.q_token_stride = q.stride(0);
  params.q_head_stride = q.stride(1);
  params.out = out.data;
  params.lse = lse.as<float>();
  params.num_tokens = q.dim(0);
  params.num_heads = q.dim(1);
  params.head_dim = q.dim(2);
  params.num_seqs = cu_seqlens_q.dim(0) - 1;
  params.cu_seqlens_q = ToIndexVector(cu_seqlens_q);
  params.scale =
      scale.value_or(1.0f / std::sqrt(static_cast<float>(std::max<int64_t>(q.dim(2), 1))));
  params.softcap = softcap;
}

Status SetPagedCache(Params& params, const CacheFormat& format, const TensorView& key_cache,
                     const Optional& value_cache, const Optional& layer,
                     const TensorView& block_table, const TensorView& seqused_k) {
  INTARSIA_RETURN_IF_ERROR(MakeCacheView(format.layout, format.kv_cache_dtype, key_cache,
                                         value_cache, layer, params.cache));
  params.paged = true;
  params.page_table = ToIndexVector(block_table);
  params.page_table_stride = block_table.stride(0);
  params.pages_per_seq = block_table.dim(1);
  params.max_len_k = BoundedProduct({params.pages_per_seq, params.cache.page_size});
  if (params.max_len_k == kMostSize)
    return InvalidArgument(Text("block_table has m=", params.pages_per_seq,
                                " pages of key_cache's s=", params.cache.page_size,
                                " slots, expected m*s below 2^62"));
  params.seqused_k = ToIndexVector(seqused_k);
  return {};
}

void SetDenseCache(Params& params, const TensorView& k, const TensorView& v,
                   const TensorView& cu_seqlens_k, const Optional& seqused_k) {
  params.cache = {.dtype = k.dtype,
                  .k = k.data,
                  .v = v.data,
                  .num_pages = 1,
                  .page_size = k.dim(0),
                  .num_kv_heads = k.dim(1),
                  .head_dim = k.dim(2),
                  .v_head_dim = v.dim(2),
                  .k_strides = {.slot = k.stride(0), .head = k.stride(1)},
                  .v_strides = {.slot = v.stride(0), .head = v.stride(1)}};
  params.cu_seqlens_k = ToIndexVector(cu_seqlens_k);
  params.seqused_k = ToIndexVector(seqused_k);
  params.max_len_k = k.dim(0);
}

Status SetScales(Params& params, const Optional& q_scale, const Optional& k_scale,
                 const Optional& v_scale) {
  const auto refuse = [](std::string_view scale, std::string_view what, DType dtype) {
    return InvalidArgument(
        Text(scale, " is given, but ", what, " ", Name(dtype), ", expected an fp8 type"));
  };
  if (q_scale && !IsFp8(params.dtype)) return refuse("q_scale", "queries have dtype", params.dtype);
  if ((k_scale || v_scale) && !IsFp8(params.cache.dtype))
    return refuse(k_scale ? "k_scale" : "v_scale", "K and V have dtype", params.cache.dtype);
  params.q_scale = ToScaleView(q_scale);
  params.k_scale = ToScaleView(k_scale);
  params.v_scale = ToScaleView(v_scale);
  return {};
}

void SetWorkspace(Params& params, const TensorView& workspace) {
  params.workspace = workspace.as<float>();
  params.max_splits = workspace.rank == 2 ? workspace.dim(0) : 1;
  params.workspace_floats = workspace.rank == 2 ? workspace.dim(1) : 0;
}

namespace {

Status CheckDTypes(std::string_view query, const Params& params) {
  const DType q = params.dtype, kv = params.cache.dtype;
  if (kv == DType::kU8) return InvalidArgument("k has dtype u8, which only a paged cache may have");
  if (IsFp8(q) && kv != q)
    return InvalidArgument(
        Text(query, " has dtype ", Name(q), " but K and V have ", Name(kv), ", expected the same"));
  if (!IsFp8(kv) && kv != q)
    return InvalidArgument(Text(query, " has dtype ", Name(q), " but K and V have ", Name(kv)));
  return {};
}

}  // namespace

Status CheckParams(std::string_view query, const Params& params) {
  const int64_t h = params.num_heads, hk = params.num_kv_heads(), d = params.head_dim,
                dv = params.cache.v_head_dim;
  INTARSIA_RETURN_IF_ERROR(CheckDTypes(query, params));
  if (hk == 0 || h % hk != 0)
    return InvalidArgument(Text(query, " has h=", h, ", expected a multiple of hk=", hk));
  if (d % 8 != 0 || d == 0 || d > kMaxHeadDim)
    return Unimplemented(Text(query, " has d=", d, "; built are multiples of 8 up to ", kMaxHeadDim,
                              " on CPUs and ", kMaxTiledHeadDim, " on CUDA"));
  if (dv != d && !(d == 192 && dv == 128))
    return Unimplemented(Text("v has dv=", dv, " where ", query, " has d=", d,
                              "; built are equal ones, and d=192 with dv=128"));
  if (!(params.softcap >= 0.0f && std::isfinite(params.softcap)))
    return InvalidArgument(Text("softcap is ", std::to_string(params.softcap),
                                ", expected 0 (none) or a finite number above"));
  for (int64_t side : {params.window_left, params.window_right})
    if (side < -1)
      return InvalidArgument(Text("a window reaches ", side, " keys, expected -1 (all) or more"));
  if (params.attention_chunk < 0)
    return InvalidArgument(
        Text("attention_chunk is ", params.attention_chunk, ", expected 0 (none) or more"));
  return {};
}

Status FitCounts(Params& params) {
  const auto check = [](std::string_view what, int64_t count) -> Status {
    if (count <= kMaxCount) return {};
    return Unimplemented(
        Text("there are ", count, " ", what, "; built for CUDA are up to ", kMaxCount));
  };
  INTARSIA_RETURN_IF_ERROR(check("query rows of all heads", params.num_tokens * params.num_heads));
  INTARSIA_RETURN_IF_ERROR(check("sequences", params.num_seqs));
  INTARSIA_RETURN_IF_ERROR(check("keys of a sequence", params.max_len_k));
  INTARSIA_RETURN_IF_ERROR(check("slots of a page", params.cache.page_size));
  INTARSIA_RETURN_IF_ERROR(check("pages", params.cache.num_pages));
  params.window_left = std::min(params.window_left, 2 * kMaxCount);
  params.window_right = std::min(params.window_right, 2 * kMaxCount);
  params.attention_chunk = std::min(params.attention_chunk, kMaxCount);
  params.chunk_divisor = Divisor(std::max<int64_t>(params.attention_chunk, 1));
  params.SetGroup();
  return {};
}
}  // namespace intarsia::attention
