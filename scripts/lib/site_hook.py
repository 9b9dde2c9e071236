"""Hook of MkDocs: ids of headings as on GitHub, and paths in place of links to files outside docs/."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from pymdownx.slugs import slugify

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\.?/[^)\s]+)\)")


def on_config(config: Any, **_: Any) -> Any:
    """Give headings the ids that GitHub gives them: anchors work in the repository and on the site."""
    config["mdx_configs"].setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


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
