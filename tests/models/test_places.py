"""Which of several processes this is, and what each has to do: decided, or refused, before any of them starts."""

import pytest
from intarsia import cli
from intarsia.cli import _processes
from intarsia.processes import Limits, Place, detect_place, join


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("--num-processes 2", "missing: --coordinator-address, --process-id"),
        ("--data-parallel 2", "--data-parallel is 2, expected 1: there is one process"),
        (
            "--coordinator 10.0.0.1 --num-processes 2 --process-id 0",
            "'10.0.0.1', expected HOST:PORT",
        ),
        ("--coordinator h:1 --num-processes 2 --process-id 2", "the process is 2, expected 0 to 1"),
        ("--coordinator h:1 --num-processes 0 --process-id 0", "is 0, expected 1 or more"),
        (
            "--coordinator h:1 --num-processes 3 --process-id 0 --data-parallel 2",
            "expected a divisor of 3",
        ),
        (
            "--coordinator h:1 --num-processes 2 --process-id 0 --stall-timeout 0",
            "stall limit is 0 s",
        ),
        ("--distributed --process-id 0", "--distributed finds --process-id by itself"),
        ("--distributed", "JAX finds no Slurm, Open MPI or Kubernetes job"),
    ],
)
def test_flags_that_do_not_fit(write_gguf, tiny_weights, capsys, flags, text) -> None:
    model = str(write_gguf(tiny_weights))
    assert cli.main(["generate", "--model", model, *flags.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("intarsia generate: ") and text in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        (
            "SLURM_JOB_ID=7 SLURM_STEP_NODELIST=node[3-4] SLURM_NTASKS=2 SLURM_PROCID=1 SLURM_LOCALID=0",
            Place("node3:61447", 2, 1, [0]),
        ),
        (
            "OMPI_MCA_orte_hnp_uri=1531576320.0;tcp://10.96.0.1,10.148.0.1:34911 OMPI_COMM_WORLD_SIZE=2 "
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=0",
            Place("10.96.0.1:62624", 2, 1, [0]),
        ),
    ],
)
def test_places_of_launchers(monkeypatch: pytest.MonkeyPatch, variables, place) -> None:
    for row in variables.split():
        monkeypatch.setenv(*row.split("="))
    assert detect_place() == place
    assert Place("[::1]:5", 1, 0).address == ("::1", 5)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_nothing_meets_or_listens_at_all_interfaces(host: str) -> None:
    with pytest.raises(ValueError, match=r"the coordinator is .*, which is all interfaces"):
        Place(f"{host}:29400", 2, 0)
    with pytest.raises(ValueError, match=r"the address to listen at is .*, which is all interf"):
        join(Place("127.0.0.1:29400", 2, 0), listen=host)


def test_limits() -> None:
    with pytest.raises(ValueError, match="the heartbeat limit is 0 s, expected 1 or more"):
        Limits(heartbeat=0)


@pytest.mark.parametrize("count", range(2, 9))
def test_prompts_are_divided_without_rest(count) -> None:
    for replicas in range(1, count + 1):
        shares = [_processes.Share(None, replicas, i).of(range(count)) for i in range(replicas)]
        assert [x for share in shares for x in share] == [*range(count)]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    with pytest.raises(
        ValueError, match=f"--data-parallel is {count + 1}, expected at most {count}"
    ):
        _processes.Share(None, count + 1, 0).of(range(count))
