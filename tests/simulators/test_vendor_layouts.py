"""`goldnode lock` of the catalog's own stacks, with its own archive entries, against a server that plays the vendors.

The site redirects the public hosts and names the stand-ins' key; addresses, suites and key locations are the catalog's.
"""

from __future__ import annotations

import hashlib
import http.server
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.simulators.apt_archive import Archive, content, publish
from tests.simulators.test_ubuntu_lock import BASE

from goldnode.catalog.load import Catalog, builtin_catalog
from goldnode.classdoc.compile import class_document
from goldnode.classdoc.load import load_catalog
from goldnode.cli import main
from goldnode.core.site import load_site
from goldnode.lock.aptroot import apt_root
from goldnode.lock.model import Lock, load_lock
from goldnode.lock.resolve import apt_sources

STANDINS = ("debian", "debian-security", "ubuntu", "ubuntu-updates", "ubuntu-security")
# Directories of the stand-in archive by the public address that they play.
RELEASES = {"bookworm": "debian12", "trixie": "debian13", "noble": "ubuntu2404"}
KEY_FILES = {"debian12": "3bf863cc.pub", "debian13": "8793F200.pub", "ubuntu2404": "3bf863cc.pub"}


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def translate_path(self, path: str) -> str:
        return super().translate_path(urlsplit(path).path)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


@dataclass
class Vendors:
    """The stand-in archive under the vendors' paths, a site that redirects to it, and its server."""

    root: Path
    archive: Archive
    url: str

    def site(self, *, fingerprints: bool = True, url: str | None = None) -> Path:
        """Write the site file. Without `fingerprints` the catalog's pinned keys are asked for."""
        base = url or self.url
        hosts = {"https://linux.mellanox.com": "mlnx", "https://nvidia.github.io": "github"}
        hosts["https://developer." + "download.nvidia.com"] = "nvidia"
        pin = {"fingerprints": [self.archive.fingerprint]}
        archives: dict[str, object] = {
            name: {
                "url": f"{base}/{'ubuntu' if name.startswith('ubuntu') else name}",
                "key": f"{base}/key.asc",
                **pin,
            }
            for name in STANDINS
        }
        if fingerprints:
            archives |= dict.fromkeys(
                ("nvidia-cuda", "nvidia-container-toolkit", "nvidia-doca"), pin
            )
        document = {
            "upstream_mirrors": {host: f"{base}/{place}" for host, place in hosts.items()},
            "archives": archives,
        }
        path = self.root / "site.yml"
        path.write_text(yaml.safe_dump(document))
        return path


def lay_out(root: Path, archive: Archive) -> None:
    """Link the stand-in repositories to the vendors' paths, each key where the vendor has it."""
    served = root / "served"
    key = archive.key.read_bytes()

    def link(place: str, repository: str) -> Path:
        path = served / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(archive.directory / repository)
        return path

    for codename, release in RELEASES.items():
        base = link(f"nvidia/compute/cuda/repos/{release}/x86_64", content.NVIDIA[codename])
        (base / KEY_FILES[release]).write_bytes(key)
    link("github/libnvidia-container/stable/deb/amd64", content.TOOLKIT)
    (served / "github/libnvidia-container/gpgkey").write_bytes(key)
    doca = link("mlnx/public/repo/doca/latest/ubuntu24.04/x86_64", content.DOCA)
    (doca / "doca_keyring.gpg").write_bytes(key)
    for name in (content.DEBIAN, content.SECURITY, content.UBUNTU):
        link(name, name)
    (served / "key.asc").write_bytes(key)


