"""Facts that the node program contains, so that it can judge a node without a class document.

They are a generated module, :mod:`goldnode.node.ground.known`: the program has no YAML reader, and
reading the facts takes longer than a check. A unit test compares the two.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from goldnode.classdoc.gpu_facts import by_pci_id, shared_facts
from goldnode.compat import known_bad
from goldnode.core.errors import FactsError
from goldnode.facts import health, xid
from goldnode.facts import host as facts
from goldnode.node.ground import known
from goldnode.node.verdict import driver_support

MODULE = Path(known.__file__)

_HEAD = '''"""Facts about GPU models, drivers and Xids. Generated from src/goldnode/facts: see docs/development.md."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict


def facts() -> Dict[str, Any]:
    """Return the facts.

    `compiled` is their date. `models` maps a PCI id to `models`, `vendor`, `architecture` and `health` (as in a
    class document). `known_bad` lists combinations of GPU, driver and OS, as facts/known_bad.yml does. `limits`
    and `xid` are as in a class document. `branches` maps an NVIDIA driver branch to `end_of_life` and `security`
    (the first version with the fixes of the newest bulletin that covers it, and that bulletin).
    """
    known: Dict[str, Any] = json.loads(TEXT)
    # In the text a model is a list: architecture, what the health check knows of it, its names.
    known["models"] = {
        pci_id: {
            "models": names,
            "vendor": VENDORS[pci_id[:4]],
            "architecture": kind,
            "health": health,
        }
        for pci_id, (kind, health, *names) in known["models"].items()
    }
    return known


VENDORS = {"10de": "nvidia", "1002": "amd", "8086": "intel"}


# fmt: off
TEXT = r"""
'''


def collect() -> dict[str, Any]:
    """Return the facts of :func:`goldnode.node.ground.known.facts`."""
    return {
        "compiled": facts.compiled().isoformat(),
        "limits": {name: row.value for name, row in sorted(health.limits().items())},
        **shared_facts(facts.gpus()),
        "branches": {name: _branch(name) for name in facts.branches()},
        "known_bad": _known_bad(),
        "models": by_pci_id(facts.gpus()),
        "xid": xid.table(),
    }


def _known_bad() -> list[dict[str, Any]]:
    """Return the known bad combinations of GPU, driver and OS.

    Left out are those of modules that do not build, since a driver that runs was built, those that
    the security floor reports, and those with a condition that a capture does not show.
    """
    return [
        {
            "id": row.id,
            "symptom": row.symptom,
            "fix": row.fix,
            "match": [dict(part) for part in row.match],
        }
        for row in known_bad.rows()
        if row.rule not in ("kernel-driver", "security-floor")
        and all(key in driver_support.CONDITIONS for part in row.match for key in part)
        and all(set(part.get("features", ())) <= {"MIG"} for part in row.match)
    ]


def _branch(name: str) -> dict[str, Any]:
    branch: dict[str, Any] = {"end_of_life": facts.branch(name).end_of_life}
    try:
        floor = facts.security_floor(name)
    except FactsError:
        return branch
    branch["security"] = {
        "floor": floor.floor,
        "fixed": floor.fixed,
        "bulletin": None if floor.bulletin is None else str(floor.bulletin),
        "date": None if floor.bulletin_date is None else str(floor.bulletin_date),
    }
    return branch


def module() -> str:
    """Return the source of :mod:`goldnode.node.ground.known`: one fact per line, so that changes can be reviewed."""
    collected = collect()
    collected["models"] = {  # the form of the text, which known.facts() undoes
        pci_id: [row["architecture"], row["health"], *row["models"]]
        for pci_id, row in collected["models"].items()
    }
    lines = []
    for key, value in collected.items():
        if isinstance(value, dict):
            inner = ",\n".join(
                f"  {json.dumps(name)}: {_line(item)}" for name, item in value.items()
            )
            lines.append(f"{json.dumps(key)}: {{\n{inner}\n}}")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            inner = ",\n".join(f"  {_line(item)}" for item in value)
            lines.append(f"{json.dumps(key)}: [\n{inner}\n]")
        else:
            lines.append(f"{json.dumps(key)}: {_line(value)}")
    return _HEAD + "{\n" + ",\n".join(lines) + '\n}\n"""\n'


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
