"""The case tables of `tests/cases`, read at collection by every process of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

CASES = Path(__file__).parent / "cases"


def table(name: str) -> Any:
    """Return the content of the YAML file `name`, relative to `tests/cases`.

    By libyaml: the same tables take the parser in Python ten times as long, in each process.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((CASES / name).read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - a safe loader
