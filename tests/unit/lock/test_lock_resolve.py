"""Resolution against local signed archives: what goldnode chooses, and what it makes of apt's answer."""

from __future__ import annotations

import datetime as dt
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.lock import archive as shapes
from tests.unit.lock.archive import Archive, SigningKey
from tests.unit.lock.conftest import Place
from tests.unit.lock.mirrors import resolve

from goldnode.core.errors import GoldnodeError, LockError, SigningKeyError, SiteError, VanishedError
from goldnode.lock.aptroot import apt_root
from goldnode.lock.model import Lock, dump_lock, find_lock, load_lock, write_lock
from goldnode.lock.resolve import MovedPackage, apt_sources, open_archives

DAY = dt.date(2026, 11, 21)


def locked(place: Place, **options: Any) -> Lock:
    return resolve(*place.load(), today=DAY, **options)


def moved(lock: Lock, place: Place) -> list[MovedPackage]:
    with open_archives(*place.load()) as archives:
        return archives.check(lock)


def by_name(lock: Lock) -> dict[str, str]:
    return {package.name: package.version for package in lock.packages}


def test_the_set_that_moves_as_one(place: Place, near: Archive) -> None:
    lock = locked(place)
    assert (lock.kernel_release, lock.driver_version, lock.resolved) == (
        "6.1.0-50-amd64",
        "535.261.03",
        "2026-11-21",
    )
    found = {item.name: (item.set, item.part, item.requested, item.why) for item in lock.packages}
    asked, head = "requested by the stack", "linux-headers-6.1.0-50-amd64"
    assert found == {
        "dkms": ("base", "base", False, "needed by nvidia-kernel-dkms"),
        "firmware-nvidia-gsp": ("stack", "driver", True, asked),
        "gcc": ("base", "base", False, f"needed by {head}"),
        "glx-alternative-nvidia": ("base", "base", False, "needed by nvidia-alternative"),
        "kmod": ("base", "base", False, "needed by linux-image-6.1.0-50-amd64"),
        "libc6": ("base", "base", False, "needed by libcuda1"),
        "libcuda1": ("stack", "driver", True, asked),
        head: ("stack", "kernel", True, asked),
        "linux-headers-6.1.0-50-common": ("stack", "kernel", False, f"needed by {head}"),
        "linux-image-6.1.0-50-amd64": ("stack", "kernel", True, asked),
        "linux-kbuild-6.1": ("stack", "kernel", False, f"needed by {head}"),
        # The kernel's own source, but reached through the compiler only: it is the base system's.
        "linux-libc-dev": ("base", "base", False, "needed by gcc"),
        "nvidia-alternative": ("stack", "driver", False, "needed by libcuda1"),
        "nvidia-kernel-dkms": ("stack", "driver", True, asked),
        "nvidia-kernel-support": ("stack", "driver", False, "needed by nvidia-kernel-dkms"),
        "nvidia-modprobe": ("stack", "driver", True, asked),
    }
    record = {item["Package"]: item for item in near.stanzas}
    for item in lock.packages:
        stanza = record[item.name]
        assert (item.sha256, str(item.size)) == (stanza["SHA256"], stanza["Size"])
        assert (item.archive, item.path) == ("near", stanza["Filename"])
    assert [entry.model_dump() for entry in lock.archives] == [
        {"id": "near", "suite": "bookworm", "components": ["main"]}
    ]


def test_same_archive_same_bytes_and_back(place: Place, near: Archive, tmp_path: Path) -> None:
    first, second = locked(place), locked(place)
    assert dump_lock(first) == dump_lock(second)
    again = load_lock(write_lock(first, tmp_path / "out"))
    assert again == first
    assert again.digest == first.digest


