"""The hyperparameters of a decoder-only transformer: what the supported architectures differ in."""

import dataclasses
import math

import numpy as np

_MOST_HEAD_DIM = 512  # of attention on CPUs (src/attention/params.h); GPUs have 256


@dataclasses.dataclass(frozen=True)
class Rope:
    """A rotary position embedding over whole heads.

    Attributes:
        theta: Base of the frequencies.
        divisors: What each of the head_dim / 2 frequencies is divided by, or None. Every supported
            kind of rope scaling ("linear", "llama3", "yarn") comes down to this, and yarn to the amplitude.
        amplitude: Factor of the cosines and sines.
    """

    theta: float = 10000.0
    divisors: tuple[float, ...] | None = None
    amplitude: float = 1.0

    def table(self, head_dim: int, max_len: int) -> np.ndarray:
        """Returns the cosines and then the sines of every position: f32 [max_len, head_dim].

        Computed in f32 step by step as transformers does, so that tokens can be compared.
        """
        exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        frequencies: np.ndarray = np.float32(1.0) / np.float32(self.theta) ** exponents
        if self.divisors is not None:
            frequencies = frequencies / np.asarray(self.divisors, np.float32)
        angles = np.arange(max_len, dtype=np.float32)[:, None] * frequencies
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=-1) * np.float32(
            self.amplitude
        )


@dataclasses.dataclass(frozen=True)
class LayerKind:
    """What the attention of one layer may have different from that of another.

    Attributes:
        rope: Its rotary embedding.
        sliding_window: Keys that a query sees, itself included; None means all.
    """

    rope: Rope = Rope()
    sliding_window: int | None = None


@dataclasses.dataclass(frozen=True)
class Experts:
    """A feed-forward layer of several, of which each token takes a few.

    Attributes:
        count: Experts E, those of all devices.
        per_token: Experts k of one token.
        renormalize: Whether the weights of a token's experts sum to 1.
        biases: Whether the router and the experts' products have biases (gpt-oss).
        limit: The most that `swigluoai` takes a gate for.
    """

    count: int
    per_token: int
    renormalize: bool = True
    biases: bool = False
    limit: float = 7.0

    def __post_init__(self) -> None:
        if not 1 <= self.per_token <= self.count:
            raise ValueError(
                f"config: {self.per_token} experts of each token, expected 1 to {self.count}, their number"
            )


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """What `transformer.forward` needs to know about a model besides its weights.

    The defaults are Llama's; `architectures.py` says where others differ.

    Attributes:
        hidden: Width n of the residual stream.
        layers: Number of transformer blocks.
        heads: Query heads h.
        kv_heads: Key and value heads hk; divides `heads`.
        head_dim: Width d of one head.
        intermediate: Width of the gated feed-forward layer, or of one expert.
        vocab: Rows of the embedding table.
        experts: What feed-forward layers of experts are like; None where there is one for all tokens.
        layer_kinds: A pattern that repeats over the layers: layer i is of kind i modulo its length.
        rms_eps: Added to the mean square in every norm.
        activation: Of the gate: `silu` or `gelu_tanh`; for experts `swigluoai` as well.
        attention_scale: Factor of the attention scores; None means head_dim ** -0.5.
        embed_scale: Factor of the embedding where it enters the residual stream.
        qkv_bias: Whether the q, k and v projections have a bias (Qwen2, gpt-oss).
        o_bias: Whether the projection of what heads attend to has one (gpt-oss).
        sinks: Whether each head has a logit without a value beside those of its keys (gpt-oss).
        qk_norm: Whether every head of query and key is normed before its rotation (Gemma 3, Qwen3).
        post_norms: Whether what attention and feed-forward layer give is normed before it is added
            to the residual stream (Gemma 3).
        norm_in_f32: Whether a norm has f32 weights and rounds once, at its end, as Gemma's does;
            Llama's rounds to the activations' dtype before it multiplies by the weight. Norms of heads round once always, after
            the rotation.
        norms_less_one: Whether a Hugging Face file holds norms as their difference from 1 (Gemma 3).
        fits_f16: Whether the residual stream stays in float16's range (Gemma 3's does not).
        tie_embeddings: Whether the embedding table is also the output projection.
        max_positions: Longest sequence that the model was trained for.
        bos_id: Token that begins a text, if the model has one.
        eos_ids: Tokens that end a completion.
        mesh_axis: Where a model is spread over devices, the name of that axis of their mesh; heads,
            kv_heads and intermediate are then those of one device, and its weights a share.
        heads_spread: Whether, on such a mesh, a device has a share of the heads and not all.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    experts: Experts | None = None
    layer_kinds: tuple[LayerKind, ...] = (LayerKind(),)
    rms_eps: float = 1e-6
    activation: str = "silu"
    attention_scale: float | None = None
    embed_scale: float = 1.0
    qkv_bias: bool = False
    o_bias: bool = False
    sinks: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    norm_in_f32: bool = False
    norms_less_one: bool = False
    fits_f16: bool = True
    tie_embeddings: bool = False
    max_positions: int = 2048
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    mesh_axis: str | None = None
    heads_spread: bool = True

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"config: heads={self.heads} must be a multiple of kv_heads={self.kv_heads}"
            )
        if self.head_dim % 8 or not 8 <= self.head_dim <= _MOST_HEAD_DIM:
            raise ValueError(
                f"config: head_dim is {self.head_dim}, expected a multiple of 8 up to {_MOST_HEAD_DIM}"
            )
        for rope in self.ropes:
            if not all(0 < x < math.inf for x in rope.divisors or ()):
                raise ValueError("config: a divisor of rope is no finite number above 0")
            if rope.divisors is not None and len(rope.divisors) != self.head_dim // 2:
                raise ValueError(
                    f"config: rope has {len(rope.divisors)} divisors, "
                    f"expected head_dim / 2 = {self.head_dim // 2}"
                )

    @property
    def norm_rounding(self) -> str:
        """The `rounding` of the norm ops."""
        return "once" if self.norm_in_f32 else "before_weight"

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The different rotary embeddings of the layers."""
        return tuple(dict.fromkeys(kind.rope for kind in self.layer_kinds))

    @property
    def expert_sizes(self) -> tuple[int, int, int]:
        """A mixture's number of experts, `hidden`, and `intermediate`: the sizes of their tensors."""
        assert self.experts is not None
        return self.experts.count, self.hidden, self.intermediate

    def kind(self, layer: int) -> LayerKind:
        """The kind of a layer."""
        return self.layer_kinds[layer % len(self.layer_kinds)]

    def rope_tables(self, max_len: int) -> tuple[np.ndarray, ...]:
        """Returns `Rope.table` of each of `ropes`."""
        return tuple(rope.table(self.head_dim, max_len) for rope in self.ropes)
