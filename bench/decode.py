"""Times decoding of a Llama-3-8B-shaped model with random weights, on one device and on several.

Usage: decode.py [--tensor-parallel 1 2] [--sequences 16] [--context 4096] [--new-tokens 64] [--layers 32]
                 [--decode-steps 1] [--quantize fp8|int8|int4|awq|fp8_block|mxfp4|nvfp4|q4_0|q4_1|q4_k|q5_k|q6_k|q8_0] [--calls-apart]
       decode.py --tensor-parallel 2 --coordinator-address HOST:PORT --num-processes 2 --process-id 0 (docs/scaling.md)

For each number of devices: the time of a decode step and its floor (every weight, key and value of
a device read once), tokens a second, and the collectives of the compiled step with their shapes;
with --profile, also where the time of a step goes. With --quantize linear layers have random codes. The output projection is in int8; for GGUF's formats in q6_k or q8_0; for fp8 (W8A8),
awq, fp8_block, mxfp4 and nvfp4 plain.
With --calls-apart each call is a custom call of its own, as without `intarsia.jax.chain`.
"""

import argparse
import collections
import functools
import pathlib
import re
import sys
import tempfile
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))
from intarsia._packing import BLOCK_COLUMNS, TILE_ROWS, PackedWeight
from intarsia.cli import _processes
from intarsia.models import Engine, ModelConfig, ModelParallel, SamplingParams, transformer
from intarsia.models.config import LayerKind, Rope
from intarsia.models.linear import PackedMatrix, Weight, quantize


class Codes(NamedTuple):
    """How a matrix lies in codes, as `PackedWeight` says it."""

    format: str
    bits: int
    group: int
    zeros: str = ""  # "minimums", or "points" in bytes
    outer_groups: int = 0  # groups that share an outer factor; 0: there are none
    scale: Any = jnp.float16


_CODES = {
    "int4": Codes("u4b8", 4, 128),
    "int8": Codes("i8", 8, 128),
    "q4_0": Codes("u4b8", 4, 32),
    "awq": Codes("u4", 4, 128, zeros="points"),
    "fp8_block": Codes("e4m3", 8, 128, scale=jnp.float32),
    "mxfp4": Codes("e2m1", 4, 32, scale=jnp.float8_e8m0fnu),
    "nvfp4": Codes("e2m1", 4, 16, scale=jnp.float8_e4m3fn),
    "q4_1": Codes("u4", 4, 32, zeros="minimums"),
    "q4_k": Codes("u4", 4, 32, zeros="minimums", outer_groups=8),
    "q5_k": Codes("u5", 5, 32, zeros="minimums", outer_groups=8),
    "q6_k": Codes("u6b32", 6, 16, outer_groups=16),
    "q8_0": Codes("i8", 8, 32),
}
# Of the output projection, as `load_model` or files have it.
_PLAIN_PROJECTION = {"awq", "fp8_block", "mxfp4", "nvfp4"}
_PROJECTION = {"int4": "int8", "q4_0": "q8_0", "q4_1": "q8_0", "q4_k": "q6_k", "q5_k": "q6_k"}

_PROFILED_STEPS = 8
_BYTES_PER_SECOND = 4.2e12  # what copies on an H200 reach (docs/notebook/ops.md)


def llama3_8b(layers: int) -> ModelConfig:
    """Llama 3 8B, perhaps with fewer layers."""
    return ModelConfig(
        hidden=4096,
        layers=layers,
        heads=32,
        kv_heads=8,
        head_dim=128,
        intermediate=14336,
        vocab=128256,
        layer_kinds=(LayerKind(Rope(theta=500000.0)),),
        rms_eps=1e-5,
        max_positions=8192,
    )


