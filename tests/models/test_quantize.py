"""Linear layers in fp8: what they compute, what is left of a model's quality, and what is compiled."""

import functools
import re

import intarsia.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import running
from intarsia import cli
from intarsia._steps import compile_step, custom_calls
from intarsia.models import Engine, ModelConfig, SamplingParams, load_model, perplexity, transformer
from intarsia.models.linear import (
    QuantizedRows,
    QuantizedWeight,
    linear,
    norm_for,
    quantize,
)
from intarsia.models.parallel import ModelParallel
from jax.sharding import PartitionSpec as P
from test_engine import tokens_of

LINEAR_ROLES = ("wqkv", "wo", "w_gate_up", "w_down")
TOLERANCE = {"float32": 2e-6, "float16": 4e-4, "bfloat16": 4e-3}
# Of a product whose both sides are rounded to a 3-bit mantissa: half a step is 2^-4 of a number at
# most, 2^-4 / sqrt(3) = 3.6% or less on average, on each side.
F8_ERROR = 6e-2
# Tokens of the passage that perplexity is measured over: enough, and quick. Its logarithm grew by
# 0.037 and 0.002 (standard errors 0.017 and 0.013); what is above that is room for sums in another
# order, which move activations to neighboring codes.
PASSAGE_TOKENS = 300
LOG_PERPLEXITY = {"smollm2": 0.06, "gemma3": 0.03}


def wide(x) -> np.ndarray:
    return np.asarray(x, np.float64)


def dequantized(weight: QuantizedWeight) -> np.ndarray:
    return wide(weight.codes) * wide(weight.scale)[:, None]


def relative_error(got, expected) -> float:
    return np.linalg.norm(wide(got) - expected) / np.linalg.norm(expected)


@pytest.fixture(scope="module")
def layer():
    """A weight [96, 80] and rows [41, 80] whose channels and tokens have sizes of their own."""
    rng = np.random.default_rng(3)
    sizes = 10.0 ** rng.uniform(-2, 1, (96, 1)), 10.0 ** rng.uniform(-2, 2, (41, 1))
    return tuple((rng.standard_normal((len(size), 80)) * size).astype(np.float32) for size in sizes)


# ---------------------------------------------------------------------------- the layer


def test_a_weight_has_a_scale_for_each_output_channel(layer):
    weight, _ = layer
    quantized = quantize(jnp.asarray(weight))
    assert quantized.codes.dtype == jnp.float8_e4m3fn and quantized.codes.shape == weight.shape
    np.testing.assert_allclose(quantized.scale, np.abs(weight).max(axis=1) / 448, rtol=1e-6)
    error = np.abs(dequantized(quantized) - weight)
    steps = np.maximum(np.abs(weight) * 2.0**-4, wide(quantized.scale)[:, None] * 2.0**-10)
    assert (error <= steps * (1 + 1e-6)).all()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_layer_is_the_product_of_what_codes_stand_for(layer, dtype):
    weight, rows = layer
    x = jnp.asarray(rows, dtype)
    quantized = quantize(jnp.asarray(weight))
    codes, scale = intarsia.jax.dynamic_per_token_scaled_fp8_quant(x)
    expected = (wide(codes) * wide(scale)) @ dequantized(quantized).T
    for given in (x, QuantizedRows(codes, scale, x.dtype)):
        got = jax.jit(linear, static_argnums=0)(intarsia.jax, given, quantized)
        assert got.dtype == dtype
        assert relative_error(got, expected) < TOLERANCE[dtype]
    # Channels and tokens weighed alike: one scale for a whole tensor would lose the small ones.
    sizes = np.linalg.norm(wide(x), axis=1)[:, None] * np.linalg.norm(wide(weight), axis=1)
    whole, got = (wide(x) @ wide(weight).T / sizes, wide(got) / sizes)
    for axis in (0, 1):
        errors = np.linalg.norm(got - whole, axis=axis) / np.linalg.norm(whole, axis=axis)
        assert errors.min() > 1e-2 and errors.max() < F8_ERROR, errors


def test_sums_of_codes_do_not_overflow():
    largest = quantize(jnp.full((16, 4096), 3.0))
    got = linear(intarsia.jax, jnp.full((2, 4096), 5.0, jnp.float16), largest)
    assert (wide(got) == 3 * 5 * 4096).all()  # in codes 448 * 448 * 4096, far above float16


