"""Models in the codes of their GGUF files: what they are loaded as, the tokens that they make, and what refuses them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import started
from intarsia import cli, repack
from intarsia.models import Engine, SamplingParams, Tokenizer, find_model, load_model, vocabulary
from intarsia.models.linear import NarrowMatrix, PackedMatrix
from intarsia.models.parallel import ModelParallel


@pytest.fixture(scope="module", params=["smollm2", pytest.param("gemma3", marks=pytest.mark.full)])
def model(request):
    path = find_model(request.param)
    config, packed = load_model(path, quantize="file")
    return path, config, packed, request.getfixturevalue(request.param)[1]


def matrices(params) -> dict[str, PackedMatrix]:
    every = jax.tree.flatten_with_path(params, is_leaf=lambda x: isinstance(x, PackedMatrix))[0]
    return {jax.tree_util.keystr(path): x for path, x in every if isinstance(x, PackedMatrix)}


def test_every_matrix_is_in_codes_and_the_numbers_are_the_files(model) -> None:
    path, config, packed, plain = model
    found = matrices(packed)
    assert len(found) == 4 * config.layers + 1
    size = sum(part.nbytes for matrix in found.values() for part in matrix.parts)
    assert size < 1.01 * path.stat().st_size
    for place, matrix in found.items():
        (want,) = (
            x for p, x in jax.tree.leaves_with_path(plain) if jax.tree_util.keystr(p) == place
        )
        got = np.concatenate([repack.decoded(part) for part in matrix.parts])
        np.testing.assert_array_equal(got, want)


def test_the_same_embedding_and_logits(model) -> None:
    _, config, packed, plain = model
    tokens = jnp.array([0, 7, config.vocab - 1])
    rows = [jax.jit(vocabulary.embed, static_argnums=0)(config, p, tokens) for p in (packed, plain)]
    np.testing.assert_array_equal(*rows)
    logits = [vocabulary.logits(config, p, rows[0]) for p in (packed, plain)]
    np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-3 * float(jnp.abs(logits[1]).max()))


@pytest.fixture(scope="module")
def from_codes(model) -> tuple[Engine, list[list[int]]]:
    """An engine with the file's codes, and what it says."""
    path, config, packed, _ = model
    engine = Engine(config, packed, max_num_seqs=2, max_model_len=64)
    return engine, greedy_tokens(engine, path)


def greedy_tokens(engine: Engine, path, count: int = 16) -> list[list[int]]:
    tokenizer = Tokenizer.from_path(path)
    prompts = [tokenizer.encode(text) for text in ("The weaver went to the market", "Once")]
    sampling = SamplingParams(temperature=0.0, max_tokens=count)
    return [completion.tokens for completion in engine.generate(prompts, sampling)]


def test_the_same_tokens(model, from_codes) -> None:
    path, config, _, plain = model
    engine, tokens = from_codes
    assert tokens == greedy_tokens(Engine(config, plain, max_num_seqs=2, max_model_len=64), path)
    calls = engine.custom_calls()["decode"]
    assert calls["linear_quantized"] > 4 * config.layers and "linear" not in calls


def test_layers_in_one_format_may_be_stacked(model, request) -> None:
    path, config, packed, _ = model
    kinds = {jax.tree.structure(layer) for layer in packed["layers"]}
    if len(kinds) > 1:
        with pytest.raises(
            ValueError, match="scan_layers: the file's layers have weights in different"
        ):
            Engine(config, packed, scan_layers=True)
        return
    engine = Engine(config, packed, max_num_seqs=2, max_model_len=64, scan_layers=True)
    _, tokens = request.getfixturevalue("from_codes")
    assert greedy_tokens(engine, path, 6) == [of_prompt[:6] for of_prompt in tokens]


def test_a_vocabulary_in_codes_is_spread_as_numbers(model) -> None:
    _, config, packed, plain = model
    tables = {role: packed[role] for role in ("embed", "lm_head") if role in packed}
    devices = 3 if config.heads % 2 else 2
    for role, placed in ModelParallel(config, devices).place(tables).items():
        np.testing.assert_allclose(placed[: config.vocab], plain[role], rtol=1e-6)


def test_layers_of_several_formats_are_not_spread(model) -> None:
    _, config, packed, _ = model
    parallel = ModelParallel(config, 1)
    if all(len(layer["wqkv"].parts) == 1 for layer in packed["layers"]):
        parallel.place(packed)
        return
    with pytest.raises(ValueError, match="the file's codes, expected plain arrays: its 2 parts"):
        parallel.place(packed)


@pytest.mark.parametrize(
    "flags", [[], pytest.param(["--quantize", "none"], marks=pytest.mark.full)], ids=" ".join
)
def test_the_command_keeps_the_files_codes(capsys, flags) -> None:
    assert cli.main(["generate", "--max-tokens", "2", "--prompt", "Hi", *flags]) == 0
    said = capsys.readouterr().err
    for text in ("weights in the file's codes", "linear_quantized"):
        assert (text in said) == (not flags)
    assert "widened" not in said


@pytest.mark.full
def test_the_command_says_that_several_devices_widen_the_files_codes(start) -> None:
    flags = ["--tensor-parallel", "3", "--max-tokens", "2", "--prompt", "Hi"]
    [(status, _, said)] = started.ends([start("-c", started.COMMAND, "generate", *flags)])
    assert status == 0, said
    assert "the file's codes are widened to float32, since 3 devices share the weights" in said
    assert "weights in the file's codes" not in said and "linear_quantized" not in said


def test_a_matrix_of_16_bits_stays_so(write_gguf, tiny_weights) -> None:
    """Also one whose rows are put in another order, and beside ones in f32."""
    names = ("embed_tokens", "q_proj", "k_proj", "v_proj", "down_proj")
    weights = {
        name: w.astype(np.float16) if any(n in name for n in names) else w
        for name, w in tiny_weights.items()
    }
    path = write_gguf(weights)
    narrow, plain = (load_model(path, quantize=q)[1] for q in ("file", None))
    for place in ("wqkv", "w_down", "wo"):
        got, want = narrow["layers"][1][place], plain["layers"][1][place]
        assert isinstance(got, NarrowMatrix) == (place != "wo")
        numbers = got.numbers if place != "wo" else got
        assert numbers.dtype == (np.float16 if place != "wo" else np.float32)
        np.testing.assert_array_equal(numbers.astype(np.float32), want)
    np.testing.assert_array_equal(narrow["embed"][jnp.arange(9)], plain["embed"][:9])
