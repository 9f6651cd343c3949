"""Checks what a program can see of the prose: sentences, spelling, line widths, links, and names that do not exist.

    python tools/prose.py                      what is wrong, one line each; exit status 1 if something is
    python tools/prose.py --words [REVISION]   words a sentence of each page, as it is or as it was

Sentences are those of paragraphs and lists in README, CONTRIBUTING, CHANGELOG, docs/ and plugins/, without tables, headings and code, and
those of public docstrings (`prose_docstrings`). The 90th percentile of a page, or of a module's docstrings, may have 26 words, and no
sentence more than 40: what American manuals of such libraries have is 17 to 26.
"""

import argparse
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

import prose_docstrings
import prose_names
import spelling

ROOT = Path(__file__).resolve().parents[1]
P90, LONGEST, COMMAS = 26, 40, 12
WIDTH = 140
# Pages, or folders of pages, whose sentences are not measured, and why. Links, names and spelling are checked there too.
NOT_MEASURED = {
    "docs/notebook/": "figures with their commands, one after the other",
    "docs/support.md": "a table, written by tools/support.py",
}


# Folders of short pages, whose sentences are counted together.
_POOLED = ("docs/adr/", "docs/ops/")
# Where a sentence ends: the next one may begin with code, or with a name that is written small.
_NAMES = "vLLM|torch|torchax|torch_xla|jax|jaxlib|nox|pip|mkdocs|dynamo"
_END = re.compile(rf"(?<=[.!?])[)\"'*]* +(?=[\"'(*\[]*(?:[A-Z0-9`]|(?:{_NAMES})\b))")


# What --words reads of a revision.
_READ = re.compile(r"\w+\.md|(docs|plugins)/.*\.md|python/intarsia/.*\.py")


def _is_measured(page: str) -> bool:
    return not page.startswith(tuple(NOT_MEASURED))


class Sentence(NamedTuple):
    """A sentence and the line on which its paragraph begins."""

    line: int
    text: str

    @property
    def words(self) -> int:
        return sum(bool(re.search(r"\w", word)) for word in self.text.split())