@pytest.mark.parametrize(
    ("kernels", "chosen"),
    [
        pytest.param(
            [
                ("6.1.0-50-amd64", "6.1.176-1", True, True),
                ("6.1.0-56-amd64", "6.1.192-2", True, True),
            ],
            "6.1.0-56-amd64",
            id="newest",
        ),
        pytest.param(
            [
                ("6.1.0-50-amd64", "6.1.176-1", True, True),
                ("6.1.0-56-amd64", "6.1.192-2", True, False),
            ],
            "6.1.0-50-amd64",
            id="newest-without-headers",
        ),
        pytest.param(
            [
                ("6.1.0-50-amd64", "6.1.176-1", True, True),
                ("6.1.0-56-cloud-amd64", "6.1.192-2", True, True),
            ],
            "6.1.0-50-amd64",
            id="other-flavour",
        ),
        pytest.param(
            [
                ("6.1.0-50-amd64", "6.1.176-1", True, True),
                ("6.12.117+deb12-amd64", "6.12.117-1", True, True),
            ],
            "6.1.0-50-amd64",
            id="other-series",
        ),
        pytest.param(
            [
                ("6.1.0-9-amd64", "6.1.27-1", True, True),
                ("6.1.0-50-amd64", "6.1.176-1", True, True),
            ],
            "6.1.0-50-amd64",
            id="order-is-not-alphabetical",
        ),
        pytest.param(
            [("6.1-amd64", "6.1.999-1", True, True), ("6.1.0-50-amd64", "6.1.176-1", True, True)],
            "6.1.0-50-amd64",
            id="metapackage",
        ),
    ],
)
def test_newest_complete_kernel_is_chosen(
    place: Place,
    tmp_path: Path,
    key: SigningKey,
    kernels: list[tuple[str, str, bool, bool]],
    chosen: str,
) -> None:
    archive = Archive(tmp_path / "near", key)
    shapes.base(archive)
    for release, version, image, headers in kernels:
        shapes.kernel(archive, release, version, image=image, headers=headers)
    shapes.driver(archive, "535.261.03")
    shapes.rest_of_driver(archive)
    archive.publish()
    assert locked(place).kernel_release == chosen


def test_headers_of_another_version_do_not_count(place: Place, near: Archive) -> None:
    near.add("linux-image-6.1.0-60-amd64", "6.1.200-2", source="linux-signed-amd64")
    near.add("linux-headers-6.1.0-60-amd64", "6.1.200-1", source="linux")
    near.publish()
    assert locked(place).kernel_release == "6.1.0-50-amd64"


def test_driver_newest_of_the_branch(place: Place, near: Archive) -> None:
    shapes.driver(near, "535.309.01", revision="-0+deb12u1")
    shapes.driver(near, "550.163.01")
    near.publish()
    lock = locked(place)
    assert lock.driver_version == "535.309.01"
    assert by_name(lock)["nvidia-alternative"] == "535.309.01-0+deb12u1"


def test_driver_that_is_not_complete_is_passed_over(place: Place, near: Archive) -> None:
    shapes.driver(near, "535.309.01", firmware=False)
    near.publish()
    lock = locked(place)
    assert lock.driver_version == "535.261.03"
    # Its siblings went with it, although the archive has newer ones.
    assert {
        by_name(lock)[name] for name in ("libcuda1", "nvidia-alternative", "nvidia-kernel-support")
    } == {"535.261.03-1"}


def test_driver_exact_older_version(place: Place, near: Archive) -> None:
    shapes.driver(near, "535.309.01")
    near.publish()
    place.stack(driver_version="535.261.03")
    lock = locked(place)
    assert lock.driver_version == "535.261.03"
    assert by_name(lock)["nvidia-alternative"] == "535.261.03-1"


@pytest.mark.parametrize(
    ("changes", "error", "parts"),
    [
        pytest.param(
            {"driver_version": "535.247.01"},
            VanishedError,
            [
                "small.yml:",
                "nvidia-kernel-dkms 535.247.01 is in none of the archives near",
                "have 535.261.03",
            ],
            id="driver-version",
        ),
        pytest.param(
            {"driver_branch": "470"},
            VanishedError,
            ["nvidia-kernel-dkms of branch 470", "the archives have 535.261.03"],
            id="driver-branch",
        ),
        pytest.param(
            {"kernel": {"release": "6.1.0-47-amd64"}},
            VanishedError,
            [
                'kernel release "6.1.0-47-amd64"',
                "the archives have 6.1.0-50-amd64",
                "mirror that kept it",
            ],
            id="kernel-release",
        ),
        pytest.param(
            {"kernel": {"series": "6.6", "flavour": "amd64"}},
            VanishedError,
            ["kernel of series 6.6", "6.1.0-50-amd64"],
            id="kernel-series",
        ),
        pytest.param(
            {"packages": ["rocminfo"]},
            VanishedError,
            ['package "rocminfo" is in none of the archives near', "add the archive that has it"],
            id="package",
        ),
        pytest.param(
            {
                "driver_packages": [
                    "nvidia-kernel-dkms",
                    "firmware-nvidia-gsp",
                    "libcuda1",
                    "nvidia-modprob",
                ]
            },
            VanishedError,
            ['package "nvidia-modprob"', 'Use "nvidia-modprobe"'],
            id="package-misspelt",
        ),
        pytest.param(
            {"modules": [{"name": "gdrdrv", "package": "gdrdrv-dkms", "dkms": "gdrdrv"}]},
            VanishedError,
            ["small.yml:", 'package "gdrdrv-dkms" is in none of the archives near'],
            id="package-of-a-module",
        ),
    ],
)
def test_version_or_package_absent_from_the_archives_is_an_error(
    place: Place,
    near: Archive,
    changes: dict[str, Any],
    error: type[GoldnodeError],
    parts: list[str],
) -> None:
    place.stack(**({"end_of_life": {"date": "2024-01-01", "source": "facts"}} | changes))
    with pytest.raises(error) as caught:
        locked(place)
    for part in parts:
        assert part in str(caught.value)


