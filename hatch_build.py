"""Build hook of hatchling: put the data of the commands into the wheel, as `goldnode/_data`.

The files stay where they are in the tree. An editable installation reads them there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# What commands read; src/goldnode/core/data.py finds it.
DATA = (
    "ansible.cfg",
    "catalog",
    "images",
    "integrations",
    "report.yml",
    "roles",
    "rollback.yml",
    "rollout",
    "rollout.yml",
    "schemas",
    "site.yml",
)


class CustomBuildHook(BuildHookInterface):
    """Map the files of DATA into the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files to a wheel; `version` is "standard" or "editable"."""
        if version == "editable":
            return
        root = Path(self.root)
        for name in DATA:
            top = root / name
            for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
                if path.is_file() and "__pycache__" not in path.parts:
                    build_data["force_include"][str(path)] = (
                        f"goldnode/_data/{path.relative_to(root)}"
                    )
