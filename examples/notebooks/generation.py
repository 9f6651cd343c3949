# %% [markdown]
# # Generation
# A Llama whose every decode step is one XLA program, with its KV cache in place. `make demo` installs the model, SmolLM2-135M.

# %%
from intarsia.models import Engine, SamplingParams, Tokenizer, find_model, load_model

path = find_model("smollm2")
tokenizer = Tokenizer.from_path(path)
engine = Engine(*load_model(path), max_num_seqs=2, max_model_len=64)

# %% [markdown]
# Two prompts of different lengths share a batch. The first call compiles.

# %%
prompts = ["The loom was invented in", "Once upon a time"]
sampling = SamplingParams(temperature=0.0, max_tokens=12)
encoded = [tokenizer.encode(prompt) for prompt in prompts]
for prompt, completion in zip(prompts, engine.generate(encoded, sampling), strict=True):
    print(prompt + tokenizer.decode(completion.tokens))
    assert len(completion.tokens) == 12

# %% [markdown]
# Tokens come as they are made with `stream`. `custom_calls` says what the compiled steps call.

# %%
for output in engine.stream(encoded[:1], sampling):
    print(tokenizer.decode([output.token]), end="")
print()
calls = engine.custom_calls()["decode"]
print(calls)
assert calls["paged_attention"] == 30
