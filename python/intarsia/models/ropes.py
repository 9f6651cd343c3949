"""YaRN, and rotary embeddings and kinds of layers as Hugging Face's config.json has them."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from intarsia.models.config import LayerKind, Rope
from intarsia.models.fields import Fields

_KINDS = ("default", "linear", "llama3", "yarn")
_LAYER_TYPES = ("full_attention", "sliding_attention")
_OF_ANY_TYPE = ("rope_theta", "partial_rotary_factor")
YARN_FAST, YARN_SLOW = 32.0, 1.0
"""Turns in the original context, where a file has none."""


class Yarn(NamedTuple):
    """YaRN (Peng et al. 2023, arXiv:2309.00071): frequencies that turn often in the original context are kept, others divided.

    The band between is blended linearly in the frequency's index.

    Attributes:
        factor: How many times as long sequences may be.
        context: Positions of the original context.
        truncates: Whether the band begins and ends at whole indices.
        fast: Turns from which on a frequency is kept.
        slow: Turns up to which one is divided by `factor`.
    """

    factor: float
    context: int
    truncates: bool
    fast: float = YARN_FAST
    slow: float = YARN_SLOW

    def divisors(self, theta: float, head_dim: int) -> tuple[float, ...]:
        """What each of the head_dim / 2 frequencies is divided by.

        Raises:
            ValueError: `fast` is less than `slow`, or theta is no more than 1.
        """
        if self.fast < self.slow:
            raise ValueError(
                f"beta_fast is {self.fast}, expected beta_slow or more, which is {self.slow}"
            )
        if theta <= 1:
            raise ValueError(f"rope_theta is {theta}, expected more than 1 for yarn")
        low, high = (
            head_dim * math.log(self.context / (turns * 2 * math.pi)) / (2 * math.log(theta))
            for turns in (self.fast, self.slow)
        )
        if self.truncates:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        width = high - low if high != low else 0.001  # as transformers has it
        divided = [min(max((i - low) / width, 0.0), 1.0) for i in range(head_dim // 2)]
        return tuple(1.0 / (1.0 - share + share / self.factor) for share in divided)

    def amplitude(self, scale: float = 1.0) -> float:
        """What cosines and sines are multiplied by: it grows with the logarithm of `factor`, which makes softmax sharper."""
        return 0.1 * scale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


def rope_settings(config: Fields) -> Fields:
    """The rope's parameters: transformers 5 writes rope_parameters; before it there were rope_theta and rope_scaling."""
    for key in ("rope_parameters", "rope_scaling"):
        if settings := config.inner(key):
            for layers in _LAYER_TYPES:
                if settings.has(layers):
                    raise ValueError(f"{key} has {layers}, expected one rope for all layers")
            return settings
    return Fields({})


def rope_settings_by_layer(config: Fields) -> tuple[Fields, Fields]:
    """Those of layers that see everything, and of layers with a window.

    transformers 5 writes them by type of layer; before it, scaling was only of the layers that see everything.
    """
    none = Fields({})
    ropes = config.inner("rope_parameters") or none
    for key in ropes.others(*_LAYER_TYPES):
        raise ValueError(f"rope_parameters has {key}, expected {' and '.join(_LAYER_TYPES)}")
    of_global, of_local = map(ropes.inner, _LAYER_TYPES)
    return of_global or config.inner("rope_scaling") or none, of_local or none


def theta_from_hf(rope: Fields, default: float) -> float:
    """The base of the frequencies."""
    return float(rope.number("rope_theta", default, above=0))


def layer_kinds(
    config: Fields, kinds: Mapping[str, LayerKind], pattern: Sequence[str]
) -> tuple[LayerKind, ...]:
    """The kinds that `layer_types` names, or else `pattern`, as the shortest pattern that repeats."""
    types = config.texts("layer_types", list(pattern))
    layers = config.whole("num_hidden_layers")
    if config.has("layer_types") and len(types) != layers:
        raise ValueError(
            f"layer_types has {len(types)} entries, expected num_hidden_layers={layers}"
        )
    for kind in set(types) - kinds.keys():
        raise ValueError(f"layer type is {kind!r}, expected {' or '.join(kinds)}")
    return tuple(kinds[kind] for kind in _period(types))


def _period(sequence: Sequence[str]) -> Sequence[str]:
    """The shortest beginning that gives the whole sequence when it is repeated."""
    for n in range(1, len(sequence)):
        if all(item == sequence[i % n] for i, item in enumerate(sequence)):
            return sequence[:n]
    return sequence


def rope_from_hf(settings: Fields, theta: float, head_dim: int) -> Rope:
    """Turns Hugging Face's rope scaling into one divisor for each frequency."""
    settings.expect("partial_rotary_factor", 1.0)
    names = {key: settings.text(key) for key in ("rope_type", "type") if settings.has(key)}
    if len(set(names.values())) > 1:
        raise ValueError(
            f"rope_type is {names['rope_type']!r}, expected that of type, {names['type']!r}"
        )
    others = settings.others(*_OF_ANY_TYPE)
    if others and not names:
        raise ValueError(
            f"rope_type is missing beside {others[0]}, expected one of {', '.join(_KINDS)}"
        )
    kind = next(iter(names.values()), "default")
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, (float(settings.number("factor", above=0)),) * (head_dim // 2))
    if kind == "llama3":
        return Rope(theta, _llama3_divisors(settings, theta, head_dim))
    if kind == "yarn":
        return _yarn(settings, theta, head_dim)
    raise ValueError(f"rope type is {kind!r}, expected one of {', '.join(_KINDS)}")


def _llama3_divisors(settings: Fields, theta: float, head_dim: int) -> tuple[float, ...]:
    """Llama 3.1's: long wavelengths are stretched by `factor`, short ones kept.

    The band between is blended linearly in the number of turns that fit into the original context.
    """
    factor, low, high = (
        float(settings.number(key, above=0))
        for key in ("factor", "low_freq_factor", "high_freq_factor")
    )
    if low >= high:
        raise ValueError(
            f"low_freq_factor is {low}, expected less than high_freq_factor, which is {high}"
        )
    context = settings.whole("original_max_position_embeddings")
    divisors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (i / head_dim)
        turns = context / wavelength
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1.0 / (kept + (1.0 - kept) / factor))
    return tuple(divisors)


def _yarn(settings: Fields, theta: float, head_dim: int) -> Rope:
    factor = float(settings.number("factor", above=0))
    fast, slow = (
        float(settings.number(key, default, above=0))
        for key, default in (("beta_fast", YARN_FAST), ("beta_slow", YARN_SLOW))
    )
    context = settings.whole("original_max_position_embeddings")
    yarn = Yarn(factor, context, settings.flag("truncate", True), fast, slow)
    scales = [settings.number(key, 0.0) for key in ("mscale", "mscale_all_dim")]
    default = yarn.amplitude()
    if all(scales):
        default = yarn.amplitude(scales[0]) / yarn.amplitude(scales[1])
    amplitude = float(settings.number("attention_factor", default, above=0))
    return Rope(theta, yarn.divisors(theta, head_dim), amplitude)