@pytest.fixture(scope="module")
def vendors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vendors]:
    root = tmp_path_factory.mktemp("vendors")
    archive = publish(root / "archive")
    lay_out(root, archive)
    handler = lambda *args: _Quiet(*args, directory=str(root / "served"))  # noqa: E731 - what http.server asks for
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Vendors(root, archive, f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()


@pytest.fixture
def workplace(vendors: Vendors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GOLDNODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GOLDNODE_LOCKS", raising=False)
    (tmp_path / "catalog/classes").mkdir(parents=True)
    status = "".join(
        f"Package: {name}\nStatus: install ok installed\nVersion: 99\nArchitecture: amd64\n"
        "Maintainer: nobody\nDescription: test\n\n"
        for name in (*BASE, "gcc-12", "gcc-14")
    )
    (tmp_path / "status").write_text(status)
    return tmp_path


def lock(workplace: Path, site: Path, stack: str, *more: str) -> Result:
    """Run `goldnode lock STACK`."""
    variables = {"GOLDNODE_SITE": str(site), "GOLDNODE_CATALOG": str(workplace / "catalog")}
    status = ["--on", str(workplace / "status")]
    return CliRunner(env=variables).invoke(
        main, ["lock", stack, "--out", str(workplace / "locks"), *status, *more]
    )


def node_class(workplace: Path, stack: str, *options: str) -> Catalog:
    """Declare a class with optional parts, and return the catalog with it."""
    text = f"class: mine\nbackend: cuda\nstack: {stack}\nplatform: hgx_h100_8\n"
    text += f"gpu: {{model: H100-SXM5-80GB, count: 8}}\noptions: [{', '.join(options)}]\n"
    (workplace / "catalog/classes/mine.yml").write_text(text)
    return load_catalog([builtin_catalog(), workplace / "catalog"])


def rows(made: Lock) -> dict[str, tuple[str, str | None]]:
    return {item.name: (item.version, item.when) for item in made.packages}


@pytest.mark.parametrize("stack", ["debian12_r580", "debian13_r580", "ubuntu2404_r580"])
def test_a_stack_of_the_data_centre_classes_is_locked_with_one_command(
    vendors: Vendors, workplace: Path, stack: str
) -> None:
    done = lock(workplace, vendors.site(), stack)
    assert done.exit_code == 0, done.output
    made = load_lock(workplace / f"locks/{stack}.lock.yml")
    assert made.driver_version == "580.178.04"
    assert rows(made)["nvidia-fabricmanager"] == ("580.178.04-1+standin1", "nvswitch")
    assert "datacenter-gpu-manager-4-core" not in rows(made), "no class asks for it"
    assert [path.name for path in (workplace / "locks/keys").iterdir()] == [
        f"{vendors.archive.fingerprint}.asc"
    ]


def test_apt_takes_a_package_with_the_fetched_key(vendors: Vendors, workplace: Path) -> None:
    catalog = load_catalog([builtin_catalog()])
    stack = catalog.stacks["debian13_r580"]
    sources = apt_sources(stack, catalog, load_site(vendors.site()))
    with apt_root(sources, "amd64", workplace / "cache") as root:
        root.use_status(workplace / "status")
        root.refresh(offline=False)
        wanted = [
            item for item in root.resolve(["nvidia-modprobe"]) if item.name == "nvidia-modprobe"
        ]
        into = workplace / "debs"
        into.mkdir()
        root.fetch(wanted, into)
        (file,) = into.iterdir()
        assert hashlib.sha256(file.read_bytes()).hexdigest() == wanted[0].sha256
        assert wanted[0].uri.startswith(f"{vendors.url}/nvidia/compute/cuda/repos/debian13/x86_64/")


def test_the_pinned_keys_of_the_catalog_refuse_the_stand_ins(
    vendors: Vendors, workplace: Path
) -> None:
    done = lock(workplace, vendors.site(fingerprints=False), "debian13_r580")
    assert done.exit_code == 2
    assert "is not the pinned one" in done.stderr
    assert "02182E60104FCDC26EAE1B8597A5D4CB8793F200" in done.stderr
    assert vendors.archive.fingerprint in done.stderr
    assert not (workplace / "locks").exists()


def test_a_server_that_is_gone_is_named_with_what_to_do(vendors: Vendors, workplace: Path) -> None:
    done = lock(workplace, vendors.site(url="http://mirror.invalid"), "debian13_r580")
    assert done.exit_code == 2
    assert "DNS does not know the name mirror.invalid" in done.stderr
    assert "http_proxy=" in done.stderr
    assert "upstream_mirrors:" in done.stderr


def test_optional_parts_are_locked_where_a_class_asks_and_change_nothing_else(
    vendors: Vendors, workplace: Path
) -> None:
    site = vendors.site()
    assert lock(workplace, site, "ubuntu2404_r580").exit_code == 0
    bare = rows(load_lock(workplace / "locks/ubuntu2404_r580.lock.yml"))
    catalog = node_class(workplace, "ubuntu2404_r580", "dcgm", "imex", "nvlsm", "doca-ofed")
    # Without the former versions to hold on to: the archive of a part has a newer runc.
    done = lock(workplace, site, "ubuntu2404_r580", "--upgrade")
    assert done.exit_code == 0, done.output
    assert "classes ask for optional parts that were not locked" in done.output
    made = load_lock(workplace / "locks/ubuntu2404_r580.lock.yml")
    found = rows(made)
    assert {name: row for name, row in found.items() if name in bare} == bare
    assert {name: row for name, row in found.items() if name not in bare} == {
        "datacenter-gpu-manager-4-core": ("1:4.6.0-1+standin1", "dcgm"),
        "datacenter-gpu-manager-4-cuda13": ("1:4.6.0-1+standin1", "dcgm"),
        "datacenter-gpu-manager-4-proprietary": ("1:4.6.0-1+standin1", "dcgm"),
        "datacenter-gpu-manager-4-proprietary-cuda13": ("1:4.6.0-1+standin1", "dcgm"),
        "doca-ofed": ("3.4.0-1+standin1", "doca-ofed"),
        "libibverbs1": ("2604mlnx58-1+standin1", "doca-ofed"),
        "mlnx-ofed-kernel-dkms": ("3.4.0-1+standin1", "doca-ofed"),
        "nvidia-imex": ("580.178.04-1+standin1", "imex"),
        "nvlsm": ("2025.06.6-1+standin1", "nvlsm"),
    }
    assert {item.name for item in made.packages if item.set == "stack" and item.when == "dcgm"} == {
        name for name in found if name.startswith("datacenter-gpu-manager-4")
    }
    # The class with the parts holds them, on its own archive; another class of the stack does not see them.
    locks = {"ubuntu2404_r580": made}
    document = class_document("mine", catalog, load_site(site), locks)
    assert {"nvlsm", "doca-ofed", "nvidia-fabricmanager"} <= {
        row["name"] for row in document["packages"]
    }
    assert [row["id"] for row in document["site"]["archives"]][-1] == "nvidia-doca"
    catalog = node_class(workplace, "ubuntu2404_r580")
    document = class_document("mine", catalog, load_site(site), locks)
    assert not {"nvlsm", "doca-ofed", "nvidia-imex"} & {row["name"] for row in document["packages"]}
    assert "nvidia-doca" not in [row["id"] for row in document["site"]["archives"]]


def test_a_part_that_follows_the_driver_must_exist_at_its_version(
    workplace: Path, tmp_path: Path
) -> None:
    archive = publish(tmp_path / "lacking", withdraw=["nvidia-imex_580.178.04*"])
    site = archive.write_site(
        tmp_path / "lacking.yml", f"file://{archive.directory}", release="trixie"
    )
    node_class(workplace, "debian13_r580", "imex")
    done = lock(workplace, site, "debian13_r580")
    assert done.exit_code == 2
    assert (
        "nvidia-imex must have the driver's version 580.178.04; the archives have 580.173.02"
        in done.stderr
    )


def test_a_class_that_asks_for_what_the_lock_lacks_names_the_command(
    vendors: Vendors, workplace: Path
) -> None:
    site = vendors.site()
    assert lock(workplace, site, "debian13_r580").exit_code == 0
    made = load_lock(workplace / "locks/debian13_r580.lock.yml")
    catalog = node_class(workplace, "debian13_r580", "dcgm")
    with pytest.raises(Exception, match="asks for dcgm, which the lock of stack") as caught:
        class_document("mine", catalog, load_site(site), {"debian13_r580": made})
    assert "Run `goldnode lock debian13_r580`." in str(caught.value)
