"""The programs in the documentation run."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys

import intarsia.jax as ij
import running
import support
from intarsia import _native

# The page that asks for eight devices comes first, since JAX counts them once.
PAGES = [
    "docs/jax.md",
    "README.md",
    "docs/torch.md",
    "docs/bridge.md",
    "docs/vllm_ops.md",
    "docs/concepts.md",
    "docs/profiling.md",
    "docs/start/jax.md",
    "docs/start/torch.md",
    "docs/migrate/vllm.md",
    "docs/migrate/flashinfer.md",
    "docs/migrate/flash_attn.md",
    "docs/migrate/pallas.md",
    "docs/migrate/ragged_dot.md",
]
# Whose programs run elsewhere.
OTHERS = {
    "docs/troubleshooting.md": "tests/test_troubleshooting.py",
    "docs/start/torch_xla.md": "tests/torch_frontend/xla/test_xla_docs.py",
}


# Runs each page, given as JSON {name: source}, in a module of its own; the last line on stderr is of the page that failed.
RUNNER = """
import json, sys
for name, source in json.load(sys.stdin).items():
    exec(compile(source, name, "exec"), {"__name__": "__main__"})
    print("ran", name)
"""


def blocks(page: str) -> str:
    found = re.findall(r"^```python\n(.*?)^```", (support.ROOT / page).read_text(), re.S | re.M)
    assert found, page
    return "\n".join(found)


def test_every_page_with_python_is_run() -> None:
    """Python that is not a program, such as a signature or half a call, is marked `py`."""
    pages = {
        path.relative_to(support.ROOT).as_posix() for path in support.ROOT.glob("docs/**/*.md")
    }
    pages = {page for page in pages if not page.startswith(("docs/ops/", "docs/adr/"))}
    with_python = {page for page in pages if "\n```python\n" in (support.ROOT / page).read_text()}
    with_python -= {"docs/scaling.md"}  # several processes take part in its program
    assert with_python == {page for page in [*PAGES, *OTHERS] if page.startswith("docs/")}
    for page, test in OTHERS.items():
        assert page.removeprefix("docs/").split("/")[-1] in (support.ROOT / test).read_text(), page


def test_their_python_runs() -> None:
    """All blocks of a page, one after the other; one process imports for all pages."""
    sources = {page: blocks(page) for page in PAGES}
    if importlib.util.find_spec("torch") is None:
        sources = {page: text for page, text in sources.items() if "import torch\n" not in text}
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(sources),
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": running.flags_of_jax()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert [f"ran {page}" for page in sources] == re.findall(r"^ran .*", done.stdout, re.M)


def test_whoever_passes_indices_reads_how_to_check_them() -> None:
    texts = {
        name: (support.ROOT / name).read_text()
        for name in ("README.md", "docs/jax.md", "docs/ops.md")
    }
    checked = [
        op.name
        for op in _native.main_library().ops.values()
        if any(row["indexes"] for row in op.operands)
    ]
    assert "rotary_embedding" in checked and "rms_norm" not in checked
    for op in checked:
        texts |= {f"{home.__name__}.{op}": getattr(home, op).__doc__ for home in (ij, ij.wire)}
    texts["intarsia.jax.multimodal_rotary_embedding"] = ij.multimodal_rotary_embedding.__doc__
    assert [name for name, text in texts.items() if "INTARSIA_CHECK=1" not in text] == []


def test_the_copy_of_an_op_is_named_throughout(tmp_path) -> None:
    """CONTRIBUTING's first commands leave no name of the op that was copied, and no line without a statement."""
    ops = tmp_path / "src" / "ops"
    shutil.copytree(support.ROOT / "src" / "ops" / "simple_add", ops / "simple_add")
    text = (support.ROOT / "CONTRIBUTING.md").read_text()
    commands = re.search(r"```sh\n(.*?)```", text, re.S)[1]
    subprocess.run(["sh", "-e", "-c", commands], cwd=tmp_path, check=True)
    copied = sorted((ops / "my_op").iterdir())
    assert [path.name for path in copied] == [
        *("my_op.h", "my_op.py", "my_op_cpu.cc", "my_op_cuda.cu")
    ]
    for path in copied:
        text = path.read_text()
        assert not re.search("simple_?add|AlsoTarget", text, re.I), path
        assert not re.search(r"^\s*;$", text, re.M), path
