"""The Markdown pages of the project: their code blocks, links and headings."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.support.processes.project import ROOT

_ONE_EXPERIMENT = tuple(ROOT / "docs/split" / f"{name}.md" for name in ("tutorial", "metrics", "rollouts", "trust"))
"""Pages whose commands go on with what those before have started, in the order in which they are read."""

PAGES = (ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - {*_ONE_EXPERIMENT}), *_ONE_EXPERIMENT)
"""The pages whose commands and snippets are run."""

CHANGING = frozenset(
    (ROOT / "README.md", ROOT / "docs" / "reference" / "configuration.md", *(ROOT / "docs" / "split").glob("*.md"))
)
"""The pages whose commands change what the application serves."""

RUNNABLE = ("bash", "python")

WITH_CLIENTS = ("bash clients", "js clients", "python clients")
"""Snippets that need clients which only `make agents` installs, and runs."""

_GENERATED = re.compile(r"<!-- (\w+): begin .*?<!-- \1: end -->|<!-- figures of .*?<!-- end of .*?-->", re.DOTALL)

ANYTHING = "…"
"""Stands for any text in the output that a page shows."""


@dataclass(frozen=True)
class Block:
    """A fenced code block. `output` is the `text` block that follows it directly, if there is one."""

    page: Path
    line: int
    language: str
    code: str
    output: str | None = None

    @property
    def id(self) -> str:
        """The block's name in test ids: page and line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def shows(self, printed: str) -> bool:
        """Whether `printed` is the output that the page shows. True if it shows none."""
        if self.output is None:
            return True
        pattern = ".*?".join(map(re.escape, self.output.strip().split(ANYTHING)))
        return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


@cache
def _tokens(page: Path) -> Sequence[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text())


def blocks(page: Path) -> Iterator[Block]:
    """The fenced code blocks of a page."""
    tokens = _tokens(page)
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "fence":
            output = following.content if following and (following.type, following.info) == ("fence", "text") else None
            yield Block(page, (token.map or [0])[0] + 1, token.info, token.content, output)


def runnable() -> list[Block]:
    """Every block that a reader can run."""
    return [block for page in PAGES for block in blocks(page) if block.language in RUNNABLE]


def links(page: Path) -> Iterator[str]:
    """The targets of a page's links and images."""
    for token in _tokens(page):
        for child in token.children or ():
            target = child.attrs.get("href") or child.attrs.get("src")
            if isinstance(target, str):
                yield target


def paragraphs(page: Path) -> Iterator[str]:
    """The source of a page's paragraphs, list items and table cells."""
    return (token.content for token in _tokens(page) if token.type == "inline")


def words(page: Path) -> int:
    """The number of words that somebody wrote: without generated tables and code blocks."""
    tokens = MarkdownIt("commonmark").enable("table").parse(_GENERATED.sub("", page.read_text()))
    return sum(len(re.findall(r"\S*\w\S*", token.content)) for token in tokens if token.type == "inline")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    counts: dict[str, int] = {}
    tokens = _tokens(page)
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            text = "".join(child.content for child in inline.children or ())
            anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            counts[anchor] = counts.get(anchor, -1) + 1
    return {f"{anchor}-{n}" if n else anchor for anchor, last in counts.items() for n in range(last + 1)}
