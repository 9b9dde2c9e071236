"""The class document: its shape, its determinism, and what moves its digest."""

from __future__ import annotations

import base64
import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from tests import documents
from tests.unit.catalog.test_accept_reject import ARCHIVES, CLASS, FILES, STACK, write

from goldnode.catalog.load import Catalog, builtin_catalog
from goldnode.classdoc.compile import class_document, document_digest
from goldnode.classdoc.load import load_catalog
from goldnode.core.errors import CatalogError, LockError, SigningKeyError
from goldnode.core.site import Site, SiteArchive, SiteException, SiteGate, SiteMirror
from goldnode.lock.model import Lock, LockedArchive, LockedPackage, load_lock
from goldnode.lock.publication import Publication, place
from goldnode.node.ground import openpgp

DAY = dt.date(2026, 11, 21)
SITE = Site(archives={"debian": SiteArchive(url="http://mirror.example.org/debian/")})


def package(name: str, version: str = "580.178.04-1", **more: Any) -> LockedPackage:
    values = {
        "name": name,
        "version": version,
        "architecture": "amd64",
        "sha256": "0" * 64,
        "size": 1,
        "path": f"pool/{name}.deb",
        "archive": "debian",
        "set": "stack",
        "part": "driver",
        "requested": True,
        "why": "requested by the stack",
    }
    return LockedPackage.model_validate(values | more)


LOCK = Lock(
    lock=1,
    stack="r580",
    intent="sha256:" + "0" * 64,
    resolved="2026-11-21",
    kernel_release="6.1.0-56-amd64",
    driver_version="580.178.04",
    archives=[LockedArchive(id="debian", suite="bookworm", components=["main"])],
    packages=[
        package(
            "libc6", "2.36-9", set="base", part="base", requested=False, why="needed by libcuda1"
        ),
        package("libcuda1"),
        package("nvidia-fabricmanager", when="nvswitch"),
        package("nvidia-kernel-open-dkms"),
    ],
)


def document(tmp_path: Path, site: Site = SITE, lock: Lock = LOCK, **files: str) -> dict[str, Any]:
    names = {
        "stack": "stacks/r580.yml",
        "node_class": "classes/a100.yml",
        "archives": "archives.yml",
    }
    catalog = load_catalog(
        [write(tmp_path, FILES | {names[key]: text for key, text in files.items()})]
    )
    found = class_document("a100", catalog, site, {"r580": lock}, on=DAY)
    documents.valid(found)
    return found


def test_document_has_its_digest_health_policy_and_archives(tmp_path: Path) -> None:
    found = document(tmp_path)
    digest = found.pop("digest")
    assert digest == document_digest(found)
    found.pop("xid", None)  # as compat.xid gives it
    health = found.pop("health")
    assert health["gpu"] == {
        "pcie": {"gen": 4, "width": 16},
        "nvlinks": 12,
        "memory_mib": [40960],
        "ecc": True,
        "mig": True,
    }
    assert health["limits"]["volatile_uncorrected"] == 0
    assert health["limits"]["throttle_mask"] == 0xE8
    assert health["baseline"] == found["baseline"]
    assert health["cuda"]["families"]["12"] == "525.60.13"
    assert found == {
        "schema": "goldnode.class/1",
        "class": "a100",
        "backend": "cuda",
        "simulated": False,
        "gate": "report",
        "os": {"id": "debian", "version": "12", "codename": "bookworm", "architecture": "amd64"},
        "stack": {
            "name": "r580",
            "exercised": "local-archive",
            "end_of_life": "2028-06-30",
            "limits": [],
            "waiver": None,
        },
        "lock": {"digest": LOCK.digest, "resolved": "2026-11-21"},
        "gpu": {
            "vendor": "nvidia",
            "model": "A100-SXM4-40GB",
            "count": 8,
            "pci_ids": ["10de:20b0"],
            "architecture": "Ampere",
        },
        "platform": {"name": "hgx_a100_8", "nvswitch": True},
        "kernel": {
            "release": "6.1.0-56-amd64",
            "image": "linux-image-6.1.0-56-amd64",
            "headers": "",  # this lock has none
        },
        "driver": {
            "vendor": "nvidia",
            "branch": "580",
            "version": "580.178.04",
            "flavour": "open",
            "module": "nvidia",
            "in_tree": False,
            "dkms": {"name": "nvidia", "package": "nvidia-kernel-open-dkms"},
            "family": ["nvidia-*", "libcuda1"],
            "library": None,
            "options": {},
        },
        "blacklist": ["nouveau", "nova_core", "nova_drm"],
        "fence": [],
        "packages": [
            {
                "name": name,
                "version": "580.178.04-1",
                "architecture": "amd64",
                "sha256": "0" * 64,
                "size": 1,
                "part": "driver",
                "requested": True,
            }
            for name in ("libcuda1", "nvidia-fabricmanager", "nvidia-kernel-open-dkms")
        ],
        "runtime": None,
        "modules": [],
        "policy": {
            "persistence_mode": True,
            "clocks": {"graphics_mhz": 1410, "memory_mhz": 1215},
            "power_limit_watts": 400,
            "ecc": True,
        },
        "baseline": {"network": {"eth0": {"mtu": 9000, "speed_mbps": 100000}}},
        "site": {
            "archives": [
                {
                    "id": "debian",
                    "uri": "http://mirror.example.org/debian",
                    "suite": "bookworm",
                    "components": ["main"],
                    "signed_by": "/usr/share/keyrings/debian-archive-keyring.gpg",
                    "fingerprints": ["B8B80B5B623EAB6AD8775C45B7C5D7D6350947F8"],
                    "key": None,
                }
            ]
        },
    }


