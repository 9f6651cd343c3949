"""What mkdocs does not do by itself: README and its like as pages, and links from docs/ to sources.

mkdocs.yml names this file; `make docs` runs it. A link from a page to a file outside of docs/ leads to a page
that shows that file, so the site is whole without a server or a repository to link to.
"""

import logging
import pathlib
import posixpath
import re
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Files outside of docs/ that are pages of the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
}
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
_ITEM = re.compile(r" {0,3}(?:[-*]|\d+\.) ")
_FENCED = re.compile(r"^(```+)[^\n]*\n.*?^\1[ \t]*$", re.S | re.M)
_LANGUAGES = {".py": "python", ".h": "cpp", ".cc": "cpp", ".cu": "cpp", ".c": "c", ".json": "json"}
_log = logging.getLogger("mkdocs.plugins.site_hooks")


def outside(source: str, target: str) -> str | None:
    """The path, from the root, of a file outside of docs/ that a page of the repository links to; None for others."""
    if re.match(r"\w+:|/", target):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    return None if path.startswith("docs/") else path


def in_site(path: str) -> str:
    """Where the site shows a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return PAGES.get(path, f"source/{path}.md")


def _apart(text: str) -> str:
    """The text with a blank line before each list: mkdocs takes one right behind a paragraph for a part of it."""
    lines, in_paragraph = [], False
    for line in text.split("\n"):
        is_item = _ITEM.match(line) is not None
        if is_item and in_paragraph:
            lines.append("")
        lines.append(line)
        begins = not lines[-2].strip() if len(lines) > 1 else True
        if not line.strip() or is_item:
            in_paragraph = False
        elif begins:
            in_paragraph = not line.startswith(("#", "|", "<"))
    return "\n".join(lines)


def rewritten(source: str, text: str) -> str:
    """The text of a page of the repository as the site has it: its links, and its lists."""
    here = posixpath.dirname(in_site(source))

    def link(match: re.Match[str]) -> str:
        target = match[1]
        path = outside(source, target)
        if path is None and not (source in PAGES and target.startswith("docs/")):
            return target
        path = path or target
        if not (ROOT / path).is_file():
            _log.warning("%s links to %s, which is no file", source, target)
        return posixpath.relpath(in_site(path), here or ".")

    parts, end = [], 0
    for block in _FENCED.finditer(text):  # code has brackets of its own
        parts += [_apart(_LINK.sub(link, text[end : block.start()])), block[0]]
        end = block.end()
    return "".join([*parts, _apart(_LINK.sub(link, text[end:]))])


def linked(source: str, text: str) -> set[str]:
    """The files outside of docs/ that a page links to, but for those that are pages themselves."""
    paths = {outside(source, target) for target in _LINK.findall(_FENCED.sub("", text))}
    return {path for path in paths if path and path not in PAGES and (ROOT / path).is_file()}


def _shown(path: str) -> str:
    text = (ROOT / path).read_text()
    head = f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n"
    if path.endswith(".md"):
        return head + rewritten(path, text)
    language = _LANGUAGES.get(pathlib.Path(path).suffix, "text")
    return f"{head}`````{language}\n{text}`````\n"


def _decisions() -> str:
    rows = []
    for path in sorted((ROOT / "docs" / "adr").glob("*.md")):
        title = path.read_text().splitlines()[0].removeprefix("# ")
        rows.append(f"- [{title}](adr/{path.name})")
    return "# Decisions\n\nContext, decision and consequence, each on a page.\n\n" + "\n".join(rows)


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Adds the pages that lie elsewhere, and those that show sources."""
    texts = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    texts |= {path: (ROOT / path).read_text() for path in PAGES}
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, content=rewritten(path, texts[path])))
    files.append(File.generated(config, "decisions.md", content=_decisions()))
    for path in sorted(set().union(*(linked(source, text) for source, text in texts.items()))):
        files.append(File.generated(config, in_site(path), content=_shown(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.generated_by is not None:
        return markdown
    return rewritten(f"docs/{page.file.src_uri}", markdown)