def test_an_unquantized_layer_is_the_plain_product(layer):
    weight, rows = map(jnp.asarray, layer)
    assert (linear(None, rows, weight) == intarsia.jax.linear(rows, weight)).all()


@pytest.mark.parametrize("rounding", ["once", "before_weight"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_norm_gives_a_quantized_layer_the_codes_that_it_would_make(layer, rounding, fused):
    _, rows = layer
    x, residual = (jnp.asarray(rows, jnp.bfloat16), jnp.asarray(rows[::-1], jnp.bfloat16))
    norm_weight = jnp.linspace(0.5, 2, 80, dtype=jnp.float32)
    arguments = (x, residual if fused else None, norm_weight)
    settings = {"eps": 1e-5, "rounding": rounding}
    plain, added = norm_for(intarsia.jax, None, *arguments, **settings)
    rows8, added8 = norm_for(intarsia.jax, quantize(jnp.ones((16, 80))), *arguments, **settings)
    codes, scale = intarsia.jax.dynamic_per_token_scaled_fp8_quant(plain)
    assert rows8.dtype == jnp.bfloat16
    for got, expected in ((added8, added), (rows8.codes, codes), (rows8.scale, scale)):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))


# ---------------------------------------------------------------------------- models


@pytest.fixture(scope="module")
def prompts():
    """Ragged prompts."""
    rng = np.random.default_rng(5)
    return [rng.integers(2, 258, length).tolist() for length in (33, 5, 48)]


def _with_fp8(params):
    """What loading with `quantize="fp8"` gives."""
    layers = [
        {role: quantize(x) if role in LINEAR_ROLES else x for role, x in layer.items()}
        for layer in params["layers"]
    ]
    return params | {"layers": layers}


@pytest.fixture(scope="module", params=["tiny", "tiny_gemma"])
def model(request):
    """A tiny model and itself in fp8."""
    config, params = request.getfixturevalue(request.param)
    return config, params, _with_fp8(params)


def _engine(config, params, **settings):
    return Engine(config, params, **({"max_num_seqs": 3, "max_model_len": 64} | settings))


@pytest.fixture(scope="module")
def logprobs(model, prompts):
    """Of the prompts on one device: the model's, and its own in fp8."""
    config, *both = model
    return [np.concatenate(_engine(config, params).prompt_logprobs(prompts)) for params in both]


def test_loading_quantizes_the_linear_layers_and_nothing_else(
    write_directory, hf_config, tiny_weights
):
    path = write_directory(hf_config, tiny_weights)
    _, exact = load_model(path)
    _, got = load_model(path, dtype="bfloat16", quantize="fp8")
    for layer, expected in zip(got["layers"], _with_fp8(exact)["layers"], strict=True):
        for role, array in layer.items():
            if role in LINEAR_ROLES:  # of the file's numbers, not of those rounded to bf16
                for part, part_expected in zip(array, expected[role], strict=True):
                    np.testing.assert_array_equal(np.asarray(part), np.asarray(part_expected))
            else:
                assert array.dtype == jnp.bfloat16
    assert got["embed"].dtype == got["first_norm"].dtype == jnp.bfloat16


@pytest.mark.parametrize(
    "settings", [{}, {"scan_layers": True}, {"prefill_tokens": 16}, {"max_num_seqs": 1}], ids=str
)
def test_probabilities_stay_near_however_the_step_is_built(model, prompts, logprobs, settings):
    config, _, quantized = model
    exact, got = logprobs
    if settings:
        got = np.concatenate(_engine(config, quantized, **settings).prompt_logprobs(prompts))
    difference = np.linalg.norm(got - exact) / np.linalg.norm(exact)
    assert 1e-3 < difference < 0.15


def test_decoding_gives_the_tokens_of_scanned_layers(model, prompts):
    config, _, quantized = model
    sampling = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    tokens = [
        tokens_of(_engine(config, quantized, scan_layers=scan).generate(prompts, sampling))
        for scan in (False, True)
    ]
    assert tokens[0] == tokens[1]


