"""A hook of MkDocs: links from pages to files beside docs/ lead to the repository, if the site knows its address."""

import posixpath
import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Called with each page's source. A link to a missing file stays, for MkDocs to report."""
    docs = Path(config.docs_dir)

    def linked(match: re.Match[str]) -> str:
        text, link, anchor = match.groups(default="")
        path = posixpath.normpath(posixpath.join(docs.name, posixpath.dirname(page.file.src_uri), link))
        if path.split("/")[0] == docs.name or not (docs.parent / path).exists():
            return match[0]
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/HEAD/{path}{anchor})" if config.repo_url else text

    return _LINK.sub(linked, markdown)
