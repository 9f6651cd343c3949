"""The models of the tests, made once."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import vllm_models


@pytest.fixture(scope="session", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    import vllm_running

    # Compiled programs are kept there, for all engines of a session.
    root = {"VLLM_CACHE_ROOT": str(tmp_path_factory.mktemp("cache"))}
    os.environ.update(vllm_running.ENVIRONMENT | root)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Gives the directory of one of `vllm_models.MODELS`."""
    import shutil

    root = tmp_path_factory.mktemp("models")
    yield lambda name: vllm_models.make(name, root)
    shutil.rmtree(root)  # pytest would keep it for three runs
