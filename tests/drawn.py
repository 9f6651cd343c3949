"""What property tests draw from, and how they check a call."""

import numpy as np
import running
import support
from hypothesis import strategies as st

DTYPES = st.sampled_from(sorted(support.DTYPES))
INDEX_DTYPES = st.sampled_from([np.int32, np.int64])
SEEDS = st.integers(0, 2**32 - 1)
LEAD = st.lists(st.integers(0, 5), max_size=3).map(tuple)
# Around every register width and beyond a tile of threads' work.
WIDTHS = st.one_of(st.integers(1, 70), st.integers(1, 20).map(lambda n: 16 * n), st.just(20011))
LAYOUTS = st.sampled_from(["NHD", "combined"])


def check(op: str, operands: list, attributes: dict, platform: str) -> list:
    """Runs a call the fastest way there is and asserts that its results are right."""
    got = running.run_any(op, operands, attributes, platform)
    running.check_against_reference(op, operands, attributes, got, platform)
    return got