def test_accepted_findings_of_a_class_are_in_its_document(tmp_path: Path) -> None:
    """And so on each of its nodes, with who accepted it; a class that has decided nothing says nothing."""
    row = {
        "rule": "other-modules",
        "reason": "seen to build on the canary",
        "owner": "ada",
        "expires": "2027-03-31",
    }
    decided = f"{FILES['classes/a100.yml']}compat: {{unknown: block, accept: [{row}]}}\n"
    assert document(tmp_path / "decided", node_class=decided)["compat"] == {
        "unknown": "block",
        "accept": [row],
    }
    assert "compat" not in document(tmp_path / "silent")


def test_site_exception_is_in_documents_of_its_class_only(tmp_path: Path) -> None:
    row = {
        "rule": "end-of-life",
        "class": "a100",
        "owner": "ada",
        "reason": "moves",
        "expires": "2026-12-31",
    }
    own = SITE.model_copy(update={"exceptions": (SiteException.model_validate(row),)})
    found = document(tmp_path / "with", site=own, stack=STACK.replace("2028-06-30", "2026-10-31"))
    assert found["exceptions"] == [row]
    assert found["stack"]["waiver"] == {"owner": "ada", "reason": "moves", "expires": "2026-12-31"}
    other = SITE.model_copy(
        update={"exceptions": (SiteException.model_validate(row | {"class": "b"}),)}
    )
    without = document(tmp_path / "without", site=other)
    assert "exceptions" not in without
    assert without["digest"] == document(tmp_path / "none")["digest"]


def test_same_inputs_same_bytes(tmp_path: Path) -> None:
    first, second = document(tmp_path / "a"), document(tmp_path / "b")
    assert json.dumps(first) == json.dumps(second)


@pytest.mark.parametrize(
    ("files", "lock", "site", "moves"),
    [
        pytest.param({"node_class": CLASS + "# a comment\n"}, LOCK, SITE, False, id="comment"),
        pytest.param(
            {}, LOCK, Site(archives={"debian": SiteArchive(url="file:///srv/m")}), False, id="site"
        ),
        pytest.param(
            {"node_class": CLASS.replace("ecc: true", "ecc: false")}, LOCK, SITE, True, id="policy"
        ),
        pytest.param({"stack": STACK + "limits: [one]\n"}, LOCK, SITE, True, id="limits"),
        pytest.param({}, LOCK.model_copy(update={"resolved": "2026-11-22"}), SITE, True, id="lock"),
    ],
)
def test_digest_follows_class_stack_and_lock_not_comments_or_site(
    tmp_path: Path, files: dict[str, str], lock: Lock, site: Site, moves: bool
) -> None:
    before = document(tmp_path / "a")
    after = document(tmp_path / "b", site, lock, **files)
    assert (before["digest"] != after["digest"]) is moves


