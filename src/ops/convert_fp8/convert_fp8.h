// To fp8: out = satfinite(x / scale), to nearest even. From fp8: out = round(scale * x).
#pragma once
#include "src/core/op.h"

namespace intarsia {

struct ConvertFp8 {
  TensorView x;
  float scale = 1.0f;
  std::string_view out_dtype = "f8e4m3fn";
  std::string_view kv_cache_dtype = "auto";
  TensorView out;

  static constexpr auto kSpec = MakeSpec(
      "convert_fp8", "Converts a cache to fp8 or from it.", "vLLM's _C_cache_ops::convert_fp8",
      In("x", &ConvertFp8::x, "...", "f32|f16|bf16|f8e4m3fn|f8e5m2|u8", "numbers, or fp8 codes"),
      Attr("scale", &ConvertFp8::scale, "what the codes are to be multiplied by"),
      Attr("out_dtype", &ConvertFp8::out_dtype, "of the result")
          .OneOf("f8e4m3fn|f8e5m2|u8|f32|f16|bf16"),
      Attr("kv_cache_dtype", &ConvertFp8::kv_cache_dtype, "what an array of dtype u8 holds")
          .OneOf("auto|fp8|fp8_e4m3|fp8_e5m2"),
      Out("out", &ConvertFp8::out, "...", "out_dtype", "codes, or numbers"));

  Status Check() const;
  Status Run(const CpuContext&) const;
  Status Run(const CudaContext&) const;

  // Of codes in an array of this dtype; anything else for other arrays.
  DType CodeType(DType dtype) const {
    if (dtype != DType::kU8) return dtype;
    if (kv_cache_dtype == "auto") return DType::kU8;
    return kv_cache_dtype == "fp8_e5m2" ? DType::kF8E5M2 : DType::kF8E4M3;
  }
  bool to_fp8() const { return IsFp8(CodeType(out.dtype)); }
};

}  // namespace intarsia
