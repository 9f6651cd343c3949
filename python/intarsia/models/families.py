"""What all models of Gemma 3 and of gpt-oss have, whichever kind of file they come from."""

GEMMA3 = {
    "activation": "gelu_tanh",
    "qk_norm": True,
    "post_norms": True,
    "norm_in_f32": True,
    "norms_less_one": True,
    "fits_f16": False,
}
# Five layers with a sliding window and a rope base of their own, then one that sees everything.
GEMMA3_PERIOD, GEMMA3_LOCAL_THETA = 6, 10000.0
GPT_OSS = {
    "activation": "swigluoai",
    "qkv_bias": True,
    "o_bias": True,
    "sinks": True,
    "norm_in_f32": True,
    "fits_f16": False,
}