def test_the_sites_gate_commands_are_the_sites(tmp_path: Path) -> None:
    words = SiteGate(
        drain=("/usr/local/sbin/drain-node", "--now"), resume=("/usr/local/sbin/resume-node",)
    )
    found = document(tmp_path, SITE.model_copy(update={"gate": words}))
    assert found["site"]["gate"] == {
        "drain": ["/usr/local/sbin/drain-node", "--now"],
        "resume": ["/usr/local/sbin/resume-node"],
    }
    assert "gate" not in document(tmp_path)["site"]
    assert found["digest"] == document(tmp_path)["digest"]


def test_an_override_may_go_back_to_a_default(tmp_path: Path) -> None:
    """What the class locks, an override binds as application clocks: its `mode` is said, although it is the default."""
    changed = CLASS.replace(
        "clocks: {graphics_mhz: 1410",
        "overrides: [{model: A100-SXM4-40GB, clocks: {mode: application}}]\n  clocks: {mode: locked, graphics_mhz: 1410",
    )
    made = document(tmp_path, node_class=changed)["policy"]
    assert made["clocks"]["mode"] == "locked"
    assert made["overrides"][0]["clocks"] == {"mode": "application"}


def test_no_fabric_manager_without_nvswitch(tmp_path: Path) -> None:
    found = document(tmp_path, node_class=CLASS.replace("platform: hgx_a100_8\n", ""))
    assert [item["name"] for item in found["packages"]] == ["libcuda1", "nvidia-kernel-open-dkms"]
    assert found["platform"] == {"name": None, "nvswitch": False}


@pytest.mark.parametrize(
    ("model", "branch", "flavour"),
    [
        ("A100-SXM4-40GB", "580", "open"),
        ("A100-SXM4-40GB", "535", "proprietary"),
        ("V100-SXM2-32GB", "580", "proprietary"),
        ("B200-SXM-180GB", "580", "open"),
        ("GH200-120GB (96GB HBM3)", "550", "open"),
    ],
)
def test_flavour_auto_is_chosen_by_model_and_branch(
    tmp_path: Path, model: str, branch: str, flavour: str
) -> None:
    stack = STACK.replace("flavour: open", "flavour: auto").replace('"580"', f'"{branch}"')
    stack = stack.replace("2028-06-30", "2024-01-01").replace(
        "  fabric_manager: {package: nvidia-fabricmanager}\n", ""
    )
    node_class = CLASS.replace("A100-SXM4-40GB", model).replace(
        "platform: hgx_a100_8\n", "simulated: true\n"
    )
    node_class = node_class.replace("power_limit_watts: 400", "power_limit_watts: 100")
    assert document(tmp_path, stack=stack, node_class=node_class)["driver"]["flavour"] == flavour


def test_waiver_is_shown_to_those_it_is_given_to(tmp_path: Path) -> None:
    waiver = "waiver: {reason: r, owner: o, expires: 2028-12-31, classes: [%s]}\n"
    found = document(tmp_path / "a", stack=STACK + waiver % "a100")["stack"]["waiver"]
    assert found == {"reason": "r", "owner": "o", "expires": "2028-12-31"}
    assert document(tmp_path / "b", stack=STACK + waiver % "other")["stack"]["waiver"] is None


def _key(number: int) -> tuple[bytes, str]:
    """A public key packet made by hand; only its fingerprint matters here."""
    packet = b"\x99\x00\x08\x04\x00\x00\x00" + bytes([number, 1, 0, 0])
    return packet, openpgp.primary_fingerprints(packet)[0]


def test_key_of_the_site(tmp_path: Path) -> None:
    packet, fingerprint = _key(1)
    (tmp_path / "key.gpg").write_bytes(packet)
    entry = SiteArchive(
        url="http://mirror.example.org/debian", key="key.gpg", fingerprints=(fingerprint,)
    )
    site = Site(archives={"debian": entry}, file=tmp_path / "site.yml")
    archive = document(tmp_path, site)["site"]["archives"][0]
    assert archive["signed_by"] == "/etc/apt/keyrings/goldnode-debian.asc"
    assert archive["fingerprints"] == [fingerprint]
    text = base64.b64decode(archive["key"])
    assert text.decode("ascii").startswith("-----BEGIN PGP PUBLIC KEY BLOCK-----")
    assert openpgp.dearmor(text) == packet


