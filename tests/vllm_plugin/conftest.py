"""The models of the tests, made once."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import vllm_models


@pytest.fixture(scope="session")
def _environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What every process of vLLM's gets: the CPU, no network, and one place for compiled programs."""
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
        "VLLM_CACHE_ROOT": str(tmp_path_factory.mktemp("cache")),
        "VLLM_NO_USAGE_STATS": "1",
    }


@pytest.fixture(scope="session")
def model(
    _environment: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Path]]:
    """Gives the directory of one of `vllm_models.MODELS`."""
    root = tmp_path_factory.mktemp("models")
    yield lambda name: vllm_models.make(name, root)
    shutil.rmtree(root)  # pytest would keep it for three runs
