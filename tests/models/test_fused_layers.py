"""Linear layers in codes that are one op with what is around them: a GPU's way, here on a CPU."""

import numpy as np
import pytest
from intarsia.models import Engine, ModelParallel, SamplingParams, linear, load_model

PROMPTS = [[11, 42, 7, 100, 5], [3]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture
def gains(monkeypatch) -> None:
    monkeypatch.setattr(linear, "_gains_by_fusion", lambda: True)


def counts(engine: Engine) -> dict[str, int]:
    return engine.custom_calls()["decode"]


@pytest.mark.parametrize("scan_layers", [False, True])
def test_tokens_and_scores_are_those_of_the_ops_apart(smollm2_path, monkeypatch, scan_layers):
    config, params = load_model(smollm2_path, dtype="float32", quantize="int4")

    def run() -> tuple[list, np.ndarray, Engine]:
        engine = Engine(config, params, max_num_seqs=2, max_model_len=64, scan_layers=scan_layers)
        tokens = [done.tokens for done in engine.generate(PROMPTS, GREEDY)]
        return tokens, engine.prompt_logprobs([tokens[0]])[0], engine

    tokens, logprobs, apart = run()
    monkeypatch.setattr(linear, "_gains_by_fusion", lambda: True)
    found, found_logprobs, together = run()
    assert found == tokens
    np.testing.assert_allclose(found_logprobs, logprobs, atol=1e-3)
    layers = 1 if scan_layers else config.layers
    assert counts(apart)["linear_quantized"] == 4 * layers + 1
    assert counts(together)["fused_linear_quantized"] == 4 * layers
    # The output projection and the norm of what it reads are left.
    assert counts(together)["linear_quantized"] == counts(together)["rms_norm"] == 1
    assert not {"silu_and_mul", "fused_add_rms_norm"} & {*counts(together)}


def test_post_norms_stay_apart(gains, gemma3_path) -> None:
    config, params = load_model(gemma3_path, dtype="float32", quantize="int4")
    engine = Engine(config, params, max_num_seqs=1, max_model_len=32)
    engine.generate(PROMPTS[:1], GREEDY)
    found = counts(engine)
    assert config.post_norms and found["fused_linear_quantized"] >= config.layers  # gates and ups
    assert found["fused_add_rms_norm"] == 2 * config.layers


def test_devices_stay_apart(gains, write_gguf, tiny_weights) -> None:
    config, params = load_model(write_gguf(tiny_weights), dtype="float32", quantize="int8")
    parallel = ModelParallel(config, 1)
    engine = Engine(config, parallel.place(params), parallel=parallel, max_model_len=32)
    engine.generate(PROMPTS[1:], GREEDY)
    assert "fused_linear_quantized" not in counts(engine)
