"""American spelling, in prose, comments and names alike.

python tools/spelling.py [--fix]      what is spelled the British way, one line each; --fix respells it
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = {".md", ".py", ".h", ".cc", ".c", ".cu", ".cuh", ".cmake", ".toml", ".txt", ".yml"}
# Other projects' texts, and what lists the spellings.
NOT_OURS = (
    "third_party/",
    "tests/data/",
    "tests/fuzz/corpus/",
    "tools/spelling.py",
    "tests/test_prose.py",
)
_STEMS = (
    *(
        "canonical",
        "character",
        "emphas",
        "equal",
        "factor",
        "final",
        "general",
        "initial",
        "local",
    ),
    *("material", "maxim", "memor", "minim", "normal", "optim", "organ", "parallel", "parametr"),
    *("penal", "quant", "random", "recogn", "serial", "special", "stabil", "standard", "summar"),
    *("symbol", "synchron", "token", "util", "vector", "visual"),
)
_WORDS = {
    "analyse": "analyze",
    "analysing": "analyzing",
    "artefact": "artifact",
    "behaviour": "behavior",
    "catalogue": "catalog",
    "centring": "centering",
    "centred": "centered",
    "centre": "center",
    "colour": "color",
    "favour": "favor",
    "fulfil ": "fulfill ",
    "honour": "honor",
    "labelled": "labeled",
    "labelling": "labeling",
    "learnt": "learned",
    "licence": "license",
    "modelled": "modeled",
    "modelling": "modeling",
    "neighbour": "neighbor",
    "programme ": "program ",
    "whilst": "while",
}
_WORD = re.compile("|".join(_WORDS), re.I)
_ISE = re.compile(rf"({'|'.join(_STEMS)})(is)(?=e|ing|ation|able)", re.I)


def _as(model: str, word: str) -> str:
    """The word in the model's case: lower, Title or UPPER."""
    if model.isupper():
        return word.upper()
    return word.capitalize() if model[0].isupper() else word


def american(text: str) -> str:
    """The text, respelled."""
    text = _WORD.sub(lambda match: _as(match[0], _WORDS[match[0].lower()]), text)
    return _ISE.sub(lambda match: match[1] + _as(match[2], "iz"), text)


def british(text: str) -> Iterator[tuple[int, str, str]]:
    """The words to respell: line, word, and how it is spelled."""
    if american(text) == text:
        return
    for number, line in enumerate(text.splitlines(), 1):
        for word in re.findall(r"\w+ ?", line):
            if american(word) != word:
                yield number, word.strip(), american(word).strip()


def listed(*options: str) -> set[str]:
    """The names that git knows."""
    command = ["git", "-C", str(ROOT), "ls-files", *options]
    return {*subprocess.check_output(command, text=True).splitlines()}


def files() -> list[Path]:
    """The project's texts: those that git has, and new ones in its folders."""
    new = {name for name in listed("--others", "--exclude-standard") if "/" in name}
    names = [n for n in sorted(listed() | new) if not n.startswith(NOT_OURS)]
    found = [ROOT / name for name in names if Path(name).suffix in SUFFIXES]
    return [path for path in found if path.is_file()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fix", action="store_true", help="respell them")
    args = parser.parse_args()
    wrong = 0
    for path in files():
        text = path.read_text()
        for line, word, better in british(text):
            wrong += 1
            print(f"{path.relative_to(ROOT)}:{line}: {word}, in American English {better}")
        if args.fix and american(text) != text:
            path.write_text(american(text))
    return int(wrong > 0 and not args.fix)


if __name__ == "__main__":
    sys.exit(main())
