"""`jax.export` of programs with our custom calls."""

from jax import export

from intarsia import _native
from intarsia.jax._chain import chain_target


def export_exemptions(
    library: _native.Library | None = None,
) -> list[export.DisabledSafetyCheck]:
    """What `jax.export.export` is to be told of our custom calls.

    JAX exports only calls whose targets are promised to keep their meaning. Ours are: targets, operands and
    attributes are a wire format that later releases go on to understand (docs/ops.md). A process that only runs
    an exported program imports this package first, which registers the targets with XLA.

    Args:
      library: a library from `intarsia.load_ops`; default: the package's own.

    Example:
      >>> exported = jax.export.export(step, disabled_checks=export_exemptions())(*arguments)
      >>> data = exported.serialize()
    """
    library = library or _native.main_library()
    # By the manifest and not by handlers: a library without CUDA may export for GPUs.
    ops = library.ops.values()
    targets = [*(op.target for op in ops), *(op.target_alias for op in ops if op.target_alias)]
    targets.append(chain_target(library))
    return [export.DisabledSafetyCheck.custom_call(target) for target in targets]
