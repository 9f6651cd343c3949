"""What is asked of vLLM and overridden is said in its log; what vLLM takes by default is not."""

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from intarsia.vllm import settings
from vllm.config import CompilationMode, CUDAGraphMode


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What goes to the log, by level, each time; vLLM's logger says it once."""
    told = SimpleNamespace(warnings=[], infos=[])
    logger = SimpleNamespace(
        warning_once=lambda text, *args: told.warnings.append(text % args),
        info_once=lambda text, *args: told.infos.append(text % args),
    )
    monkeypatch.setattr(settings, "logger", logger)
    return told


@pytest.mark.parametrize(
    "options", [{}, {"enforce_eager": True}, {"optimization_level": 2}], ids=str
)
def test_defaults_are_no_wishes(configured, said, options):
    compilation = configured(**options).compilation_config
    assert said.warnings == []
    assert compilation.mode == CompilationMode.NONE
    assert compilation.cudagraph_mode == CUDAGraphMode.NONE


@pytest.mark.parametrize(
    "options", [{}, {"optimization_level": 0}, {"compilation_config": {"mode": 3}}], ids=str
)
def test_what_was_said_once_and_filled_in_is_no_wish(configured, said, options):
    configuration = configured(**options)
    said.warnings.clear()
    settings.replace_compilation(configuration)
    assert said.warnings == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"optimization_level": 0}, ["--optimization-level 0 "]),
        ({"compilation_config": {"mode": 3}}, ["mode=VLLM_COMPILE ", "mode=NONE"]),
        ({"compilation_config": {"backend": "inductor"}}, ["backend=inductor ", "backend=eager"]),
        (
            {"compilation_config": {"cudagraph_mode": "FULL", "compile_sizes": [1]}},
            [
                "--compilation-config ",
                "compile_sizes=[1]",
                "cudagraph_mode=FULL",
                "cudagraph_mode=NONE",
            ],
        ),
        ({"cudagraph_capture_sizes": [1, 2]}, ["cudagraph_capture_sizes=[1, 2] "]),
        ({"max_cudagraph_capture_size": 64}, ["max_cudagraph_capture_size=64 "]),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_wish_that_is_overridden_is_named(configured, said, options, expected):
    compilation = configured(**options).compilation_config
    [warning] = said.warnings
    assert all(part in warning for part in ["has no effect", *expected])
    assert compilation.mode == CompilationMode.NONE
    assert compilation.cudagraph_mode == CUDAGraphMode.NONE
    assert compilation.cudagraph_capture_sizes == []
    assert compilation.custom_ops == ["all"], "our layers would be off"


def test_custom_ops_are_the_users(configured, said):
    wish = ["all", "-silu_and_mul"]
    configuration = configured(compilation_config={"custom_ops": wish})
    assert configuration.compilation_config.custom_ops == wish
    assert said.warnings == []


def test_a_cpu_schedules_synchronously(configured, said):
    assert not configured(async_scheduling=True).scheduler_config.async_scheduling
    assert "a CPU runs" in said.infos[-1] and said.warnings == []
