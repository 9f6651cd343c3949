"""What pages name and link to: files, headings, targets of make, commands, functions, variables of the environment."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

_FOLDERS = "bench|cmake|docs|examples|include|plugins|python|src|tests|third_party|tools"
_PATH = re.compile(rf"(?<![\w/.-])(?:{_FOLDERS})/[\w./*<>{{}},-]*[\w*>}}/]")
_NAME = re.compile(r"(?<![\w./-])intarsia(?:\.[A-Za-z_]\w*)+(?![\w/])")
# Folder of pages that name files of other projects by paths like ours.
_OF_OTHERS = "docs/notebook/"
# What make writes, or a reader does: not in a checkout.
_MADE = ("build/", "python/intarsia/lib", "docs/my_", "src/ops/my_op", "src/my_")
_SOURCES = ("*.py", "*.cc", "*.h", "*.cu", "*.cuh", "*.cmake", "CMakeLists.txt", "Makefile")


def slug(heading: str) -> str:
    """The anchor of a heading, as code hosts and the site make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"[^\w\- ]", "", text.strip().lower())
    return text.replace(" ", "-")


def _code(text: str) -> Iterator[tuple[int, str]]:
    """Code between backticks, and the lines of blocks for a shell, each with its line."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.match(r" *(```+)(\w*)", line):
            fence = None if fence is not None else found[2]
        elif fence is None:
            for inline in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", line):
                yield number, inline
        elif fence in ("sh", "bash", "shell"):
            yield number, line.partition(" #")[0]


class Names:
    """The names that there are."""

    def __init__(self, root: Path) -> None:
        self._root = root
        makefile = (root / "Makefile").read_text()
        self._targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.M))
        self._targets |= {f"test-sanitize-{name}" for name in ("address", "thread")}
        cli = "".join(path.read_text() for path in (root / "python/intarsia/cli").glob("*.py"))
        self._flags = set(re.findall(r'"(--[a-z][\w-]*)"', cli))
        listed = re.search(r"commands?: ([a-z, ]+)\.", cli) or re.search(
            r"`intarsia` command: ([a-z, ]+)\.", cli
        )
        self._commands = set(listed[1].split(", ")) if listed else set()

    # ------------------------------------------------------------------------ links

    @functools.cache  # noqa: B019
    def _anchors(self, path: Path) -> set[str]:
        text = re.sub(r"^( *)(```+).*?^\1\2", "", path.read_text(), flags=re.S | re.M)
        found = {slug(heading) for heading in re.findall(r"^#+ +(.*?)\s*$", text, re.M)}
        return found | set(re.findall(r'<a id="([^"]+)"', text))

    def dead_links(self, page: str, text: str) -> Iterator[str]:
        """Links to files and headings that are not there."""
        in_code = False
        for number, line in enumerate(text.splitlines(), 1):
            in_code ^= bool(re.match(r" *```", line))
            if in_code:
                continue
            for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "`", line)):
                if re.match(r"[a-z]+:", target):
                    continue
                name, _, anchor = target.partition("#")
                path = (self._root / page).parent / name if name else self._root / page
                if not path.exists():
                    yield f"{page}:{number}: links to {name}, which does not exist"
                elif anchor and path.suffix == ".md" and anchor not in self._anchors(path):
                    yield f"{page}:{number}: links to {target}, but {path.name} has no such heading"

    # ------------------------------------------------------------------------ names

    @functools.cached_property
    def _sources(self) -> str:
        """All sources in one text, for words that need only occur."""
        folders = ("src", "python", "cmake", "tests", "include", "bench", "tools")
        found = [self._root / "Makefile", self._root / "CMakeLists.txt"]
        for folder in folders:
            for pattern in _SOURCES:
                found += (self._root / folder).rglob(pattern)
        # The check's own test has names that are not there.
        found = [path for path in found if path.name != "test_prose.py"]
        return "\n".join(path.read_text(errors="replace") for path in found)

    @functools.cache  # noqa: B019
    def _defined(self, module: Path) -> set[str] | None:
        """The names of a module; None if it makes them as they are asked for."""
        names = set()
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names |= {(a.asname or a.name).split(".")[0] for a in node.names}
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
        return None if "__getattr__" in names else names

    def _is_python(self, dotted: str) -> bool:
        """Whether a module, or a name in it, is there. What follows a name is its own matter."""
        place = self._root / "python" / "intarsia"
        for part in dotted.split(".")[1:]:
            if place.is_dir() and (place / part).is_dir():
                place /= part
                continue
            if place.is_dir() and (place / f"{part}.py").is_file():
                place /= f"{part}.py"
                continue
            module = place / "__init__.py" if place.is_dir() else place
            defined = self._defined(module)
            return defined is None or part in defined
        return True

    def _is_target_of_xla(self, dotted: str) -> bool:
        """Whether it is the name of a custom call: intarsia.rms_norm."""
        name = dotted.removeprefix("intarsia.")
        return (self._root / "src" / "ops" / name).is_dir() or f'"{dotted}' in self._sources

    def _exists(self, path: str) -> bool:
        plain = re.sub(r"<[^>]*>", "*", path.rstrip("/"))
        if plain.startswith(_MADE):
            return True
        brace = re.search(r"\{([^}]*)\}", plain)
        for one in brace[1].split(",") if brace else [""]:
            pattern = plain.replace(brace[0], one) if brace else plain
            if not any(self._root.glob(pattern)) and not any(self._root.glob(pattern + ".*")):
                return False
        return True

    def unknown(self, page: str, text: str) -> Iterator[str]:
        """Names in code that mean nothing here."""
        for number, code in _code(text):
            where = f"{page}:{number}:"
            for target in re.findall(r"(?:^|[\s;&|(])make ((?:[a-z][a-z-]*\b ?)+)", code):
                for name in target.split():
                    if name not in self._targets:
                        yield f"{where} make {name}: there is no such target"
            if found := re.match(r"(?:\S*/)?intarsia ([a-z]+)\b", code):
                if found[1] not in self._commands:
                    yield f"{where} intarsia {found[1]}: there is no such command"
                for flag in re.findall(r"(?<=\s)--[a-z][\w-]*", code):
                    if flag not in self._flags:
                        yield f"{where} intarsia {found[1]} has no {flag}"
            for dotted in _NAME.findall(code):
                if not self._is_python(dotted) and not self._is_target_of_xla(dotted):
                    yield f"{where} {dotted} does not exist"
            for path in _PATH.findall(code):
                if not self._exists(path) and not page.startswith(_OF_OTHERS):
                    yield f"{where} {path} does not exist"
            for variable in re.findall(r"\bINTARSIA_[A-Z_]+\b", code):
                if variable not in self._sources:
                    yield f"{where} nothing reads {variable}"
