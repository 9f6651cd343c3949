"""The models of the tests, made once, and configurations of one."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

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


@pytest.fixture
def configured(
    model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Makes vLLM's configuration of a tiny Llama, with changes to its config.json."""

    def configure(changes: Mapping[str, Any] | None = None, **options: Any) -> Any:
        from vllm.engine.arg_utils import EngineArgs
        from vllm_running import SIZES, inspect_here

        inspect_here(monkeypatch)

        llama = model("llama")
        config = json.loads((llama / "config.json").read_text()) | dict(changes or {})
        (tmp_path / "config.json").write_text(json.dumps(config))
        for file in llama.iterdir():
            if file.name != "config.json":
                (tmp_path / file.name).symlink_to(file)
        return EngineArgs(
            str(tmp_path), **SIZES | {"dtype": "float32"} | options
        ).create_engine_config()

    return configure