@pytest.mark.parametrize(
    ("content", "fingerprints", "message"),
    [
        pytest.param(
            _key(2)[0], (), f"it holds {_key(2)[1]}, expected B8B80B5B", id="not-the-catalogs"
        ),
        pytest.param(_key(2)[0], (_key(1)[1],), f"it holds {_key(2)[1]}", id="not-the-sites"),
        pytest.param(
            _key(1)[0] + _key(2)[0], (_key(1)[1],), f"it holds {_key(2)[1]}", id="one-too-many"
        ),
        pytest.param(b"junk", (), "no OpenPGP public key", id="no-key"),
        pytest.param(None, (), "cannot be read", id="absent"),
    ],
)
def test_missing_or_wrong_archive_key_is_an_error(
    tmp_path: Path, content: bytes | None, fingerprints: tuple[str, ...], message: str
) -> None:
    if content is not None:
        (tmp_path / "key.gpg").write_bytes(content)
    entry = SiteArchive(
        url="http://mirror.example.org/debian", key="key.gpg", fingerprints=fingerprints
    )
    with pytest.raises(Exception, match=message) as caught:
        document(tmp_path, Site(archives={"debian": entry}, file=tmp_path / "site.yml"))
    assert type(caught.value).__module__ == "goldnode.core.errors"


def test_no_key_at_all(tmp_path: Path) -> None:
    archives = ARCHIVES.replace("    keyring: /usr/share/keyrings/debian-archive-keyring.gpg\n", "")
    with pytest.raises(SigningKeyError, match="the site names no key for archive"):
        document(tmp_path, archives=archives)


def test_nodes_that_use_the_mirror_use_nothing_else(tmp_path: Path) -> None:
    packet, fingerprint = _key(1)
    (tmp_path / "mirror.gpg").write_bytes(packet)
    directory = tmp_path / "mirror"
    section = SiteMirror(
        directory="mirror", url="http://mirror.example.org/goldnode/", key="mirror.gpg"
    )
    site = SITE.model_copy(update={"mirror": section, "file": tmp_path / "site.yml"})
    with pytest.raises(
        LockError,
        match=r"no publication .* of the lock of stack .r580.\. Run `goldnode mirror r580`",
    ):
        document(tmp_path, site)
    where = place(directory, "r580", (item.sha256 for item in LOCK.packages))
    record = Publication(
        where,
        stack="r580",
        id=where.name,
        published="2026-11-21T00:00:00Z",
        fingerprint=fingerprint,
        locks={},
        packages=(),
    )
    where.mkdir(parents=True)
    (where / "publication.json").write_text(json.dumps(record.to_json()))
    found = document(tmp_path, site)
    assert found["site"]["only"] is True
    [archive] = found["site"]["archives"]
    assert openpgp.dearmor(base64.b64decode(archive.pop("key"))) == packet
    assert archive == {
        "id": "goldnode-mirror",
        "uri": f"http://mirror.example.org/goldnode/stacks/r580/{where.name}",
        "suite": "goldnode",
        "components": ["main"],
        "signed_by": "/etc/apt/keyrings/goldnode-mirror.asc",
        "fingerprints": [fingerprint],
    }
    # Where it comes from is the site's matter: two sites of one lock agree on the digest.
    assert found["digest"] == document(tmp_path / "other")["digest"]
    (tmp_path / "mirror.gpg").write_bytes(_key(2)[0])
    with pytest.raises(
        LockError, match=f"signed with {fingerprint}, and nodes would be given {_key(2)[1]}"
    ):
        document(tmp_path, site)


def demo_lock(catalog: Catalog) -> Lock:
    """The committed lock of debian12_r535, with the packages that the demo's stack has beside it."""
    lock = load_lock(catalog.stacks["debian12_r535"].file.with_name("debian12_r535.lock.yml"))
    runtime = catalog.stacks["demo_r535"].item.runtime
    assert runtime is not None
    assert runtime.toolkit is not None
    more = [package(name, "20.10.24+dfsg1-1", part="runtime") for name in runtime.packages]
    more += [package(name, "1.20.0-1", part="runtime") for name in runtime.toolkit.packages]
    return lock.model_copy(update={"packages": [*lock.packages, *more]})


