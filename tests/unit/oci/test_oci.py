"""Where a path of an image leads."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from goldnode.oci.layout import CONFIG, LAYER, MANIFEST, Layout, OciImage, canonical


@pytest.fixture
def image(tmp_path: Path) -> OciImage:
    """One layer that names files and links, and no directory."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, target in (
            ("usr/lib/x/real", None),
            ("lib", "usr/lib"),
            ("usr/lib/x/up", "../../../lib/x/real"),
            ("abs", "/lib/x"),
            ("a", "b"),
            ("b", "a"),
        ):
            info = tarfile.TarInfo(name)
            if target is not None:
                info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info, io.BytesIO())
    layout = Layout(tmp_path / "layout")
    layer, config = layout.put(raw.getvalue(), LAYER), layout.put(b"{}", CONFIG)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.document(),
        "layers": [layer.document()],
    }
    return OciImage(layout, layout.put(canonical(manifest), MANIFEST).digest)


@pytest.mark.parametrize(
    ("path", "leads"),
    [
        ("usr/lib/x/real", "usr/lib/x/real"),
        ("/lib/x/real", "usr/lib/x/real"),
        ("lib/x/up", "usr/lib/x/real"),
        ("abs/real", "usr/lib/x/real"),
        ("usr/lib", "usr/lib"),  # no layer names it; something is in it
        ("../../usr/./lib/x", "usr/lib/x"),
        ("usr/lib/y", None),
        ("a", None),
    ],
)
def test_links_are_followed_inside_the_image(image: OciImage, path: str, leads: str | None) -> None:
    assert image.resolve(path) == leads
