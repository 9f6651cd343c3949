"""Ranks and replicas on several hosts serve what one process does, and listen at the addresses that were chosen."""

import pytest
from vllm_hosts import hosts
from vllm_running import recorded, serving_on

MODEL = "llama"
CASES = {
    "TP 2": (2, {"tensor_parallel_size": 2}),
    "TP 4": (2, {"tensor_parallel_size": 4}),
    "DP 2": (2, {"data_parallel_size": 2}),
    "TP 2 x DP 2": (2, {"tensor_parallel_size": 2, "data_parallel_size": 2}),
    "one host, DP 2": (1, {"data_parallel_size": 2}),
}


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_tokens_are_those_of_one_process(model, tmp_path, case):
    count, options = CASES[case]
    with hosts(count) as made, serving_on(made, model(MODEL), tmp_path, **options) as servers:
        expected = [sequence["tokens"] for sequence in recorded(MODEL)]
        for _ in range(options.get("data_parallel_size", 1)):
            assert servers[0].tokens() == expected
        busy = servers[0].busy()
        assert busy == set(range(options.get("data_parallel_size", 1)))
        if made[0].namespace:
            assert [host.listening_elsewhere() for host in made] == [set()] * count
