"""Reader of CDI specs, the files that describe devices to container engines."""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List


def read_cdi(text: str) -> Dict[str, Any]:
    """Return {kind, devices, paths} of a CDI spec in JSON or YAML.

    `paths` are the host paths that it names (CDI specification, section "CDI JSON"). JSON of another shape
    gets kind None; engines ignore such a file too. YAML is parsed line by line: the programs that write these
    specs (nvidia-ctk, the CDI libraries) put one key on each line.
    """
    try:
        document = json.loads(text)
    except ValueError:
        return _read_cdi_lines(text)
    try:
        return _cdi_object(document)
    except (AttributeError, KeyError, TypeError):
        return {"kind": None, "devices": [], "paths": []}


def _cdi_object(found: Any) -> Dict[str, Any]:
    paths: List[str] = []
    edits = [found.get("containerEdits") or {}] + [
        device.get("containerEdits") or {} for device in found.get("devices") or ()
    ]
    for edit in edits:
        paths += [
            str(node.get("hostPath") or node["path"]) for node in edit.get("deviceNodes") or ()
        ]
        paths += [str(mount["hostPath"]) for mount in edit.get("mounts") or ()]
        paths += [str(hook["path"]) for hook in edit.get("hooks") or ()]
    return {
        "kind": found.get("kind"),
        "devices": [str(device.get("name")) for device in found.get("devices") or ()],
        "paths": sorted(set(paths)),
    }


def _read_cdi_lines(text: str) -> Dict[str, Any]:
    def scalars(key: str, where: str = text) -> List[str]:
        return [
            value.strip("\"'")
            for value in re.findall(rf"^\s*(?:- )?{key}:[ \t]+(\S+)[ \t]*$", where, re.MULTILINE)
        ]

    kind = scalars("kind")
    names = re.findall(r"^\s*(?:- )?name:[ \t]+(\S+)[ \t]*$", text, re.MULTILINE)
    return {
        "kind": kind[0] if kind else None,
        "devices": [name.strip("\"'") for name in names],
        "paths": sorted({*scalars("hostPath"), *scalars("path")}),
    }
