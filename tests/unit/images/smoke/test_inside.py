"""Where this goldnode's runner comes to lie in an unpacked image."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from goldnode.core.errors import ImageError
from goldnode.images.smoke import inside, pack
from goldnode.oci.layout import CONFIG, LAYER, MANIFEST, Layout, OciImage, canonical


def image(place: Path, entries: dict[str, str | None]) -> OciImage:
    """An image of one layer: path -> what it links to; None for a directory."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, target in entries.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = (
                (tarfile.DIRTYPE, "", 0o755) if target is None else (tarfile.SYMTYPE, target, 0o777)
            )
            tar.addfile(info)
    layout = Layout(place)
    layer, config = layout.put(raw.getvalue(), LAYER), layout.put(b"{}", CONFIG)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.document(),
        "layers": [layer.document()],
    }
    return OciImage(layout, layout.put(canonical(manifest), MANIFEST).digest)


@pytest.mark.parametrize(
    ("entries", "lies"),
    [
        ({}, "usr/lib/goldnode/goldnode-smoke"),
        (
            {"opt": None, "opt/goldnode": None, "usr/lib/goldnode": "../../opt/goldnode"},
            "opt/goldnode/goldnode-smoke",
        ),
        (
            {"usr/lib/goldnode": None, "usr/lib/goldnode/goldnode-smoke": "/VICTIM/file"},
            "usr/lib/goldnode/goldnode-smoke",
        ),
        # Into a directory of this machine, which the image has too, or has not.
        ({"VICTIM": None, "usr/lib/goldnode": "/VICTIM"}, "VICTIM/goldnode-smoke"),
        ({"usr/lib/goldnode": "/VICTIM"}, None),
        ({"usr": "/VICTIM"}, None),
    ],
)
def test_the_runner_is_placed_inside_the_image(
    tmp_path: Path, entries: dict[str, str | None], lies: str | None
) -> None:
    victim, root = tmp_path / "victim", tmp_path / "root"
    victim.mkdir()
    (victim / "file").write_text("of this machine")
    root.mkdir()
    name = str(victim).lstrip("/")
    named = {
        path.replace("VICTIM", name): link and link.replace("/VICTIM", f"/{name}")
        for path, link in entries.items()
    }
    built = image(tmp_path / "layout", named)
    inside.unpack(built, root)
    if lies is None:
        with pytest.raises(ImageError, match="which leads out of it"):
            inside.place_own(built, root)
    else:
        inside.place_own(built, root)
        assert (root / lies.replace("VICTIM", name)).read_bytes() == pack.program()
    assert {path.name: path.read_text() for path in victim.iterdir()} == {"file": "of this machine"}