@pytest.mark.parametrize(
    ("when", "options", "named"),
    [
        pytest.param(None, [], True, id="of-every-node"),
        pytest.param(None, ["kernel-headers"], True, id="asked-for-and-of-every-node"),
        pytest.param("kernel-headers", ["kernel-headers"], True, id="asked-for"),
        pytest.param("kernel-headers", [], False, id="of-another-class"),
    ],
)
def test_headers_are_in_the_document_of_a_class_that_gets_them(
    tmp_path: Path, when: str | None, options: list[str], named: bool
) -> None:
    name = "linux-headers-6.1.0-56-amd64"
    row = package(name, part="kernel", when=when)
    lock = LOCK.model_copy(update={"packages": [*LOCK.packages, row]})
    stated = FILES["classes/a100.yml"] + f"options: [{', '.join(options)}]\n"
    found = document(tmp_path, lock=lock, node_class=stated)
    assert found["kernel"]["headers"] == (name if named else "")
    assert (name in {item["name"] for item in found["packages"]}) == named


def test_class_that_asks_for_headers_is_refused_without_them(tmp_path: Path) -> None:
    stated = FILES["classes/a100.yml"] + "options: [kernel-headers]\n"
    with pytest.raises(LockError, match="asks for kernel-headers, which the lock of stack"):
        document(tmp_path, node_class=stated)


@pytest.mark.parametrize("name", ["demo_a100", "cpu_only", "mi300x"])
def test_our_classes_with_their_locks(tmp_path: Path, name: str) -> None:
    catalog = load_catalog([builtin_catalog()])
    urls = {
        "debian": SiteArchive(url="http://d.example.org/"),
        "debian-security": SiteArchive(url="http://s.example.org"),
    }
    # The demo's stack is locked where the demo runs; its lock is that of debian12_r535 with docker and the toolkit.
    packet, fingerprint = _key(1)
    (tmp_path / "key.gpg").write_bytes(packet)
    urls["nvidia-container-toolkit"] = SiteArchive(
        url="http://t.example.org", key="key.gpg", fingerprints=(fingerprint,)
    )
    site = Site(archives=urls, file=tmp_path / "site.yml")
    found = class_document(name, catalog, site, {"demo_r535": demo_lock(catalog)}, on=DAY)
    assert documents.valid(found) == found
    names = {item["name"] for item in found["packages"]}
    assert found["kernel"]["image"] in names
    if found["driver"] is not None and not found["driver"]["in_tree"]:
        assert found["kernel"]["headers"] in names
    else:
        assert found["kernel"]["headers"] == "", "no module is built on these nodes"
    if name == "cpu_only":
        assert (found["gpu"], found["driver"], found["blacklist"]) == (None, None, [])
        assert (found["runtime"]["engine"], found["runtime"]["toolkit"]) == ("docker", None)
    if name == "mi300x":
        assert (found["driver"]["module"], found["driver"]["in_tree"]) == ("amdgpu", True)
        assert (found["driver"]["version"], found["driver"]["dkms"], found["blacklist"]) == (
            None,
            None,
            [],
        )
        assert "firmware-amd-graphics" in names
        assert found["runtime"]["toolkit"] | {"why": ""} == {
            "vendor": "amd",
            "version": None,
            "mode": "cdi",
            "why": "",
        }
    if name == "demo_a100":
        assert found["simulated"] is True
        assert found["driver"]["module"] == "nvidia-current"
        assert found["stack"]["waiver"] is not None
        assert found["runtime"]["toolkit"]["mode"] == "legacy", "docker 20.10 reads no CDI specs"
        assert {"docker.io", "libnvidia-container1"} <= names


def test_class_without_a_lock() -> None:
    with pytest.raises(LockError, match=r"has no lock .*Run `goldnode lock debian12_r580`"):
        class_document("l4", load_catalog([builtin_catalog()]), Site(), on=DAY)


FOLLOW = "follow: {channel: https://c.example.org/, service: https://s.example.org/}\n"


def test_evidence_that_nodes_verify_is_in_their_document(tmp_path: Path) -> None:
    asks = "evidence: {kinds: [canary, disk], max_age_days: 14, follow: [disk]}\n"
    made = document(tmp_path / "a", node_class=CLASS + FOLLOW + asks)
    assert made["follow"]["evidence"] == {"kinds": ["disk"], "max_age_days": 14}
    asks = "evidence: {kinds: [canary, disk]}\n"
    made = document(tmp_path / "b", node_class=CLASS + FOLLOW + asks)
    assert "evidence" not in made["follow"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (FOLLOW + "evidence: {kinds: [canary], follow: [disk]}\n", "`follow` names disk"),
        ("evidence: {kinds: [disk], follow: [disk]}\n", "the class has no `follow`"),
    ],
)
def test_evidence_that_no_node_can_verify_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(CatalogError, match=why):
        document(tmp_path, node_class=CLASS + text)
