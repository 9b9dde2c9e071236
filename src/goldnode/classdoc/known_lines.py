"""The table of kernel messages that the node program contains: :mod:`goldnode.node.ground.log_lines`, generated from facts/log_lines.yml."""

from __future__ import annotations

import json
from pathlib import Path

from goldnode.facts.log_lines import table
from goldnode.node.ground import log_lines

MODULE = Path(log_lines.__file__)
_BEGIN = "# fmt: off\n"


def module() -> str:
    """Return the source of :mod:`goldnode.node.ground.log_lines` with the table of today: one row per line."""
    head = MODULE.read_text(encoding="utf-8").partition(_BEGIN)[0]
    data = table()
    remedies = ",\n".join(f"{_json(key)}:{_json(row)}" for key, row in data["remedies"].items())
    rows = ",\n".join(map(_json, data["rows"]))
    writers = sorted({name for row in data["rows"] for name in row[1].split(" ")})
    names = f'WRITERS = frozenset({_json(writers)})\nTEXT = r"""\n'
    return f'{head}{_BEGIN}{names}{{"remedies":{{\n{remedies}\n}},"rows":[\n{rows}\n]}}\n"""\n'


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