def test_biases_are_added(write_directory, hf_config, tiny_weights, prompts):
    rng = np.random.default_rng(3)
    for layer in range(hf_config["num_hidden_layers"]):
        for name, rows in (("q", 64), ("k", 32), ("v", 32)):
            bias = rng.standard_normal(rows).astype(np.float32)
            tiny_weights[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = bias
    path = write_directory(hf_config | {"architectures": ["Qwen2ForCausalLM"]}, tiny_weights)
    exact, got = (
        np.concatenate(_engine(*load_model(path, quantize=q)).prompt_logprobs(prompts))
        for q in (None, "fp8")
    )
    assert 1e-3 < np.linalg.norm(got - exact) / np.linalg.norm(exact) < 0.15


@pytest.mark.parametrize("name", LOG_PERPLEXITY)
@pytest.mark.full
def test_perplexity_grows_by_little(request, recorded_passages, name):
    ids = recorded_passages[name]["ids"][:PASSAGE_TOKENS]
    path = request.getfixturevalue(f"{name}_path")
    models = (request.getfixturevalue(name), load_model(path, quantize="fp8"))
    exact, quantized = (
        perplexity(Engine(*m, max_num_seqs=1, max_model_len=len(ids) + 1).prompt_logprobs([ids]))
        for m in models
    )
    assert 0 < abs(np.log(quantized / exact)) < LOG_PERPLEXITY[name]


# ---------------------------------------------------------------------------- several devices


@pytest.mark.parametrize("size", [2, 4])  # two KV heads: with four devices, each has two copies
def test_shares_of_a_quantized_weight_are_those_of_the_weight(model, size):
    config, _, quantized = model
    exact = [
        {role: jnp.asarray(dequantized(layer[role]), jnp.float32) for role in LINEAR_ROLES}
        for layer in quantized["layers"]
    ]
    parallel = ModelParallel(config, size)
    placed, expected = (
        parallel.place({"layers": x})["layers"] for x in (quantized["layers"], exact)
    )
    for layer, expected_layer in zip(placed, expected, strict=True):
        for role, weight in expected_layer.items():
            codes, scale = layer[role]
            np.testing.assert_allclose(dequantized(layer[role]), wide(weight), rtol=1e-6)
            assert codes.sharding == weight.sharding
            by_rows = role in ("wqkv", "w_gate_up")
            assert scale.sharding.spec == (P("devices") if by_rows else P())


@pytest.mark.parametrize(("size", "scan_layers"), [(2, False), (2, True), (4, False)])
def test_several_devices_stay_near_one(model, prompts, logprobs, size, scan_layers):
    config, _, quantized = model
    exact, whole = logprobs
    spread = _engine(config, quantized, tensor_parallel=size, scan_layers=scan_layers)
    got = np.concatenate(spread.prompt_logprobs(prompts))
    # Parts of a row have scales of their own: other codes than on one device, and no worse ones.
    errors = [np.linalg.norm(values - exact) for values in (whole, got)]
    assert 0 < errors[1] < 1.5 * errors[0]
    if not scan_layers:
        [text] = [executable.as_text() for executable in spread._executables.values()]
        # Two sums a layer and the embedding's: no device asks another for a scale.
        assert len(re.findall(r" all-reduce(?:-start)?\(", text)) == 2 * config.layers + 1


# ---------------------------------------------------------------------------- programs


def test_weights_of_the_program_are_codes(model, prompts):
    config, _, quantized = model
    engine = _engine(config, quantized, kv_cache_dtype="fp8_e4m3")
    engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=2))
    shapes = {
        role: x.codes.shape for role, x in quantized["layers"][0].items() if role in LINEAR_ROLES
    }
    for kind, executable in ((key[0], e) for key, e in engine._executables.items()):
        entry = executable.as_text().split("entry_computation_layout=", 1)[1].split("->", 1)[0]
        for shape in shapes.values():
            found = re.findall(rf"(\w+)\[{shape[0]},{shape[1]}\]", entry)
            assert set(found) == {"f8e4m3fn"}, (kind, shape, found)
        calls = engine.custom_calls()[kind]
        assert calls["rms_norm_dynamic_per_token_quant"] == 2 * config.layers
        assert calls["dynamic_per_token_scaled_fp8_quant"] == 2 * config.layers
        assert calls["fused_add_rms_norm"] == 1  # the last, which feeds the output projection
        assert calls["linear"] == 1


