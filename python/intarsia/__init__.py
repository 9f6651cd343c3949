"""Intarsia: LLM-inference kernels that live inside XLA programs.

`import intarsia` needs neither jax nor torch; `intarsia.jax` holds the functions for JAX.
"""

from intarsia._native import Library, Op, load_ops, main_library

__version__ = (__import__("pathlib").Path(__file__).parent / "VERSION").read_text().strip()

__all__ = ["Library", "Op", "__version__", "load_ops", "main_library"]
