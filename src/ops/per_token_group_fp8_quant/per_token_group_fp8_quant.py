"""per_token_group_fp8_quant: what it computes, in NumPy; its cases; plain XLA's way."""

from intarsia_src.quant import reference as quant

CASES = {
    "example": dict(tags="ci wire", t=2, n=64, group_size=16),
    "deepseek_v3_decode": dict(tags="ci bench bench_cpu", t=16, n=7168),
    "deepseek_v3_prefill": dict(tags="bench", t=4096, n=7168),
    "llama3_8b_prefill": dict(tags="bench", t=16384, n=4096),
    "llama3_8b_prefill_short": dict(tags="bench_cpu", t=512, n=4096),
    "groups_of_64": dict(tags="ci bench", t=16, n=4096, group_size=64),
    "groups_of_32": dict(tags="ci", t=5, n=576, group_size=32),
    "a_group_is_a_row": dict(tags="ci", t=5, n=640, group_size=640),
    "long_groups": dict(tags="ci", t=2, n=40000, group_size=20000),
    "odd": dict(tags="ci", t=3, n=77, group_size=11),
    "single": dict(tags="ci", t=3, n=5, group_size=1),
    "with_zeros": dict(tags="ci", t=6, n=128, zeros=True),
    "small": dict(tags="ci", t=4, n=256, spread=1e-5),
    "tiny": dict(tags="ci", t=4, n=256, spread=1e-12),
    "large": dict(tags="ci", t=4, n=256, spread=3e4),
    "large_eps": dict(tags="ci", t=4, n=256, eps=0.7),
    "powers_of_two": dict(tags="ci", t=16, n=1024, scale_ue8m0=True),
    "powers_of_two_odd": dict(tags="ci", t=3, n=77, group_size=11, scale_ue8m0=True),
    "powers_of_two_tiny": dict(tags="ci", t=4, n=256, spread=1e-12, scale_ue8m0=True),
    "empty": dict(tags="ci", t=0, n=128),
    "no_columns": dict(tags="ci", t=3, n=0),
}


def arguments(
    rng, dtype, *, t, n, group_size=128, eps=1e-10, scale_ue8m0=False, zeros=False, spread=1.0
):
    """Random operands in spec order, and attributes."""
    x = quant.numbers(rng, dtype, t, n, zeros=zeros, spread=spread)
    return [x], dict(group_size=group_size, eps=eps, scale_ue8m0=scale_ue8m0)


def _rule(eps, scale_ue8m0):
    if scale_ue8m0:
        return quant.RowRule(least_absmax=eps, least_scale=1e-10, power_of_two=True)
    return quant.RowRule(least_absmax=eps)


def reference(x, *, group_size=128, eps=1e-10, scale_ue8m0=False):
    """The results in spec order, not yet rounded to codes. x is f64."""
    rule = _rule(eps, scale_ue8m0)
    return quant.of_groups(x, *rule(quant.groups(x, group_size)))


def exact(x, *, group_size=128, eps=1e-10, scale_ue8m0=False):
    """The results, to the bit."""
    rule = _rule(eps, scale_ue8m0)
    return quant.of_groups(x, *rule.exact(quant.groups(x, group_size)))


floor = quant.floor


def plain_xla(x, *, group_size=128, eps=1e-10, scale_ue8m0=False):
    """The same in jax.numpy, as a user without this library would write it."""
    rule = _rule(eps, scale_ue8m0)
    return quant.of_groups(x, *quant.xla_rows(quant.groups(x, group_size), rule))
