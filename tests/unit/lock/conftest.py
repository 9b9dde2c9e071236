"""One signing key for all archives of these tests, and a catalog that asks for little."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.lock import archive as shapes
from tests.unit.lock.archive import Archive, SigningKey
from tests.unit.lock.mirrors import Server, Setting, full_archive, serving, use_mirror

from goldnode.catalog.load import Catalog, CatalogEntry
from goldnode.catalog.models import Stack
from goldnode.classdoc.load import load_catalog
from goldnode.core.site import Site, load_site
from goldnode.lock.signing import create


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SigningKey]:
    # Short: a gpg-agent's socket path must fit a sockaddr.
    key = SigningKey.create(tmp_path_factory.mktemp("k") / "h", "goldnode test archive")
    yield key
    key.stop()


@pytest.fixture(scope="session")
def other_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SigningKey]:
    key = SigningKey.create(tmp_path_factory.mktemp("k") / "h", "somebody else")
    yield key
    key.stop()


@dataclass
class Place:
    """A catalog and a site below one temporary directory."""

    root: Path
    key: SigningKey

    def stack(self, **changes: Any) -> None:
        """Write the catalog's one stack; keys of `driver` given as driver_KEY."""
        driver: dict[str, Any] = {
            "vendor": "nvidia",
            "branch": "535",
            "flavour": "proprietary",
            "module": "nvidia-current",
            "dkms": {"name": "nvidia-current", "package": "nvidia-kernel-dkms"},
            "library": "libnvidia-ml.so.1",
            "packages": [
                "nvidia-kernel-dkms",
                "firmware-nvidia-gsp",
                "libcuda1",
                "nvidia-modprobe",
            ],
            "lockstep": ["nvidia-kernel-dkms", "firmware-nvidia-gsp", "libcuda1"],
            "family": ["nvidia-*", "libnvidia-*", "libcuda1", "firmware-nvidia-*"],
        }
        document: dict[str, Any] = {
            "stack": "small",
            "os": {
                "id": "debian",
                "version": "12",
                "codename": "bookworm",
                "architecture": "amd64",
            },
            "exercised": "local-archive",
            "archives": ["near"],
            "kernel": {"series": "6.1", "flavour": "amd64"},
            "driver": driver,
            "fence": ["linux-image-amd64"],
            "end_of_life": {"date": "2026-06-30", "source": "facts"},
        }
        for name, value in changes.items():
            if name.startswith("driver_"):
                driver[name.removeprefix("driver_")] = value
            else:
                document[name] = value
        path = self.root / "catalog/stacks/small.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        archives: dict[str, dict[str, Any]] = {
            "near": {"suite": "{codename}", "components": ["main"]},
            "flat": {"suite": "/"},
            "guard": {"suite": "{codename}-security", "components": ["main"]},
        }
        for entry in archives.values():
            entry |= {
                "description": "test",
                "source": "test",
                "keys": [{"fingerprint": self.key.fingerprint, "owner": "test"}],
            }
        (self.root / "catalog/archives.yml").write_text(
            yaml.safe_dump({"archives": archives}), encoding="utf-8"
        )

    def site(self, **urls: str) -> None:
        """Write the site: address by archive id, each with the test's key."""
        self.key.export(self.root / "keys/test.asc")
        archives = {name: {"url": url, "key": "keys/test.asc"} for name, url in urls.items()}
        (self.root / "site.yml").write_text(
            yaml.safe_dump({"archives": archives}), encoding="utf-8"
        )

    def load(self) -> tuple[CatalogEntry[Stack], Catalog, Site]:
        catalog = load_catalog([self.root / "catalog"])
        return catalog.stacks["small"], catalog, load_site(self.root / "site.yml")


@pytest.fixture
def place(tmp_path: Path, key: SigningKey, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("GOLDNODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GOLDNODE_LOCKS", raising=False)
    made = Place(tmp_path, key)
    made.stack()
    made.site(near=f"file://{tmp_path}/near")
    return made


@pytest.fixture
def near(tmp_path: Path, key: SigningKey) -> Archive:
    """An archive that satisfies the small stack."""
    made = Archive(tmp_path / "near", key)
    shapes.base(made)
    shapes.kernel(made, "6.1.0-50-amd64", "6.1.176-1")
    shapes.driver(made, "535.261.03")
    shapes.rest_of_driver(made)
    made.publish()
    return made


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """A mirror's key: fingerprint, secret and public file."""
    return create(tmp_path_factory.mktemp("pair"), "mirror of a test")


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory, key: SigningKey) -> Path:
    """An archive with every file of the small stack."""
    return full_archive(
        tmp_path_factory.mktemp("upstream"), key, tmp_path_factory.mktemp("scratch")
    ).root


@pytest.fixture
def server(packages: Path, tmp_path: Path) -> Iterator[Server]:
    shutil.copytree(packages, tmp_path / "upstream")
    with serving(tmp_path / "upstream") as server:
        yield server


@pytest.fixture
def setting(place: Place, server: Server, pair: tuple[str, Path, Path], tmp_path: Path) -> Setting:
    use_mirror(place, server.url, mirror=tmp_path / "mirror", signing_key=pair[1], key=pair[2])
    return Setting(place, server, tmp_path / "mirror")