def test_kernel_without_headers_is_an_error(place: Place, near: Archive) -> None:
    near.add("linux-image-6.6.1-amd64", "6.6.1-1")
    near.publish()
    place.stack(kernel={"series": "6.6", "flavour": "amd64"})
    with pytest.raises(LockError, match="no headers of the same version"):
        locked(place)


def test_incomplete_driver_is_an_error_with_the_missing_package(
    place: Place, near: Archive
) -> None:
    near.remove("firmware-nvidia-gsp", "535.261.03-1")
    near.add("firmware-nvidia-gsp", "535.247.01-1")
    near.publish()
    with pytest.raises(
        LockError,
        match=r"no version of branch 535 is complete: 535\.261\.03 lacks firmware-nvidia-gsp",
    ):
        locked(place)


def test_apt_finds_no_way(place: Place, near: Archive) -> None:
    near.add("wants-more", "1-1", depends="libc6 (>= 9)")
    near.publish()
    place.stack(packages=["wants-more"])
    with pytest.raises(LockError, match=r"apt finds no way .*wants-more : Depends: libc6 \(>= 9\)"):
        locked(place)


def test_flat_archive_and_fabric_manager(
    place: Place, near: Archive, tmp_path: Path, key: SigningKey
) -> None:
    near.stanzas = [
        item for item in near.stanzas if item.get("Source") != "nvidia-graphics-drivers"
    ]
    near.publish()
    flat = Archive(tmp_path / "flat", key, suite="/", components=())
    shapes.driver(flat, "580.178.04", fabric=True)
    flat.publish()
    place.site(near=f"file://{tmp_path}/near", flat=f"file://{tmp_path}/flat")
    place.stack(
        archives=["near", "flat"],
        driver_branch="580",
        driver_flavour="open",
        driver_fabric_manager={"package": "nvidia-fabricmanager"},
    )
    lock = locked(place)
    found = {item.name: item for item in lock.packages}
    assert found["libcuda1"].archive == "flat"
    assert found["libcuda1"].path == "libcuda1_580.178.04-1_amd64.deb"
    assert found["libc6"].archive == "near"
    manager = found["nvidia-fabricmanager"]
    assert (manager.version, manager.set, manager.part, manager.when) == (
        "580.178.04-1",
        "stack",
        "driver",
        "nvswitch",
    )
    assert (found["libnvidia-nscq"].set, found["libnvidia-nscq"].when) == ("stack", "nvswitch")
    assert found["libcuda1"].when is None
    assert "nvidia-fabricmanager" not in {item.name for item in lock.stack_set(nvswitch=False)}
    assert "nvidia-fabricmanager" in {item.name for item in lock.stack_set(nvswitch=True)}


@pytest.mark.parametrize("below", ["near-flat", "near/flat"])
def test_address_that_begins_another(
    place: Place, near: Archive, tmp_path: Path, key: SigningKey, below: str
) -> None:
    """The address of Debian's security archive begins with that of Debian's archive."""
    flat = Archive(tmp_path / below, key, suite="/", components=())
    flat.add("extra", "1-1")
    flat.publish()
    place.site(near=f"file://{tmp_path}/near", flat=f"file://{tmp_path}/{below}")
    place.stack(archives=["near", "flat"], packages=["extra"])
    extra = next(item for item in locked(place).packages if item.name == "extra")
    assert (extra.archive, extra.path, extra.set, extra.part) == (
        "flat",
        "extra_1-1_amd64.deb",
        "stack",
        "runtime",
    )


