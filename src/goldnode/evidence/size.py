"""What an image's bytes are: by layer, as they travel and on a disk, and by package."""

from __future__ import annotations

from typing import Any

from goldnode.evidence.contents import Contents, key
from goldnode.oci.layout import OciImage, canonical


def sizes(image: OciImage, contents: Contents) -> dict[str, Any]:
    """Sizes in bytes. `hidden` of a layer: files in it that a later layer replaces or deletes, which travel all the same.

    A package's size is that of its files that are in the image; a hard link counts once.
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
    """The size report, as it is attached."""
    return canonical(sizes(image, contents))


def human(number: int) -> str:
    """Bytes for a reader."""
    value, unit = float(abs(number)), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    text = f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
    return f"-{text}" if number < 0 else text
