"""This process and the others, as the coordinator's store has them."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

PREFIX = "intarsia/"  # of keys and barriers


@dataclasses.dataclass(frozen=True)
class Peers:
    """All processes of a run.

    Attributes:
        client: Of JAX's coordinator, in this process.
        index: This one's number.
        names: What lines call each.
    """

    client: Any
    index: int
    names: Sequence[str]

    @property
    def everyone(self) -> list[int]:
        """Their numbers."""
        return list(range(len(self.names)))

    @property
    def name(self) -> str:
        """This one's, as lines have it."""
        return f"{self.names[self.index]} of {len(self.names)}"

    def called(self, indices: Iterable[int]) -> str:
        return ", ".join(self.names[index] for index in indices)

    def live(self) -> list[int]:
        """Those whose heartbeats the coordinator has not missed.

        Raises:
          jax.errors.JaxRuntimeError: The coordinator does not answer.
        """
        return sorted(self.client.get_live_nodes(self.everyone))

    def put(self, what: str, text: str) -> None:
        """Tells the others this process's value of something, or a new one."""
        self.client.key_value_set(f"{PREFIX}{what}/{self.index}", text, allow_overwrite=True)

    def values(self, what: str) -> dict[int, str]:
        """The values that processes have told, by process.

        Raises:
          jax.errors.JaxRuntimeError: The coordinator does not answer.
        """
        found = self.client.key_value_dir_get(f"{PREFIX}{what}/")
        return {int(key.rsplit("/", 1)[1]): text for key, text in found}
