"""Which platform vLLM gets, and what it asks of one."""

import importlib.metadata
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import numpy as np
import pytest
import support

pytest.importorskip("vllm")

import intarsia
import torch
import vllm
from intarsia import _environment
from intarsia.vllm import compat, platforms, plugin
from vllm.platforms import current_platform


def test_the_second_distribution_is_of_this_version() -> None:
    """Entry points alone: its version and the one it asks for are the package's."""
    path = support.ROOT / "plugins" / "vllm" / "pyproject.toml"
    project = tomllib.loads(path.read_text())["project"]
    assert project["version"] == intarsia.__version__
    assert f"intarsia=={intarsia.__version__}" in project["dependencies"]
    assert "vllm>=0.32,<0.34" in project["dependencies"]
    assert compat.VLLM_VERSIONS == ("0.32", "0.33")


def test_vllm_takes_our_platform() -> None:
    importlib.metadata.version("intarsia-vllm")  # or this environment is not the plugin's
    assert isinstance(current_platform, platforms.XlaPlatform)


def test_no_compiled_op_of_vllm_is_called_for_penalties() -> None:
    """It is taken for any tensor on a GPU, and none is loaded."""
    import intarsia.vllm.worker  # noqa: F401
    from vllm import _custom_ops

    ours = _custom_ops.apply_repetition_penalties
    assert ours is _custom_ops.apply_repetition_penalties_torch


def test_the_package_alone_is_no_plugin() -> None:
    """intarsia beside a vLLM changes nothing there: the entry points are intarsia-vllm's."""
    groups = {entry.group for entry in importlib.metadata.distribution("intarsia").entry_points}
    assert "console_scripts" in groups
    assert not any(group.startswith("vllm.") for group in groups)


def test_without_plugins_vllm_is_as_it_was() -> None:
    """In a process of its own: the platform is chosen once."""
    code = (
        "import sys; from vllm.platforms import current_platform as p; import vllm.ir.ops as o;"
        "from vllm.plugins import load_general_plugins; load_general_plugins();"
        "print('intarsia' in type(p).__module__, 'intarsia' in o.rms_norm.impls, 'intarsia' in sys.modules)"
    )
    environment = {"VLLM_PLUGINS": "", "PATH": "", "HOME": "/nonexistent"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["False", "False", "False"]


def test_kernels_that_are_replaced_are_not_built() -> None:
    """Importing humming starts two processes that build or load its kernels, in each process of vLLM's."""
    pytest.importorskip("humming")
    code = """
import subprocess
from vllm.platforms import current_platform

class Popen(subprocess.Popen):
    def __init__(self, command, *args, **given):
        print("started" if "import humming" in str(command) else "")
        super().__init__(command, *args, **given)

current_platform.device_type
subprocess.Popen = Popen
import humming
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "started" not in run.stdout


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "1.0.0"])
def test_another_vllm_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", version)
    with pytest.raises(ImportError, match=rf"vLLM {version} is installed, expected 0.32.\* or"):
        compat.check_vllm_version()


def test_jax_platforms_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_has_nvidia_gpu", lambda: True)
    cpu, cuda = (
        f"intarsia.vllm.{x}" for x in ("platforms.XlaCpuPlatform", "cuda_platform.XlaCudaPlatform")
    )
    for value, expected in {"cpu": cpu, "cuda": cuda, "cuda,cpu": cuda, "": cuda}.items():
        monkeypatch.setenv("JAX_PLATFORMS", value)
        assert plugin.platform() == expected


@pytest.mark.parametrize(
    ("plugins", "found"),
    [(None, False), ([], False), (["xla_cuda12"], True), (["other", "xla_cuda13"], True)],
)
def test_a_gpu_without_jaxs_plugin_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plugins: list[str] | None, found: bool
) -> None:
    """None: no plugin of any kind is installed, and so no `jax_plugins`."""
    if plugins is None:
        monkeypatch.setitem(sys.modules, "jax_plugins", None)
    else:
        monkeypatch.delitem(sys.modules, "jax_plugins", raising=False)
        monkeypatch.syspath_prepend(tmp_path)
        for package in ("", *plugins):
            folder = tmp_path / "jax_plugins" / package
            folder.mkdir()
            (folder / "__init__.py").touch()
    monkeypatch.setattr(_environment, "share_gpu_memory", lambda: None)  # of this process
    from intarsia.vllm.cuda_platform import XlaCudaPlatform

    checked = []
    monkeypatch.setattr(
        platforms.XlaPlatform,
        "check_and_update_config",
        classmethod(lambda _, x: checked.append(x)),
    )
    if found:
        XlaCudaPlatform.check_and_update_config("config")
    else:
        with pytest.raises(RuntimeError, match=r"JAX has no plugin for it: install jax\[cuda13\]"):
            XlaCudaPlatform.check_and_update_config("config")
    assert checked == ["config"] * found


def test_torchax_leaves_the_accelerator_alone() -> None:
    compat.import_torchax()
    assert torch._C._get_privateuse1_backend_name() == "privateuseone"
    assert not hasattr(torch, "jax")


def test_the_kernel_is_replaced_beside_modules_that_do_not_bear_to_be_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.v1.worker import block_table

    module = types.ModuleType("hostile")
    module.library = type("Library", (), {"__dict__": property(lambda self: object())})()
    monkeypatch.setitem(sys.modules, "hostile", module)
    kernel = block_table.ComputeSlotMappingKernel.kernel
    monkeypatch.setattr(block_table.ComputeSlotMappingKernel, "kernel", staticmethod(kernel))
    platforms.XlaCpuPlatform.register_triton_kernel_overrides()
    assert block_table.ComputeSlotMappingKernel.kernel.func is platforms.compute_slot_mapping


def test_slot_mapping() -> None:
    draw = np.random.default_rng(0)
    lengths, page = [1, 5, 3], 4
    starts = np.concatenate([[0], np.cumsum(lengths)])
    tokens = starts[-1]
    positions = np.concatenate([np.arange(n) + draw.integers(0, 9) for n in lengths])
    table = draw.permutation(30).reshape(3, 10)
    slots = torch.full((16,), 777)
    platforms.compute_slot_mapping(
        tokens,
        16,
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(positions),
        torch.tensor(table, dtype=torch.int32),
        10,
        slots,
        page,
    )
    requests = np.repeat(np.arange(3), lengths)
    expected = table[requests, positions // page] * page + positions % page
    np.testing.assert_array_equal(slots, np.concatenate([expected, [-1] * (16 - tokens)]))
