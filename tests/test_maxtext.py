"""MaxText's own AttentionOp computes what it should with examples/maxtext_attention.py put into it."""

import stand_ins
import support

PACKAGE = support.ROOT / ".venv" / "maxtext"
ABSENT = (
    *("aqt", "pathwaysutils", "pydantic", "qwix", "tokamax", "torch", "transformers", "vllm"),
    *(f"maxtext.kernels.attention.{name}" for name in ("jax_flash_attention", "ragged_attention")),
    *("maxtext.configs", "maxtext.layers.quantizations"),
)


def test_its_attention_runs_on_our_kernels() -> None:
    """In a process of its own, where stand-ins are there for libraries of weights and quantization, and what needs them.

    `AttentionOp` is called as MaxText's layers call it, on packed sequences with padding; none of what it calls needs one.
    """
    put = "import stand_ins, test_maxtext as t; stand_ins.put(sys.argv[1], t.ABSENT)"
    stand_ins.run(PACKAGE, f"{put}; import maxtext_calls as c; c.main()")
