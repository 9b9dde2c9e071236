"""Every path in goldnode that takes a built image: which install or sign it, and that these verify its signature first.

The paths come from the code: a new function that opens an image fails here until it has a row, and one that installs or
signs until it verifies.
"""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.disks.disk_samples import make_build, prove

from goldnode.cli import main
from goldnode.core.errors import GoldnodeError, ImageError
from goldnode.disks import requirements as disk_requirements
from goldnode.disks import slot_image
from goldnode.disks.model import BuiltDisk
from goldnode.fleet.nodes import disk_update
from goldnode.images import requirements as image_requirements

SOURCE = Path(disk_update.__file__).parents[2]
OPENERS = (
    "BuiltDisk.load",
    "disks.model.builds",
    "disks.model.find",
    "product.build",
    "product.builds",
    "layout.image",
    "open_base",
    "images.pull.pull",
)
READS = "reads: nothing is installed, sent or signed for others"
BUILDS = "builds it, or has just done so"
STORE = "finds the build for its callers"
# File and function -> what it does with the image; for those that install or sign, the call that verifies.
PATHS = {
    "commands/cve/sources.py: carriers_of": READS,
    "commands/disks/build.py: list_": READS,
    "commands/disks/compare.py: compare": READS,
    "commands/disks/netboot.py: netboot": "verify: authentic(",
    "commands/disks/publish.py: authenticate": READS,
    "commands/disks/publish.py: diff": READS,
    "commands/disks/publish.py: evidence": "signs as the builder: what nobody has signed before",
    "commands/disks/publish.py: publish": "verify: publishing(",
    "commands/disks/sign.py: sign": "signs as the builder: what its own build has made",
    "commands/disks/verify.py: verify": "boots it in an emulator without a network",
    "commands/images/derive.py: pulled": "verify: unsigned_reason(",
    "commands/images/derive.py: derive": BUILDS,
    "commands/images/index.py: index": "lists images that `images publish` has verified",
    "commands/images/publish.py: publish": "verify: publishing(",
    "commands/images/publish.py: pull": "verify: trust_policy(",
    "commands/images/smoke.py: smoke": "runs it in a container without a network",
    "fleet/nodes/disk_update.py: chosen_image": "verify: open_image(",
    "disks/build.py: _add": BUILDS,
    "disks/build.py: _known": BUILDS,
    "disks/build.py: build": BUILDS,
    "disks/build.py: twice": BUILDS,
    "disks/directory.py: refresh": STORE,
    "disks/gc.py: collect": READS,
    "disks/gc.py: collect_place": READS,
    "disks/model.py: builds": STORE,
    "disks/model.py: find": STORE,
    "disks/places.py: disk": STORE,
    "disks/places.py: find": STORE,
    "disks/places.py: published": STORE,
    "disks/product.py: build": STORE,
    "disks/publish.py: pull": "verify: _signed(",
    "images/build.py: made_image": BUILDS,
    "images/build.py: twice": BUILDS,
    "images/derived.py: twice": BUILDS,
    "images/deriving.py: _base_before": READS,
    "images/deriving.py: prepare": "verify: _verified(",
    "images/platform_index.py: index_of": READS,
}


