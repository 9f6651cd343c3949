"""What property tests draw from, and how they check a call."""

import numpy as np
import running
import support
from hypothesis import strategies as st
from intarsia_src.core import cache_layout

DTYPES = st.sampled_from(sorted(support.DTYPES))
INDEX_DTYPES = st.sampled_from([np.int32, np.int64])
SEEDS = st.integers(0, 2**32 - 1)
LEAD = st.lists(st.integers(0, 5), max_size=3).map(tuple)
# Around every register width and beyond a tile of threads' work.
WIDTHS = st.one_of(st.integers(1, 70), st.integers(1, 20).map(lambda n: 16 * n), st.just(20011))
# Those with a name, and a few of the other orders of axes: FlashInfer's, and layers in odd places.
LAYOUTS = st.sampled_from(
    [*cache_layout.layout_names(), "p 2 s hk d", "p 2 hk s d", "hk p s 2*d", "s 2*hk p d"]
)
LAYER_LAYOUTS = LAYOUTS | st.sampled_from(["l p s hk d", "p l s hk d", "2 p s l hk d"])


@st.composite
def cache_layouts(draw):
    """A layout, and how many layers: none if it has no axis of them."""
    layers = draw(st.none() | st.integers(1, 3))
    return draw(LAYOUTS if layers is None else LAYER_LAYOUTS), layers


def check(op: str, operands: list, attributes: dict, platform: str) -> list:
    """Runs a call the fastest way there is and asserts that its results are right."""
    got = running.run_any(op, operands, attributes, platform)
    running.check_against_reference(op, operands, attributes, got, platform)
    return got