def without_code(text: str) -> str:
    """The text with fenced code, comments and front matter blank, line by line as it was."""
    blank = lambda match: "\n" * match[0].count("\n")  # noqa: E731
    text = re.sub(r"\A---\n.*?^---\n", blank, text, flags=re.S | re.M)
    text = re.sub(r"^( *)(```+)[^\n]*\n.*?^\1\2[ \t]*$", blank, text, flags=re.S | re.M)
    return re.sub(r"<!--.*?-->|</?\w+[^>\n]*>", blank, text, flags=re.S)


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs and items of lists, with the line on which each begins. No tables, no headings."""
    begin, lines = 0, list[str]()
    for number, line in enumerate([*without_code(text).splitlines(), ""], 1):
        stripped = line.strip()
        item = re.match(r"(?:[-*]|\d+\.) ", stripped)
        ends = not stripped or item or stripped.startswith(("|", "#"))
        if ends and lines:
            yield begin, " ".join(lines)
            lines = []
        if stripped and not stripped.startswith(("|", "#")):
            begin = begin if lines else number
            lines.append(stripped[item.end() :] if item else stripped)


def sentences(text: str) -> list[Sentence]:
    """The sentences of a page; code between backticks counts as a word."""
    found = []
    for line, paragraph in _paragraphs(text):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
        plain = re.sub(r"`+[^`]*`+", "`code`", plain)
        plain = re.sub(r"\b(e\.g|i\.e|vs|cf|etc)\.", r"\1", plain)
        for part in _END.split(plain):
            if re.search(r"\w", part):
                found.append(Sentence(line, part))
    return found


def percentile(values: list[int], share: float) -> float:
    """The least value that so large a share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def pages() -> list[str]:
    known = spelling.listed("*.md")
    found = [name for name in known if "/" not in name and (ROOT / name).is_file()]
    for folder in ("docs", "plugins"):
        found += [path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.md")]
    return sorted(found)


def _lengths(page: str, text: str) -> Iterator[str]:
    if not _is_measured(page):
        return
    found = sentences(text)
    yield from _long(page, found)
    if not page.startswith(_POOLED):
        yield from _often_long(page, found)


def _long(name: str, found: list[Sentence]) -> Iterator[str]:
    for s in found:
        if s.words > LONGEST:
            yield f"{name}:{s.line}: {s.words} words, at most {LONGEST}: {s.text[:70]}..."
        elif s.text.count(",") > COMMAS:
            yield f"{name}:{s.line}: {s.text.count(',')} commas, at most {COMMAS}: {s.text[:70]}..."


def _often_long(name: str, found: list[Sentence]) -> Iterator[str]:
    """Of a page: a few sentences tell nothing."""
    if len(found) >= 10 and (p90 := percentile([s.words for s in found], 0.9)) > P90:
        yield f"{name}: a tenth of the sentences have {p90} words or more, expected at most {P90}"


def _widths(page: str, text: str) -> Iterator[str]:
    generated = "Written by tools/" in text[:400]
    for number, line in enumerate(without_code(text).splitlines(), 1):
        is_prose = not line.lstrip().startswith("|") and not generated and _is_measured(page)
        if len(line) > WIDTH and is_prose:
            yield f"{page}:{number}: {len(line)} columns, at most {WIDTH}"


def docstring_sentences(source: str, module: str) -> list[Sentence]:
    """The sentences of a module's public docstrings."""
    return [
        Sentence(first + s.line - 1, s.text)
        for first, text in prose_docstrings.public(source, module)
        for s in sentences(prose_docstrings.as_page(text))
    ]


def _docstrings() -> Iterator[str]:
    for path in prose_docstrings.files(ROOT):
        name = path.relative_to(ROOT).as_posix()
        found = docstring_sentences(path.read_text(), path.name)
        yield from _long(name, found)
        yield from _often_long(name, found)


def problems() -> list[str]:
    """Everything that is wrong, as lines that name page and line."""
    names = prose_names.Names(ROOT)
    found: list[str] = []
    for page in pages():
        text = (ROOT / page).read_text()
        for check in (_lengths, _widths, names.dead_links, names.unknown):
            found += check(page, text)
    for folder in _POOLED:
        texts = [(ROOT / page).read_text() for page in pages() if page.startswith(folder)]
        p90 = percentile([s.words for text in texts for s in sentences(text)], 0.9)
        if p90 > P90:
            found.append(f"{folder}: a tenth of the sentences have {p90} words or more")
    found += _docstrings()
    for path in spelling.files():
        name = path.relative_to(ROOT)
        for line, word, better in spelling.british(path.read_text()):
            found.append(
                f"{name}:{line}: {word}, in American English {better}: tools/spelling.py --fix"
            )
    return found


def _read(revision: str | None) -> dict[str, str]:
    if revision is None:
        modules = [path.relative_to(ROOT).as_posix() for path in prose_docstrings.files(ROOT)]
        return {name: (ROOT / name).read_text() for name in [*pages(), *modules]}
    git = ["git", "-C", str(ROOT)]
    names = subprocess.check_output([*git, "ls-tree", "-r", "--name-only", revision], text=True)
    wanted = [n for n in names.splitlines() if re.fullmatch(_READ, n)]
    return {
        n: subprocess.check_output([*git, "show", f"{revision}:{n}"], text=True) for n in wanted
    }


def words(revision: str | None) -> None:
    """Prints words and commas a sentence: the median, the 90th percentile and the most."""
    every: list[Sentence] = []
    of_modules: list[Sentence] = []
    print(f"{'page':44} sentences  median  p90  most  commas p90")
    for page, text in _read(revision).items():
        if page.endswith(".py"):
            of_modules += docstring_sentences(text, Path(page).name)
        elif _is_measured(page) and (found := sentences(text)):
            every += found
            _row(page, found)
    _row("all of these", every)
    _row("public docstrings", of_modules)


def _row(name: str, found: list[Sentence]) -> None:
    counts = [s.words for s in found]
    commas = percentile([s.text.count(",") for s in found], 0.9)
    print(
        f"{name:44} {len(found):9} {statistics.median(counts):7.0f} {percentile(counts, 0.9):4} "
        f"{max(counts):5} {commas:11}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--words", nargs="?", const="", metavar="REVISION")
    args = parser.parse_args()
    if args.words is not None:
        words(args.words or None)
        return 0
    found = problems()
    print("\n".join(found), end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