def test_packages_of_other_modules(place: Place, near: Archive) -> None:
    near.add("mofed-dkms", "24.10-1", source="mofed", depends="dkms, mofed-common")
    near.add("mofed-common", "24.10-1", source="mofed")
    near.publish()
    rows = [
        {"name": name, "package": "mofed-dkms", "dkms": "mofed", "before_driver": True}
        for name in ("ib_core", "mlx5_core")
    ]
    place.stack(modules=[*rows, {"name": "nvidia-current-peermem", "after": ["ib_core"]}])
    found = {
        item.name: (item.version, item.set, item.part, item.requested)
        for item in locked(place).packages
    }
    assert found["mofed-dkms"] == ("24.10-1", "stack", "module", True)
    assert found["mofed-common"] == ("24.10-1", "stack", "module", False), (
        "what comes of the same source moves along"
    )
    assert found["dkms"][1] == "base"


def test_stack_without_a_driver_locks_kernel_and_base_only(place: Place, near: Archive) -> None:
    place.stack(driver=None)
    lock = locked(place)
    assert lock.driver_version is None
    assert {item.part for item in lock.packages} == {"kernel", "base"}


def test_on_a_given_status(place: Place, tmp_path: Path, key: SigningKey) -> None:
    """With the base system in a status file, an archive of the stack alone is enough."""
    archive = Archive(tmp_path / "near", key)
    shapes.kernel(archive, "6.1.0-50-amd64", "6.1.176-1")
    shapes.driver(archive, "535.261.03")
    shapes.rest_of_driver(archive)
    archive.publish()
    with pytest.raises(LockError, match="apt finds no way"):
        locked(place)
    status = tmp_path / "status"
    there = {"libc6": "2.36-9", "gcc": "4:12.2.0-3", "kmod": "30-1", "dkms": "3.0.10-8"}
    status.write_text(
        "\n".join(
            f"Package: {name}\nStatus: install ok installed\nVersion: {version}\nArchitecture: amd64\n"
            "Maintainer: nobody <nobody@example.org>\nDescription: test\n"
            for name, version in there.items()
        ),
        encoding="utf-8",
    )
    lock = locked(place, status=status)
    assert not set(there) & set(by_name(lock))
    assert lock.kernel_release == "6.1.0-50-amd64"


def test_vanished_and_changed_packages_are_reported(place: Place, near: Archive) -> None:
    lock = locked(place)
    assert moved(lock, place) == []
    near.remove("libcuda1", "535.261.03-1")
    near.add("libcuda1", "535.309.01-1")
    near.remove("kmod", "30-1")
    near.add("kmod", "30-1", salt="rebuilt in place")
    near.publish()
    assert [(finding.kind, finding.message) for finding in moved(lock, place)] == [
        ("changed", "kmod 30-1 has other bytes than were locked"),
        ("vanished", "libcuda1 535.261.03-1 has vanished; the archives have 535.309.01-1"),
    ]


