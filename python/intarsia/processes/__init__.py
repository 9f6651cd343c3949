"""Several processes that run one model, one a host or a GPU.

from intarsia.processes import Limits, Place, join

with join(Place("10.0.0.1:1234", count=2, index=0), Limits(start=60)):
    ...  # jax.devices() has those of both
"""

from intarsia.processes.place import Limits, Place, detect_place
from intarsia.processes.runtime import Processes, join, print_line

__all__ = ["Limits", "Place", "Processes", "detect_place", "join", "print_line"]
