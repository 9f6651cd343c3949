"""`examples/cpp_pjrt_host`: a host without Python says the tokens that the engine says, with its caches in place."""

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import pytest
import support
from intarsia.models import Engine, SamplingParams, Tokenizer, find_model
from test_foreign import find_cmake

EXAMPLE = support.ROOT / "examples" / "cpp_pjrt_host"
HEADERS = support.ROOT / ".venv" / "pjrt"
TOKENS = 64


def run(*command: object) -> subprocess.CompletedProcess:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


# Of each of JAX's platforms: a package with a plugin, and the plugin's file.
PLUGINS = {
    "cpu": ("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so"),
    "cuda": ("jax_plugins.xla_cuda13", "xla_cuda_plugin.so"),
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not HEADERS.exists():
        pytest.skip("none of XLA's headers (make setup-dev)")
    folder = tmp_path_factory.mktemp("host")
    found = f"-Dintarsia_DIR={support.ROOT / 'cmake'}"
    run(find_cmake(), "-S", EXAMPLE, "-B", folder, found, f"-DPJRT_INCLUDE={HEADERS}")
    run(find_cmake(), "--build", folder)
    return folder / "host"


@pytest.fixture
def platform() -> str:
    return "cpu"


@pytest.fixture
def host(program: Path, platform: str):
    """The program with a platform's plugin: a function of the folder with the model, to its output."""
    package, library = PLUGINS[platform]
    plugin = importlib.util.find_spec(package)
    if plugin is None:
        pytest.skip(f"no {package}")
    path = Path(plugin.submodule_search_locations[0], library)
    return lambda model: run(program, path, model)


@pytest.mark.parametrize("platform", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_it_says_what_the_engine_says(host, platform: str, tiny, tmp_path: Path) -> None:
    config, params = tiny
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    length = len(prompt) + TOKENS
    sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS)
    with jax.default_device(jax.devices(platform)[0]):
        export = runpy.run_path(str(EXAMPLE / "export_model.py"))
        operands = export["arrays_of"](config, params, prompt, TOKENS)
        export["write"](tmp_path, config, operands, TOKENS, platform)
        engine = Engine(config, params, max_num_seqs=1, max_model_len=length)
        [completion] = engine.generate([prompt], sampling)
    done = host(tmp_path)
    assert list(map(int, done.stdout.split())) == completion.tokens
    said = done.stderr.splitlines()
    if platform == "cuda":
        said = said[-1:]  # where others have the GPU's memory, XLA says that it begins with less
    assert said == [f"{2 * config.layers} caches, 0 of them moved"]


def test_it_says_what_stands_in_the_way(host, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"host\.txt: cannot be read"):
        host(tmp_path)


@pytest.mark.full
def test_it_says_what_the_command_says(host, tmp_path: Path) -> None:
    prompt = "The loom was invented in"
    more = ("--prompt", prompt, "--max-tokens", TOKENS)
    run(sys.executable, EXAMPLE / "export_model.py", "smollm2", tmp_path, *more)
    said = [*map(int, host(tmp_path).stdout.split())]
    assert len(said) == TOKENS
    command = Path(sys.executable).parent / "intarsia"
    text = run(command, "generate", "--model", "smollm2", "--no-chat-template", *more).stdout
    assert Tokenizer.from_path(find_model("smollm2")).decode(said).strip() in text
