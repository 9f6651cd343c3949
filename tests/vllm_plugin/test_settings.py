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


def test_a_setting_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    settings.check_environment()
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4GB")
    text = "VLLM_CPU_KVCACHE_SPACE: .*'4GB', expected a whole number of GiB"
    with pytest.raises(ValueError, match=text):
        settings.check_environment()


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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"linear_backend": "cutlass", "moe_backend": "triton"},
            "these have no effect: linear_backend=cutlass, moe_backend=triton; each step is an XLA program",
        ),
        (
            {"kernel_config": {"monokernel": True}, "enable_layerwise_nvtx_tracing": True},
            "these have no effect: monokernel=true, enable_layerwise_nvtx_tracing=true;",
        ),
        (
            {"gpu_memory_utilization": 0.5},
            "--gpu-memory-utilization 0.5 has no effect on a CPU: --kv-cache-memory-bytes or VLLM_CPU_KVCACHE_SPACE",
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_wish_without_effect_is_named(configured, said, options, expected):
    configured(**options)
    [warning] = said.warnings
    assert warning.startswith(f"intarsia-vllm: {expected}")


def test_an_engines_process_does_not_say_it_again(configured, said, monkeypatch):
    monkeypatch.setattr(settings.multiprocessing, "parent_process", lambda: "a server")
    configured(moe_backend="triton", gpu_memory_utilization=0.5)
    assert said.warnings == []


def test_custom_ops_are_the_users(configured, said):
    wish = ["all", "-silu_and_mul"]
    configuration = configured(compilation_config={"custom_ops": wish})
    assert configuration.compilation_config.custom_ops == wish
    assert said.warnings == []


def test_a_cpu_schedules_synchronously(configured, said):
    assert not configured(async_scheduling=True).scheduler_config.async_scheduling
    assert "a CPU runs" in said.infos[-1] and said.warnings == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"heartbeat_timeout": "5"}, "heartbeat_timeout is '5', expected a number of seconds"),
        ({"start_timeout": 1.5}, "start_timeout is 1.5, expected a number of seconds"),
        ({"start_timeout": 0}, "start_timeout is 0, expected a number of seconds, 1 or more"),
        ({"request_buckets": "8"}, "request_buckets is '8', expected positive integers in a list"),
        ({"request_buckets": [8.0]}, "request_buckets is [8.0], expected positive integers"),
        ({"token_buckets": [True]}, "token_buckets is [True], expected positive integers"),
    ],
    ids=str,
)
def test_a_setting_of_another_type_is_an_error_before_anything_is_loaded(
    configured, given, message
):
    with pytest.raises(Exception) as error:
        configured(additional_config=given)
    assert f"intarsia-vllm: additional_config: {message}" in str(error.value)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("token_bucket", "did you mean token_buckets?"),
        ("heartbeat_timout", "did you mean heartbeat_timeout?"),
        ("gc", "its keys are token_buckets, request_buckets, start_timeout, heartbeat_timeout"),
    ],
)
def test_a_key_that_the_plugin_does_not_know_is_named(configured, said, name, remedy):
    """And no error: another of vLLM's plugins may have it."""
    configured(additional_config={name: [32], "token_buckets": [64], "request_buckets": None})
    assert said.warnings == [
        f"intarsia-vllm: additional_config: {name} is no key of this plugin's; {remedy}"
    ]
