"""Size report of an image: bytes per layer (compressed and unpacked) and per package."""

from __future__ import annotations

from typing import Any

from goldnode.evidence.contents import Contents, key
from goldnode.oci.layout import OciImage, canonical


def sizes(image: OciImage, contents: Contents) -> dict[str, Any]:
    """Return all sizes of an image, in bytes.

    `hidden` counts the files of a layer that a later layer replaces or deletes: a pull transfers them all the
    same. The size of a package is that of its files in the image; a hard link counts once.
    """
    entries = contents.snapshot.entries
    visible = [0] * len(image.layers)
    packages: dict[str, int] = {}
    names = {key(item): f"{item.name} {item.version}" for item in contents.packages}
    for path, entry in entries.items():
        if entry.kind == "f":
            visible[entry.layer] += entry.size
            owner = contents.owners.get(path)
            packages[owner or ""] = packages.get(owner or "", 0) + entry.size
    # History entries with `empty_layer` (ENV, LABEL and so on) have no layer, so the rest pair up with the
    # layers.
    steps = [
        str(row.get("created_by", ""))
        for row in image.config.get("history", [])
        if not row.get("empty_layer")
    ]
    layers = [
        {
            "digest": layer.digest,
            "compressed": layer.size,
            "files": contents.snapshot.layer_bytes[number],
            "hidden": contents.snapshot.layer_bytes[number] - visible[number],
            "step": steps[number] if number < len(steps) else "",
        }
        for number, layer in enumerate(image.layers)
    ]
    rows = [
        {"package": names.get(owner, owner), "kind": owner.partition(":")[0], "size": size}
        for owner, size in packages.items()
        if owner
    ]
    return {
        "subject": image.digest,
        "compressed": sum(layer.size for layer in image.layers),
        "files": sum(visible),
        "hidden": sum(contents.snapshot.layer_bytes) - sum(visible),
        "without_package": packages.get("", 0),
        "layers": layers,
        "packages": sorted(rows, key=lambda row: (-int(str(row["size"])), str(row["package"]))),
    }


def document(image: OciImage, contents: Contents) -> bytes:
    """Return the size report as canonical JSON, ready to attach."""
    return canonical(sizes(image, contents))


def human(number: int) -> str:
    """Format a number of bytes for people, such as `1.5 GiB`."""
    value, unit = float(abs(number)), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    text = f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
    return f"-{text}" if number < 0 else text
