"""tpu-inference, vLLM's backend for TPUs, on our kernels: its attention and its layers run with one import changed."""

import importlib
import sys

import running
import stand_ins
import support

PACKAGE = support.ROOT / ".venv" / "tpu-inference"
KERNELS = "tpu_inference.kernels.ragged_paged_attention.v3"
ABSENT = ("torch", "torchax", "torchvision", "transformers", "vllm")


def prepare(folder: str) -> None:
    """Makes the package in the folder importable, and its modules of kernels ours; nothing else of it changes."""
    stand_ins.put(folder, ABSENT)
    importlib.import_module(KERNELS)
    for theirs, ours in {"kernel": "rpa_v3", "kernel_hd64": "rpa_v3_hd64"}.items():
        sys.modules[f"{KERNELS}.{theirs}"] = importlib.import_module(f"intarsia.jax.{ours}")


def test_its_attention_runs_on_our_kernels() -> None:
    """In a process of its own, where stand-ins are there for torch, vLLM and Transformers.

    The package's `attention_interface.attention`, its `LlamaAttention` and its `Attention` are called as they are, on batches
    of prompts, of decode steps and of both; on two devices, with 8-bit caches, windows, caps and sinks too. Modules of the
    package that read weights or tell of the platform import the three; none of the functions that run here calls them.
    """
    stand_ins.run(
        PACKAGE,
        "import test_tpu_inference as t; t.prepare(sys.argv[1]); import tpu_inference_calls as c; c.main()",
        XLA_FLAGS=f"{running.flags_of_jax()} --xla_force_host_platform_device_count=2",
    )
