"""What a node class wants, as plain values that any tool can keep: files, packages, holds, links. Taken from goldnode's own plan for a
bare node, so that every contender keeps the same."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from goldnode.core.program_file import payload
from goldnode.node.state.domains.packages import ROLE_OF
from goldnode.node.state.engine import difference
from goldnode.node.state.model import Observed

# What the contenders have a task for. Of any other kind of action only goldnode looks after the result; the report says so.
KINDS = {
    "file.write",
    "packages.transact",
    "packages.hold",
    "module.build",
    "initramfs.rebuild",
    "link",
    "boot.entry",
}


def write(document: Any, directory: Path) -> tuple[Path, list[str]]:
    """Write the state of a class document below `directory`. Returns the JSON file, whose one key is `conventional_state`, and the
    kinds of action of goldnode's that are not in it."""
    payloads = {"program": payload(content=True)}
    actions, _, _ = difference(document, Observed(live=False), payloads)
    files = []
    for action in actions:
        if action.kind != "file.write":
            continue
        data = action.data
        if "payload" in data:
            content = base64.b64decode(payloads[data["payload"]]["content"])
        else:
            content = (
                base64.b64decode(data["base64"])
                if "base64" in data
                else str(data["content"]).encode()
            )
        place = directory / "files" / action.target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        files.append({"path": action.target, "mode": f"{data['mode']:04o}", "content": str(place)})
    requested: dict[str, list[str]] = {"kernel": [], "driver": []}
    for package in document["packages"]:
        role = "kernel" if ROLE_OF[package["part"]] == "kernel" else "driver"
        requested[role].append(f"{package['name']}={package['version']}")
    driver = document["driver"]
    state = {
        "os": document["os"],
        "directories": sorted(
            {
                str(Path(file["path"]).parent)
                for file in files
                if "goldnode" in str(Path(file["path"]).parent)
            }
        ),
        "files": files,
        "links": [
            {"path": action.target, "to": action.data["to"]}
            for action in actions
            if action.kind == "link"
        ],
        "packages": requested,
        "holds": sorted(package["name"] for package in document["packages"]),
        "kernel": document["kernel"]["release"],
        "module": {
            "name": driver["module"],
            "version": driver["version"],
            "dkms": f"{driver['dkms']['name']}/{driver['version']}",
        },
        "library": driver["library"],
        "unwanted": document["blacklist"],
    }
    path = directory / "state.json"
    path.write_text(json.dumps({"conventional_state": state}, indent=1), encoding="utf-8")
    return path, sorted({action.kind for action in actions} - KINDS)
