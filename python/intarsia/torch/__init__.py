"""Intarsia's ops for torch: importing this module registers them as `torch.ops.xla_gpu.<op>`.

They run on CPU and CUDA tensors, without XLA: this needs torch 2.9 or newer, and neither jax nor torch_xla. XLA tensors
are those of torch_xla's device INTARSIA (intarsia.pjrt_plugin). Functions with the names and signatures of other projects
are in `intarsia.xla_ops`; `scaled_dot_product_attention` is torch's own.
"""

from intarsia import _native
from intarsia._packages import needed_by

with needed_by("intarsia.torch"):
    # The rules declare themselves.
    from intarsia.torch import _attention, _experts_grad, _grad_rules, _product_grad  # noqa: F401
from intarsia.torch._register import refuse_names, register
from intarsia.torch._sdpa import scaled_dot_product_attention

NAMESPACE = "xla_gpu"
"""Where the package's own ops are: `torch.ops.xla_gpu`."""

__all__ = ["NAMESPACE", "register", "scaled_dot_product_attention"]

refuse_names(_native.main_library(), NAMESPACE)
_attention.refuse_names()
_attention.define(last=False)
register(_native.main_library(), NAMESPACE)
_attention.define(last=True)