def random_params(config: ModelConfig, quantization: str | None) -> dict:
    """Weights of the sizes that training gives, bf16 or in codes, made on the device."""
    n, d, m = config.hidden, config.head_dim, config.intermediate
    keys = iter(jax.random.split(jax.random.key(0), 4 * config.layers + 2))

    @functools.partial(jax.jit, static_argnums=(1, 2))
    def draw(key, rows: int, columns: int):
        return jax.random.normal(key, (rows, columns), jnp.bfloat16) * columns**-0.5

    def matrix(rows: int, columns: int):
        return draw(next(keys), rows, columns)

    def linear(rows: int, columns: int) -> Weight:
        if quantization is None:
            return matrix(rows, columns)
        if quantization == "fp8":
            return quantize(matrix(rows, columns))
        return in_codes(next(keys), rows, columns, quantization)

    def projection():
        if quantization in _CODES.keys() - _PLAIN_PROJECTION:
            kind = _PROJECTION.get(quantization, quantization)
            return in_codes(next(keys), config.vocab, n, kind)
        return matrix(config.vocab, n)

    def norm():
        return jnp.ones(n, jnp.bfloat16)

    layers = [
        {
            "wqkv": linear((config.heads + 2 * config.kv_heads) * d, n),
            "wo": linear(n, config.heads * d),
            "w_gate_up": linear(2 * m, n),
            "w_down": linear(n, m),
            "mlp_norm": norm(),
            "next_norm": norm(),
        }
        for _ in range(config.layers)
    ]
    return {
        "embed": matrix(config.vocab, n),
        "lm_head": projection(),
        "first_norm": norm(),
        "layers": layers,
    }


def in_codes(key: jax.Array, rows: int, columns: int, kind: str) -> PackedMatrix:
    """A random matrix in the form of `intarsia._rounding`, or of files, with a mean of 0."""
    codes = _CODES[kind]
    tiles, blocks = rows // TILE_ROWS, columns // BLOCK_COLUMNS
    packed = jax.random.bits(key, (tiles, blocks, codes.bits, TILE_ROWS, 4), jnp.uint8)
    scale, middle = columns**-0.5 / (1 << (codes.bits - 2)), ((1 << codes.bits) - 1) / 2
    if codes.format == "e4m3":  # numbers below 2, none of them a NaN
        packed, scale = packed & 0xBF, columns**-0.5

    def factor(value: float, byte: jnp.dtype) -> tuple[jax.Array, jax.Array | None]:
        groups = columns // codes.group
        if not codes.outer_groups:
            return jnp.full((tiles, groups, TILE_ROWS), value, codes.scale), None
        outers = (tiles, groups // codes.outer_groups, TILE_ROWS)
        inner = jnp.full((tiles, groups, TILE_ROWS), 32, byte)
        return inner, jnp.full(outers, value / 32, jnp.float16)

    minimums = codes.zeros == "minimums"
    scales, outer_scales = factor(scale, jnp.uint8 if minimums else jnp.int8)
    zeros, outer_zeros = factor(-middle * scale, jnp.uint8) if minimums else (None, None)
    if codes.zeros == "points":
        zeros = jnp.full(scales.shape, 8, jnp.uint8)
    part = PackedWeight(
        *(packed, scales, zeros, outer_scales, outer_zeros, rows, columns),
        *(codes.format, codes.group, codes.zeros or "points"),
    )
    return PackedMatrix((part,), jnp.dtype(jnp.bfloat16))


def floor_seconds(
    config: ModelConfig, params: dict, sequences: int, context: int, devices: int
) -> float:
    """Reading a device's share of weights (but the embedding) and of K and V once."""
    weights = sum(x.nbytes for x in jax.tree.leaves(params)) - params["embed"].nbytes
    cache = 4 * config.layers * sequences * context * config.kv_heads * config.head_dim
    return (weights + cache) / devices / _BYTES_PER_SECOND


def collectives(engine: Engine) -> str:
    """The collectives of the compiled decode step, with the shapes of what they give."""
    text = next(x.as_text() for key, x in engine._executables.items() if key[0] == "decode")
    found = re.findall(r"= (.*?) (all-\w+|collective-\w+|reduce-scatter)(?:-start)?\(", text)
    counts = collections.Counter(f"{name} {re.sub('{.*?}', '', shape)}" for shape, name in found)
    return "; ".join(f"{count} x {what}" for what, count in counts.items()) or "none"


def profile(engine: Engine, prompts: list[list[int]], sampling: SamplingParams) -> list[str]:
    """Where a decode step's time goes on the first device: kernels, and waiting for the next one."""
    outputs = engine.stream(prompts, sampling)
    for _ in range(4 * len(prompts)):
        next(outputs)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(_PROFILED_STEPS * len(prompts)):
                next(outputs)
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(file))
    plane = next(plane for plane in data.planes if plane.name.startswith("/device:GPU:0"))
    events = [e for line in plane.lines if "Stream" in line.name for e in line.events]
    spent: collections.Counter[str] = collections.Counter()
    for event in events:
        name = re.sub(r"^void |\(.*|_\d+$", "", event.name)
        spent[name.split("<")[0][:60]] += event.duration_ns
    begin = min(e.start_ns for e in events)
    span = max(e.start_ns + e.duration_ns for e in events) - begin
    spent["nothing"] = span - sum(spent.values())
    step = 1e6 * _PROFILED_STEPS
    return [f"{ns / step:7.3f} ms {name}" for name, ns in spent.most_common(16)]


