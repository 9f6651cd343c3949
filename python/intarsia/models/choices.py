"""What a model can be loaded as, run in and written as, in words; nothing is imported for it."""

KV_CACHE_DTYPES = {
    "auto": None,
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "fp8": "float8_e4m3fn",
}
"""What keys and values can be kept in, by vLLM's names; `auto` is the dtype that they come in."""
QUANTIZATIONS = ("fp8", "int8", "int4", "file")
"""What weights can be in: linear layers quantized as they are loaded, or all as the file has them."""
ACTIVATIONS = ("auto", "int8")
"""What products with weights in codes take their activations in: those of the model, or rounded to int8, on CPUs."""
EXPORT_DTYPES = ("bfloat16", "float16", "float32")
"""What `export_model` can write weights in; the first is its default."""