LLAMA3_8B = ModelConfig(
    hidden=4096,
    layers=2,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=14336,
    vocab=128256,
    rms_eps=1e-5,
)


def _shapes_of_a_step(config: ModelConfig, tokens: int, scan_layers: bool):
    """Operands of `transformer.forward` without their numbers: bf16 activations, fp8 weights."""
    n, d, m = config.hidden, config.head_dim, config.intermediate

    def array(*shape: int, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype)

    def weight(rows: int, columns: int) -> QuantizedWeight:
        codes = array(rows, columns, dtype=jnp.float8_e4m3fn)
        return QuantizedWeight(codes, array(rows, dtype=jnp.float32))

    layer = {
        "wqkv": weight((config.heads + 2 * config.kv_heads) * d, n),
        "wo": weight(n, config.heads * d),
        "w_gate_up": weight(2 * m, n),
        "w_down": weight(n, m),
        "mlp_norm": array(n),
        "next_norm": array(n),
    }
    params = {"embed": array(config.vocab, n), "first_norm": array(n)}
    params["layers"] = [layer] * config.layers
    caches = jax.eval_shape(
        lambda: transformer.make_caches(config, 64, 16, jnp.bfloat16, stacked=scan_layers)
    )
    if scan_layers:
        params = jax.eval_shape(transformer.stack_layers, params)
    index = functools.partial(array, dtype=jnp.int32)
    batch = transformer.Batch(
        index(tokens),
        index(tokens),
        index(tokens),
        index(tokens + 1),
        index(tokens),
        index(tokens, 4),
    )
    return params, caches, (array(1024, d, dtype=jnp.float32),), batch


@running.on_each_platform
@pytest.mark.parametrize("scan_layers", [False, True])
def test_products_take_the_codes(platform: str, scan_layers: bool) -> None:
    """In the optimized decode step no weight is widened."""
    config = LLAMA3_8B
    sharding = jax.sharding.SingleDeviceSharding(jax.devices(platform)[0])
    operands = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        _shapes_of_a_step(config, 16, scan_layers),
    )
    step = functools.partial(transformer.forward, intarsia.jax, config, decode=True)
    text = compile_step(jax.jit(step, donate_argnums=1).lower(*operands)).as_text()
    layers = 1 if scan_layers else config.layers
    assert custom_calls(text)["scaled_matmul"] == 4 * layers
    assert not re.search(r"(bf16|f16|f32)\[(6144,4096|4096,4096|28672,4096|4096,14336)\]", text)


# ---------------------------------------------------------------------------- commands


def test_unknown_quantization(write_directory, hf_config, tiny_weights, capsys):
    path = write_directory(hf_config, tiny_weights)
    with pytest.raises(
        ValueError, match=r"quantize is 'int3', expected fp8 or int8 or int4 or file, or None"
    ):
        load_model(path, quantize="int3")
    with pytest.raises(SystemExit):
        cli.main(["generate", "--model", str(path), "--quantize", "int3"])
    assert "invalid choice: 'int3'" in capsys.readouterr().err


def test_the_commands_say_what_the_weights_are_in(write_gguf, tiny_weights, tmp_path, capsys):
    model = ["--model", str(write_gguf(tiny_weights)), "--dtype", "float32", "--quantize", "fp8"]
    arguments = ["--prompt", "the", "--max-tokens", "4", "--decode-steps", "2", "--reference"]
    assert cli.main(["generate", *model, *arguments]) == 0
    err = capsys.readouterr().err
    assert "2 layers in float32, linear layers in fp8, 2 steps a program; compiling" in err
    assert "plain jax.numpy, weights in float32, without printing" in err
    assert "rms_norm_dynamic_per_token_quant 4" in err
    assert re.search(r"^ratio +decode \d+\.\d\d times as fast as plain jax\.numpy$", err, re.M)
    assert re.search(r"^weights +\d MB for each token, \d+\.\d GB/s$", err, re.M)
    assert "one sequence waits for memory" not in err  # nor does the reference read as little
    assert re.search(r"greedy tokens +(the same \(1 of 1|. of 1 completions equal, . of)", err)
    (tmp_path / "text.txt").write_text("the 123 " * 20)
    assert cli.main(["perplexity", str(tmp_path / "text.txt"), *model]) == 0
    assert "in float32, linear layers in fp8, KV cache in float32" in capsys.readouterr().out
