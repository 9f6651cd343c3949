"""The words that attributes take.

Written by tools/gen.py from the library's manifest: edit the op's spec instead (`make gen`).
"""

from typing import Literal, TypeAlias

Activation: TypeAlias = Literal["silu", "gelu_tanh", "swigluoai"]
Axis: TypeAlias = Literal["0", "1", "2"]
ConvertFp8OutDtype: TypeAlias = Literal["f8e4m3fn", "f8e5m2", "u8", "f32", "f16", "bf16"]
FlashAttnVarlenOutDtype: TypeAlias = Literal["auto", "f16", "bf16"]
Format: TypeAlias = Literal["u4", "u4b8", "e2m1", "u5", "u5b16", "u6b32", "i8", "e4m3"]
FusedLinearQuantizedOutDtype: TypeAlias = Literal["auto", "f32"]
Gating: TypeAlias = Literal["none", "silu", "gelu_tanh"]
GroupedMatmulOutDtype: TypeAlias = Literal["auto", "f32"]
GroupedMatmulQuantizedOutDtype: TypeAlias = Literal["auto", "f32"]
GroupedMatmulWeightGradientOutDtype: TypeAlias = Literal["auto", "f32"]
KvCacheDtype: TypeAlias = Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2"]
LinearOutDtype: TypeAlias = Literal["auto", "f32"]
LinearQuantizedInt8OutDtype: TypeAlias = Literal["auto", "f32"]
LinearQuantizedOutDtype: TypeAlias = Literal["auto", "f32"]
QuantDtype: TypeAlias = Literal["f8e4m3fn", "i8"]
Rounding: TypeAlias = Literal["once", "before_weight"]
ScaledMatmulOutDtype: TypeAlias = Literal["bf16", "f16", "f32"]
Scoring: TypeAlias = Literal["softmax", "sigmoid", "softplus_sqrt"]
W2Format: TypeAlias = Literal["same", "u4", "u4b8", "e2m1", "u5", "u5b16", "u6b32", "i8", "e4m3"]
ZerosAre: TypeAlias = Literal["points", "minimums"]
