"""Hook of MkDocs: show links to files outside docs/ as their paths, because the site has no such pages."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\.?/[^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace `[text](../../schemas/x.json)` by `text` and the path in the repository."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def replace(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        path = posixpath.normpath(posixpath.join(folder, target.partition("#")[0]))
        if path == "docs" or path.startswith("docs/"):
            return match[0]
        return text if text.strip("`") in path else f"{text} (`{path}`)"

    return _LINK.sub(replace, markdown)
