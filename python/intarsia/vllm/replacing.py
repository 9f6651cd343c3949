"""What vLLM makes no place for, put in the place of its own."""

from typing import Any


def replace(owner: Any, name: str, ours: Any) -> Any:
    """Lets vLLM find something of ours under a name of a module's or class's; returns what was there.

    Raises:
      RuntimeError: this vLLM has no such name.
    """
    if not hasattr(owner, name):
        raise RuntimeError(f"{owner.__name__}: got no {name}, expected it as in vLLM 0.32 and 0.33")
    theirs = getattr(owner, name)
    setattr(owner, name, ours)
    return theirs