def measure(
    config: ModelConfig,
    params: dict,
    args: argparse.Namespace,
    devices: int,
    share: _processes.Share,
) -> float:
    """Prints one row; returns tokens a second."""
    rng = np.random.default_rng(0)
    length = args.context - args.new_tokens
    prompts = rng.integers(0, config.vocab, (args.sequences, length)).tolist()
    prompts = list(share.of(prompts))
    parallel, whole = None, params
    if devices > 1:
        parallel = ModelParallel(config, devices, devices=share.devices(devices))
        params = parallel.place(params)
    share.meet(f"{devices} devices")
    engine = Engine(
        config,
        params,
        max_num_seqs=len(prompts),
        max_model_len=args.context,
        prefill_tokens=4096,
        decode_steps=args.decode_steps,
        parallel=parallel,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=args.new_tokens, ignore_eos=True)
    for _ in engine.stream(prompts, sampling):
        share.progress()
    stats = engine.stats
    programs = -(-(args.new_tokens - 1) // args.decode_steps)
    step = stats.decode_seconds / (programs * args.decode_steps)
    rates = share.gather(f"rate of {devices}", stats.decode_tokens / stats.decode_seconds)
    rate = sum(rates)
    floor = floor_seconds(config, whole, len(prompts), args.context, devices)
    print(
        f"{devices} device(s){'' if share.replicas == 1 else f', {share.replicas} times'}: decode step {step * 1e3:.2f} ms (floor {floor * 1e3:.2f}), "
        f"{rate:.0f} tokens/s; prefill {stats.prefill_tokens / stats.prefill_seconds:.0f} tokens/s; "
        f"compiled in {stats.compile_seconds:.0f} s\n  collectives: {collectives(engine)}",
        flush=True,
    )
    if args.profile:
        for line in profile(engine, prompts, sampling):
            print("   ", line)
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensor-parallel", type=int, nargs="+", default=[1])
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--context", type=int, default=4096, help="prompt and new tokens")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--decode-steps", type=int, default=1, help="of one program")
    parser.add_argument("--quantize", choices=("fp8", *_CODES), help="linear layers")
    parser.add_argument("--calls-apart", action="store_true", help="leave out `chain`")
    parser.add_argument("--profile", action="store_true")
    _processes.add_arguments(parser)
    args = parser.parse_args()
    if args.calls_apart:
        transformer._Step.gains_by_chain = lambda self: False
    if args.profile and args.decode_steps != 1:
        parser.error("--profile counts single steps: leave --decode-steps at 1")
    with _processes.joined(args, "decode.py") as share:
        run(args, share)


def run(args: argparse.Namespace, share: _processes.Share) -> None:
    """Measures each number of devices."""
    if share.processes:
        jax.config.update("jax_num_cpu_devices", share.local_devices(max(args.tensor_parallel)))
    config = llama3_8b(args.layers)
    params = random_params(config, args.quantize)
    print(
        f"{jax.devices()[0].device_kind}: {args.sequences} sequences of {args.context} tokens, "
        f"{args.quantize or 'bf16'}"
    )
    rates = [measure(config, params, args, devices, share) for devices in args.tensor_parallel]
    for devices, rate in zip(args.tensor_parallel[1:], rates[1:], strict=True):
        if not share.prints:
            return
        print(f"{devices} devices: {rate / rates[0]:.2f} times {args.tensor_parallel[0]}")


if __name__ == "__main__":
    main()
