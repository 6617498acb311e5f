"""Extends MkDocs for this site: formulas, drawings, search words, and pages that show source files.

A link from a page to a file of the repository, such as ../examples/ten_lines.py, becomes a link to
a page of the site that shows this file, so that the site needs neither network nor repository.
Formulas are MathML, which browsers draw without a script. `extra` in mkdocs.yml has the weight of a
page in the search, and further words for which the search shows the page.
"""

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from pymdownx.superfences import SuperFencesException

sys.path.insert(0, str(Path(__file__).parent))
from drawing import exchanges

ROOT = Path(__file__).parent.parent
SHOWN = "source"
LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
FENCE = re.compile(r"^( *)(```+).*?^\1\2$", re.S | re.M)
HEAD = re.compile(r"\A---\n.*?^---\n", re.S | re.M)  # The head of a README, for an index of apps.
MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml", ".yaml": "yaml", ".diff": "diff"}
KEPT = (".md", ".png", ".svg")
BOOST, WORDS = "search_boost", "other_words"
"""The two search settings in mkdocs.yml under `extra`, each a mapping by page."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Draw fenced blocks called `exchanges`."""
    fence = {"name": "exchanges", "class": "exchanges", "format": _drawn}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [fence]}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every file of the repository that a page, or such a new page, links to."""
    docs = Path(config.docs_dir)
    waiting = [docs / file.src_uri for file in files.documentation_pages()]
    done: set[Path] = set()
    while waiting:
        page = waiting.pop()
        for target in _targets(page):
            if target in done or _in_site(target):
                continue
            done.add(target)
            files.append(File.generated(config, _shown(target), content=_page(target)))
            if target.suffix == ".md":
                waiting.append(target)
    return files


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Refuse search settings of pages that do not exist."""
    for setting in (BOOST, WORDS):
        for name in config.extra[setting]:
            if not files.get_file_from_path(name):
                raise PluginError(f"mkdocs.yml: extra: {setting}: there is no page {name}")
    return nav


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Point links that leave docs/ to the pages that show the files; apply the search settings."""
    here = page.file.src_uri
    if here.startswith(f"{SHOWN}/"):
        return markdown
    if not any(prose and re.search(r"^## ", part, re.M) for part, prose in _prose(markdown)):
        page.meta["hide"] = ["toc"]  # Without headings the table of contents is empty.
    if here in config.extra[BOOST]:
        page.meta["search"] = {"boost": config.extra[BOOST][here]}
    if here in config.extra[WORDS]:
        markdown = _with_words(markdown, config.extra[WORDS][here])
    return _linked(markdown, Path(config.docs_dir) / here, here)


def _with_words(text: str, words: str) -> str:
    """Return a page with a line of further search words above its first `##` heading.

    There the words belong to the whole page, so the search links to the top of the page.
    """
    line = f"Related terms: {words}.\n{{ .words }}\n"
    at = 0
    for part, prose in _prose(text):
        if prose and (heading := re.search(r"^## ", part, re.M)):
            at += heading.start()
            break
        at += len(part)
    return f"{text[:at].rstrip()}\n\n{line}\n{text[at:]}"


def on_page_content(html: str, **_: Any) -> str:
    """Replace formulas by MathML."""

    def as_mathml(formula: re.Match[str]) -> str:
        text = formula[2].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        return convert(text.strip(), display="block" if formula[1] == "div" else "inline")

    return MATH.sub(as_mathml, html)


def _drawn(source: str, *_: Any, **__: Any) -> str:
    """Return the drawing of a block; a mistake in the block ends the build.

    superfences shows the block as code for any other error.
    """
    try:
        return exchanges(source)
    except ValueError as error:
        raise SuperFencesException(str(error)) from error


def _prose(text: str) -> list[tuple[str, bool]]:
    """Return the parts of a page, each with True for prose and False for code."""
    parts, last = [], 0
    for block in FENCE.finditer(text):
        parts += [(text[last : block.start()], True), (block[0], False)]
        last = block.end()
    return [*parts, (text[last:], True)]


def _targets(page: Path) -> list[Path]:
    """Return the files of the repository that a page links to; raise for a missing file."""
    if not page.is_file():
        return []
    targets = []
    for text, prose in _prose(page.read_text()):
        for link in LINK.finditer(text) if prose else ():
            if ":" in link["path"] or not link["path"]:
                continue
            target = Path(posixpath.normpath((page.parent / link["path"]).as_posix()))
            if not target.exists():
                raise PluginError(f"{page.relative_to(ROOT)}: there is no {link['path']}")
            targets.append(target)
    return targets


def _in_site(target: Path) -> bool:
    """Return whether a file is a page or a picture of the site itself."""
    return target.is_relative_to(ROOT / "docs") and target.suffix in KEPT


def _shown(target: Path) -> str:
    """Return the path in the site of the page that shows a file."""
    return f"{SHOWN}/{target.relative_to(ROOT).as_posix()}.md"


def _linked(text: str, page: Path, here: str) -> str:
    """Return a page's text with links into the site; `here` is the page's path in the site."""

    def into_site(link: re.Match[str]) -> str:
        if ":" in link["path"]:
            return link[0]
        target = Path(posixpath.normpath((page.parent / link["path"]).as_posix()))
        there = _shown(target) if not _in_site(target) else str(target.relative_to(ROOT / "docs"))
        return posixpath.relpath(there, posixpath.dirname(here) or ".") + (link["anchor"] or "")

    parts = _prose(text)
    return "".join(LINK.sub(into_site, part) if prose else part for part, prose in parts)


def _page(target: Path) -> str:
    """Return the page that shows a file or a folder; the search leaves it out."""
    name = target.relative_to(ROOT).as_posix()
    head = f"---\ntitle: {name}\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n"
    if target.is_dir():
        # Without caches, which git does not have either.
        inner = sorted(file for file in target.rglob("*") if file.is_file() and _is_text(file))
        blocks = "\n\n".join(_code(file, f"## {_name(file)}") for file in inner)
        return f"{head}# {name}\n\n{blocks}"
    if target.suffix == ".md":
        text = HEAD.sub("", target.read_text())
        return head + _linked(text, target, _shown(target))
    return head + _code(target, f"# {name}")


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _is_text(path: Path) -> bool:
    return "__pycache__" not in path.parts and path.suffix in (*LANGUAGES, ".md", ".txt", "")


def _code(path: Path, heading: str) -> str:
    """Return a file as a block of code; its fence of four backticks allows three in the file."""
    return f"{heading}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}\n````\n"
