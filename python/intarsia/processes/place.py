"""Which of how many processes this is, where they meet, and how long they wait for each other."""

import dataclasses
from collections.abc import Mapping

from intarsia import _environment
from intarsia.processes import addresses


@dataclasses.dataclass(frozen=True)
class Limits:
    """How long processes wait for each other, in seconds.

    Attributes:
        start: For all of them to have connected to the coordinator.
        heartbeat: For a sign of life, before a process counts as dead.
        stall: For this process to get any further.
    """

    start: int = 300
    heartbeat: int = 30
    stall: int = 600

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value < 1:
                raise ValueError(f"the {name} limit is {value} s, expected 1 or more")


@dataclasses.dataclass(frozen=True)
class Place:
    """Which of how many processes this is, and where they meet.

    Attributes:
        coordinator: HOST:PORT of process 0.
        count: Processes.
        index: This one's.
        devices: Those of the host that this process uses, by index; all if None.
        run: What all processes have in common, by name, such as the flags of their command. Process 0 turns away
            others: they are of another run.
    """

    coordinator: str
    count: int
    index: int
    devices: list[int] | None = None
    run: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        addresses.refuse_all_interfaces("the coordinator", self.address[0])
        if self.count < 1:
            raise ValueError(f"the number of processes is {self.count}, expected 1 or more")
        if not 0 <= self.index < self.count:
            raise ValueError(f"the process is {self.index}, expected 0 to {self.count - 1}")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return addresses.parse("the coordinator", self.coordinator)


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The names of what two runs do not have alike."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def detect_place(method: str | None = None, timeout: int = 300) -> Place:
    """What JAX reads in the environment of Slurm, Open MPI or Kubernetes.

    Args:
        method: One of JAX's `cluster_detection_method`; if None, the first that applies.
        timeout: Seconds that JAX may wait for the cluster's answers.

    Raises:
        ValueError: There is no such environment.
    """
    from jax._src.clusters import ClusterEnv

    given = _environment.jax_coordinator()
    found = ClusterEnv.auto_detect_unset_distributed_params(
        given, None, None, None, method, timeout
    )
    coordinator, count, index, devices = found
    if coordinator is None or count is None or index is None:
        raise ValueError(
            "JAX finds no Slurm, Open MPI or Kubernetes job in the environment; name the coordinator, the "
            "number of processes and this process's number"
        )
    return Place(coordinator, count, index, list(devices) if devices is not None else None)