def opened(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each function of a file that opens an image, with its source."""
    text = path.read_text(encoding="utf-8")
    if not any(name.rpartition(".")[2] in text for name in OPENERS):
        return
    tree = ast.parse(text)
    names = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    if path.name == "model.py":
        names |= {"find": "goldnode.disks.model.find", "builds": "goldnode.disks.model.builds"}
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for call in ast.walk(function):
            if isinstance(call, ast.Call):
                name = ast.unparse(call.func)
                whole = names.get(name, name)
                if any(f".{whole}".endswith(f".{one}") for one in OPENERS):
                    yield function.name, ast.unparse(function)


def test_every_path_that_takes_an_image_has_a_row_and_verifies_what_it_installs_or_signs() -> None:
    found = {
        f"{path.relative_to(SOURCE)}: {name}": text
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] in ("commands", "disks", "fleet", "images", "channels")
        for name, text in opened(path)
    }
    assert sorted(found) == sorted(PATHS), (
        "a path that installs or signs an image verifies it; then add its row"
    )
    for place, what in PATHS.items():
        if what.startswith("verify: "):
            assert what.removeprefix("verify: ") in found[place], place


def test_only_open_image_makes_what_an_update_sends_and_a_channel_signs() -> None:
    """`disk_update.send` and `channel.add_image` take an UpdateImage: no other function may make one."""
    makers = [
        f"{path.relative_to(SOURCE)}: {function.name}"
        for path in sorted(SOURCE.rglob("*.py"))
        if "UpdateImage(" in (text := path.read_text(encoding="utf-8"))
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef) and "UpdateImage(" in ast.unparse(function)
    ]
    assert makers == ["fleet/nodes/disk_update.py: open_image"]


@pytest.mark.parametrize("step", ["publish", "candidate", "canary", "stable"])
def test_publications_and_promotions_require_a_signature(step: str) -> None:
    for product in (disk_requirements, image_requirements):
        assert "signature" in product.REQUIREMENTS.asked[step], product.__name__


# The signature


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """A secret key and its public half, which the site file names."""
    secret, public = tmp_path / "images.pem", tmp_path / "images.pub"
    subprocess.run(
        ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(secret)],
        check=True,
        capture_output=True,
    )
    secret.chmod(0o600)
    subprocess.run(
        ["openssl", "pkey", "-in", str(secret), "-pubout", "-out", str(public)], check=True
    )
    return secret, public


@pytest.fixture
def site(tmp_path: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "goldnode-site.yml"
    path.write_text("images: {public_key: images.pub}\n", encoding="utf-8")
    monkeypatch.setenv("GOLDNODE_SITE", str(path))
    monkeypatch.setenv("GOLDNODE_FLEET_STORE", str(tmp_path / "fleet.db"))
    return path


def edit(disk: BuiltDisk) -> None:
    """Change the root, and write its new digest into the manifest and the record of the boots."""
    raw = disk.path("raw")
    data = b"IMPLANT" + raw.read_bytes()[7:]
    raw.write_bytes(data)
    _, digest = slot_image.digest(raw)
    for path in (disk.directory / "disk.json", *disk.directory.glob("*verified.json")):
        text = path.read_text(encoding="utf-8").replace(disk.raw.sha256, digest)
        path.write_text(text, encoding="utf-8")


def refusal(directory: Path) -> str:
    try:
        disk_update.open_image(BuiltDisk.load(directory), "for this test")
    except GoldnodeError as problem:
        return str(problem)
    return ""


def test_image_is_opened_only_with_a_signature_of_the_site(
    tmp_path: Path, keys: tuple[Path, Path], site: Path
) -> None:
    disk = make_build(tmp_path / "store")
    prove(disk, None)
    assert "is not verified: signature: the disk is not signed" in refusal(disk.directory)
    prove(disk, keys[0])
    assert "no partition esp" in refusal(disk.directory)  # noise: signed, and nothing that boots
    edit(disk)
    assert "is not verified" in refusal(disk.directory)


def test_image_with_a_signature_of_another_key_is_refused(
    tmp_path: Path, keys: tuple[Path, Path], site: Path
) -> None:
    other = tmp_path / "other.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(other)], check=True)
    other.chmod(0o600)
    disk = make_build(tmp_path / "store")
    prove(disk, other)
    assert "is not verified: signature" in refusal(disk.directory)


def test_commands_refuse_what_authenticate_refuses(
    tmp_path: Path, keys: tuple[Path, Path], site: Path
) -> None:
    """`disks update` and `rollout publish --image`: one function opens the image for both."""
    disk = make_build(tmp_path / "store")
    prove(disk, keys[0])
    edit(disk)
    done = CliRunner().invoke(
        main, ["disks", "authenticate", str(disk.directory), "--format", "json"]
    )
    assert done.exit_code == 1
    assert not json.loads(done.stdout)["results"][0]["passed"]
    with pytest.raises(ImageError, match="goldnode disks authenticate"):
        disk_update.open_image(BuiltDisk.load(disk.directory), "a reason does not help")


def test_without_a_key_of_the_site_no_signature_is_asked_for(tmp_path: Path, site: Path) -> None:
    site.write_text("{}\n", encoding="utf-8")
    disk = make_build(tmp_path / "store")
    prove(disk, None)
    assert "no partition esp" in refusal(disk.directory)