def test_nothing_of_this_machines_apt_leaks_in(
    place: Place, near: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = locked(place)
    trap = tmp_path / "trap.conf"
    trap.write_text(
        'APT::Install-Recommends "true"; Dir::State::lists "/nowhere"; APT::Default-Release "no";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(trap))
    assert locked(place) == expected


class _Server(http.server.ThreadingHTTPServer):
    asked: list[str]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[_Server]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(tmp_path))

        def do_GET(self) -> None:
            made.asked.append(self.path)
            super().do_GET()

        def log_message(self, *arguments: Any) -> None:
            """Not in the test's output."""

    made = _Server(("127.0.0.1", 0), Handler)
    made.asked = []
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    thread.join()


def test_lock_over_http_equals_the_lock_over_files(
    place: Place, near: Archive, server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    over_files = locked(place)
    place.site(near=f"http://127.0.0.1:{server.server_port}/near")
    assert locked(place) == over_files
    assert "/near/dists/bookworm/InRelease" in server.asked
    # The lock tells where a package is in its archive, not where the archive is.
    assert "127.0.0.1" not in dump_lock(over_files)
    server.asked.clear()
    locked(place)
    assert not [path for path in server.asked if "Packages" in path], (
        "an unchanged index was fetched again"
    )


@pytest.mark.parametrize("armored", [True, False])
def test_wrong_key_is_refused_before_anything_is_fetched(
    place: Place, near: Archive, server: _Server, other_key: SigningKey, armored: bool
) -> None:
    place.site(near=f"http://127.0.0.1:{server.server_port}/near")
    other_key.export(place.root / "keys/test.asc", armored=armored)
    with pytest.raises(SigningKeyError) as caught:
        locked(place)
    assert other_key.fingerprint in str(caught.value)
    assert place.key.fingerprint in str(caught.value)
    assert server.asked == []


def test_archive_signed_by_another_key(place: Place, near: Archive, other_key: SigningKey) -> None:
    near.key = other_key
    near.publish()
    with pytest.raises(
        LockError,
        match=r'archive "near" cannot be used: its indexes are signed by a key that is not pinned .*NO_PUBKEY',
    ):
        locked(place)


def test_no_key_and_no_address(place: Place, near: Archive) -> None:
    (place.root / "site.yml").write_text(
        f"archives: {{near: {{url: 'file://{place.root}/near'}}}}\n"
    )
    with pytest.raises(SigningKeyError, match="the site names no key"):
        locked(place)
    (place.root / "site.yml").write_text("{}\n")
    with pytest.raises((SiteError, SigningKeyError)):
        locked(place)


def test_archive_that_is_not_there(place: Place) -> None:
    with pytest.raises(LockError, match='archive "near" cannot be used: nothing is at'):
        locked(place)


def test_lock_of_the_first_directory_wins_and_a_missing_one_is_an_error(
    place: Place, near: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, _, site = place.load()
    with pytest.raises(LockError, match=r'stack "small" has no lock.*Run `goldnode lock small`\.'):
        find_lock(entry, site)
    lock = locked(place)
    sibling = write_lock(lock, entry.file.parent)
    assert find_lock(entry, site)[1] == sibling
    of_site = write_lock(lock, tmp_path / "of-site")
    site = site.model_copy(update={"locks": str(tmp_path / "of-site")})
    assert find_lock(entry, site)[1] == of_site
    (tmp_path / "nothing").mkdir()
    monkeypatch.setenv("GOLDNODE_LOCKS", f"{tmp_path}/nothing:{tmp_path}/first")
    first = write_lock(lock, tmp_path / "first")
    assert find_lock(entry, site)[1] == first
    (tmp_path / "nothing/small.lock.yml").mkdir()
    with pytest.raises(
        LockError,
        match=r"nothing/small\.lock\.yml: this is a directory, expected a lock\. Move it away\.",
    ):
        find_lock(entry, site)
    monkeypatch.setenv("GOLDNODE_LOCKS", f"{tmp_path}/gone")
    with pytest.raises(SiteError, match=r"GOLDNODE_LOCKS names .*/gone, which is not a directory"):
        find_lock(entry, site)


@pytest.mark.parametrize(
    ("changes", "stale"),
    [
        pytest.param({"packages": ["kmod"]}, True, id="packages"),
        pytest.param({"kernel": {"release": "6.1.0-50-amd64"}}, True, id="kernel"),
        pytest.param({"driver_version": "535.261.03"}, True, id="driver"),
        pytest.param({"archives": ["near", "flat"]}, True, id="archives"),
        pytest.param({"modules": [{"name": "gdrdrv", "package": "kmod"}]}, True, id="module"),
        pytest.param(
            {"modules": [{"name": "nvidia-current-peermem"}]}, False, id="module-of-the-driver"
        ),
        pytest.param({"limits": ["a new sentence"]}, False, id="limits"),
        pytest.param(
            {"waiver": {"reason": "r", "owner": "o", "expires": "2027-01-01"}}, False, id="waiver"
        ),
    ],
)
def test_lock_is_stale_when_its_stack_asks_for_something_else(
    place: Place, near: Archive, changes: dict[str, Any], stale: bool
) -> None:
    entry, _, site = place.load()
    write_lock(locked(place), entry.file.parent)
    place.stack(**changes)
    entry, _, site = place.load()
    if not stale:
        assert find_lock(entry, site)[0].stack == "small"
        return
    with pytest.raises(
        LockError, match=r"stale: .*small\.yml asks for something else since 2026-11-21"
    ):
        find_lock(entry, site)


def test_lock_of_another_stack(place: Place, near: Archive) -> None:
    entry, _, site = place.load()
    write_lock(locked(place).model_copy(update={"stack": "large"}), entry.file.parent).rename(
        entry.file.with_name("small.lock.yml")
    )
    with pytest.raises(LockError, match='lock of stack "large", not of "small"'):
        find_lock(entry, site)


def test_damaged_lock_names_its_line(place: Place, near: Archive) -> None:
    entry, _, site = place.load()
    path = write_lock(locked(place), entry.file.parent)
    lines = path.read_text().splitlines()
    number = next(index for index, line in enumerate(lines) if "name: libcuda1" in line)
    lines[number] = lines[number].replace("size: ", "sise: ")
    path.write_text("\n".join(lines))
    with pytest.raises(LockError) as caught:
        find_lock(entry, site)
    assert caught.value.line == number + 1


def test_offline_needs_a_cache_and_uses_it(
    place: Place, near: Archive, server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Over http: apt reads the indexes of a file: archive in place, so there is nothing it could keep.
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    place.site(near=f"http://127.0.0.1:{server.server_port}/near")
    with pytest.raises(LockError, match="never read before"):
        locked(place, offline=True)
    online = locked(place)
    shapes.driver(near, "535.309.01")
    near.publish()
    server.asked.clear()
    assert locked(place, offline=True) == online
    assert server.asked == []
    assert locked(place).driver_version == "535.309.01"


def test_an_archive_that_stops_answering_is_no_old_answer(
    place: Place, near: Archive, server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """apt by itself would go on with what it has and exit 0."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    place.site(near=f"http://127.0.0.1:{server.server_port}/near")
    locked(place)
    server.shutdown()
    server.server_close()
    with pytest.raises(LockError, match="refuses the connection"):
        locked(place)


@pytest.mark.parametrize("below", ["near-flat", "near/flat"])
def test_overlapping_archives_each_offer_their_own_versions(
    place: Place, near: Archive, tmp_path: Path, key: SigningKey, below: str
) -> None:
    flat = Archive(tmp_path / below, key, suite="/", components=())
    for archive in (flat, near):
        archive.add("extra", "1-1")
    flat.add("extra", "1-2")
    flat.publish()
    near.publish()
    guard = Archive(tmp_path / "near", key, suite="bookworm-security")
    guard.add("extra", "1-3")
    guard.publish()
    place.site(
        near=f"file://{tmp_path}/near",
        flat=f"file://{tmp_path}/{below}",
        guard=f"file://{tmp_path}/near",
    )
    place.stack(archives=["near", "flat", "guard"])
    lock = locked(place)
    with apt_root(apt_sources(*place.load()), "amd64") as root:
        root.update()
        assert root.origins(["extra"]) == {
            ("extra", "1-1"): {"near", "flat"},
            ("extra", "1-2"): {"flat"},
            ("extra", "1-3"): {"guard"},
        }
    place.stack(archives=["near", "flat", "guard"], packages=["extra"])
    with open_archives(*place.load()) as archives:
        old = lock.model_copy(
            update={
                "packages": [
                    *lock.packages,
                    lock.packages[0].model_copy(update={"name": "extra", "version": "1-1"}),
                ]
            }
        )
        assert archives.newer(old, ["flat", "near"]) == {"extra": ("1-2", "flat")}
        assert archives.newer(old, ["flat", "guard"]) == {"extra": ("1-3", "guard")}


def test_a_version_that_only_the_given_status_has_is_offered_by_no_archive(
    place: Place, near: Archive, tmp_path: Path
) -> None:
    status = tmp_path / "status"
    status.write_text(
        "Package: libcuda1\nStatus: install ok installed\nVersion: 535.999.01-1\nArchitecture: amd64\nMaintainer: n <n@example.org>\nDescription: t\n"
    )
    with apt_root(apt_sources(*place.load()), "amd64") as root:
        root.use_status(status)
        root.update()
        assert [stanza["Version"] for stanza in root.show(["libcuda1"])] == ["535.261.03-1"]
