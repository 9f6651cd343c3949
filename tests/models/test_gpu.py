"""SmolLM2 on a GPU: transformers' tokens in f32, its logits to bf16's accuracy in bf16."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from intarsia.models import Engine, SamplingParams, load_model, transformer

pytestmark = pytest.mark.gpu

# 30 layers, each of which rounds to 8 bits a few times.
BF16_LOGITS_ERROR = 3e-2


@pytest.fixture
def on_gpu():
    """Everything in the test is on the GPU."""
    with jax.default_device(jax.devices("gpu")[0]):
        yield


def test_tokens_are_those_of_transformers_in_f32(smollm2_path, recorded, on_gpu):
    engine = Engine(*load_model(smollm2_path), max_num_seqs=5, max_model_len=128)
    completions = engine.generate(
        [sequence["prompt_ids"] for sequence in recorded],
        SamplingParams(temperature=0.0, max_tokens=32),
    )
    for completion, sequence in zip(completions, recorded, strict=True):
        assert completion.tokens == sequence["tokens"][:32]


def test_logits_are_those_of_f32_to_the_accuracy_of_bf16(
    smollm2_path, recorded, monkeypatch, on_gpu
):
    seen = []

    def spy(logits, *_, **__):
        jax.debug.callback(seen.append, logits)
        return jnp.argmax(logits, axis=1).astype(jnp.int32)

    monkeypatch.setattr("intarsia.models.steps.sample", spy)
    first_logits = []
    for dtype in (jnp.float32, jnp.bfloat16):
        seen.clear()
        engine = Engine(*load_model(smollm2_path, dtype=dtype), max_num_seqs=5, max_model_len=64)
        prompts = [sequence["prompt_ids"] for sequence in recorded]
        engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=1))
        jax.effects_barrier()
        first_logits.append(
            np.asarray(seen[2 * transformer.warm_up_runs()])
        )  # After both steps' warm-up.
    exact, rounded = first_logits
    error = np.linalg.norm(rounded - exact) / np.linalg.norm(exact)
    assert 0 < error < BF16_LOGITS_ERROR
