"""Invalid inputs and unfavourable states: each yields the right message for the user and leaves the node
unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from tests.e2e.conftest import World
from tests.e2e.support import Run, Site, inventory, site_yml, succeeded
from tests.simulators import apt_archive

from goldnode.lock.model import load_lock, write_lock
from goldnode.testing.lab.nodes import LabNode, NodeSpec

pytestmark = pytest.mark.lab

Make = Callable[..., tuple[LabNode, Site]]


@pytest.fixture(scope="module")
def bare(make: Make) -> tuple[LabNode, Site]:
    """One node that every test of this module tries to change and none may."""
    return make("refused", "e2e_r535", "debian12_r535")


@pytest.fixture(autouse=True)
def untouched(world: World, bare: tuple[LabNode, Site]) -> Iterator[None]:
    """After each test: no package of the stack, dpkg in order, the archive as it should be."""
    yield
    world.publish()
    assert not bare[0].run("sh", "-c", "dpkg -l | grep -E 'nvidia|linux-image'", check=False).output
    assert bare[0].run("dpkg", "--audit").output == ""


def refused(run: Run, code: str, *texts: str) -> None:
    """The run failed for this reason, before it touched anything."""
    assert run.rc != 0
    flat = re.sub(r"\s+", " ", run.output)
    for text in (f"[{code}]", *texts):
        assert text in flat, run.output[-3000:]
    assert set(run.changed.values()) == {0}


def failed(run: Run, *texts: str) -> None:
    """The run failed, and says these things."""
    assert run.rc != 0
    flat = re.sub(r"\s+", " ", run.output)
    for text in texts:
        assert text in flat, run.output[-3000:]


def hosts_of(tmp_path: Path, node: LabNode, group: str = "e2e_r535") -> Path:
    return inventory(tmp_path / "inventory", {group: [node]})


def test_node_of_another_release_is_refused(
    world: World, bare: tuple[LabNode, Site], tmp_path: Path
) -> None:
    node, _ = bare
    site = world.site("trixie", "trixie")
    trixie = world.node("trixie", "e2e_r550", "debian13")
    world.lock(site, trixie, "debian13_r550")
    refused(
        site_yml(hosts_of(tmp_path, node, "e2e_r550"), site=site),
        "wrong-os",
        "The node runs debian 12",
        "is for debian 13",
    )


def test_too_small_boot_partition_is_refused(bare: tuple[LabNode, Site], tmp_path: Path) -> None:
    node, site = bare
    node.shell("mount -t tmpfs -o size=20m tmpfs /boot")
    try:
        refused(
            site_yml(hosts_of(tmp_path, node), site=site),
            "no-space",
            "/boot has 20 MiB free and 160 MiB are needed",
            "enlarge it",
        )
    finally:
        node.shell("umount /boot")


def test_locked_dpkg_is_refused_with_the_process_that_holds_it(
    bare: tuple[LabNode, Site], tmp_path: Path
) -> None:
    node, site = bare
    holder = "import fcntl, time; f = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(f, fcntl.LOCK_EX); time.sleep(600)"
    node.run("systemd-run", "--unit=holder", "python3", "-c", holder)
    try:
        run = site_yml(hosts_of(tmp_path, node), "-e", "goldnode_lock_timeout=1", site=site)
        refused(
            run,
            "dpkg-locked",
            "dpkg is locked by process",
            "(python3)",
            "never remove the lock file",
        )
    finally:
        node.run("systemctl", "stop", "holder")


def test_a_gpu_in_use(bare: tuple[LabNode, Site], tmp_path: Path) -> None:
    node, site = bare
    node.shell(
        "mknod /dev/nvidia0 c 1 3; systemd-run --unit=train sh -c 'exec sleep 600 < /dev/nvidia0'"
    )
    try:
        refused(
            site_yml(hosts_of(tmp_path, node), site=site),
            "gpu-in-use",
            "sleep, unit train.service",
            "Drain the node",
        )
    finally:
        node.shell("systemctl stop train; rm /dev/nvidia0")


def test_a_dpkg_that_another_party_left_broken(
    world: World, bare: tuple[LabNode, Site], tmp_path: Path
) -> None:
    node, site = bare
    deb = next(world.directory.glob("archive/debian/pool/bookworm/*/libstandin-base_*.deb"))
    node.put({"/root/x.deb": deb.read_bytes()})
    node.run("dpkg", "--unpack", "/root/x.deb")
    try:
        refused(
            site_yml(hosts_of(tmp_path, node), site=site),
            "dpkg-broken",
            "libstandin-base not wholly installed",
            "dpkg --configure -a",
        )
    finally:
        node.run("dpkg", "--purge", "libstandin-base")


def test_foreign_vendor_repository_is_refused_and_stays(
    bare: tuple[LabNode, Site], tmp_path: Path
) -> None:
    node, site = bare
    name = "/etc/apt/sources.list.d/cuda.list"
    node.put({name: b"deb http://vendor.example/compute/cuda/repos/debian12/x86_64/ /\n"})
    try:
        refused(
            site_yml(hosts_of(tmp_path, node), site=site),
            "foreign-source",
            f"{name}:1",
            "goldnode removes only what it wrote",
        )
        assert node.run("test", "-f", name).rc == 0
    finally:
        node.run("rm", name)


def test_a_driver_from_a_run_file(bare: tuple[LabNode, Site], tmp_path: Path) -> None:
    node, site = bare
    node.shell("touch /usr/bin/nvidia-uninstall")
    try:
        refused(
            site_yml(hosts_of(tmp_path, node), site=site), "runfile", "/usr/bin/nvidia-uninstall"
        )
    finally:
        node.run("rm", "/usr/bin/nvidia-uninstall")


def test_an_archive_signed_by_another_key(
    world: World, bare: tuple[LabNode, Site], tmp_path: Path
) -> None:
    node, site = bare
    world.publish(key="wrong")
    failed(
        site_yml(hosts_of(tmp_path, node), site=site),
        "apt cannot read the stack's archives",
        "NO_PUBKEY",
    )


def test_a_key_that_is_not_the_pinned_one(
    world: World, bare: tuple[LabNode, Site], tmp_path: Path
) -> None:
    node, site = bare
    text = (site.site or Path()).read_text()
    other = tmp_path / "site.yml"
    other.write_text(re.sub(r"[0-9A-F]{40}", "F" * 40, text))
    run = site_yml(hosts_of(tmp_path, node), site=Site(site.catalog, other, site.locks))
    failed(run, "F" * 40, "this is not the key of archive")


def test_a_locked_version_that_has_vanished(
    world: World, bare: tuple[LabNode, Site], tmp_path: Path
) -> None:
    node, site = bare
    world.publish(withdraw=["*_535.309.01-*"])
    run = site_yml(hosts_of(tmp_path, node), site=site)
    failed(
        run,
        "have vanished from the archives",
        "is offered as 535.261.03-1+standin1",
        "goldnode lock debian12_r535",
        "No package was changed",
    )


def test_other_bytes_under_the_locked_version(bare: tuple[LabNode, Site], tmp_path: Path) -> None:
    node, site = bare
    locks = tmp_path / "locks"
    locks.mkdir()
    lock = load_lock((site.locks or Path()) / "debian12_r535.lock.yml")
    rows = [
        row.model_copy(update={"sha256": "0" * 64}) if row.name == "libcuda1" else row
        for row in lock.packages
    ]
    write_lock(lock.model_copy(update={"packages": rows}), locks)
    run = site_yml(hosts_of(tmp_path, node), site=Site(site.catalog, site.site, locks))
    failed(
        run,
        "libcuda1=535.309.01-0+deb12u1+standin1: the archive offers other bytes",
        "No package was changed",
    )


def test_a_lock_edited_by_hand(bare: tuple[LabNode, Site], tmp_path: Path) -> None:
    node, site = bare
    text = ((site.locks or Path()) / "debian12_r535.lock.yml").read_text()
    (tmp_path / "debian12_r535.lock.yml").write_text(
        text.replace("535.309.01-0+deb12u1+standin1", "535.261.03-1+standin1", 1)
    )
    run = site_yml(hosts_of(tmp_path, node), site=Site(site.catalog, site.site, tmp_path))
    failed(
        run,
        "debian12_r535.lock.yml:4: this lock was edited after goldnode wrote it",
        "goldnode lock debian12_r535",
    )


@pytest.mark.parametrize(
    ("groups", "texts"),
    [
        (["unknown_class"], ["Host refused is of no node class", "goldnode classes"]),
        (["e2e_r535", "e2e_cpu"], ["refused", "e2e_r535", "e2e_cpu", "hosts.yml:"]),
    ],
)
def test_host_of_no_class_or_of_two_classes_fails(
    bare: tuple[LabNode, Site], tmp_path: Path, groups: list[str], texts: list[str]
) -> None:
    node, site = bare
    failed(
        site_yml(inventory(tmp_path / "inventory", {group: [node] for group in groups}), site=site),
        *texts,
    )


def test_a_pattern_that_matches_no_host(bare: tuple[LabNode, Site], tmp_path: Path) -> None:
    node, site = bare
    failed(site_yml(hosts_of(tmp_path, node), "--limit", "nobody", site=site), "nobody")


@pytest.fixture(scope="module")
def fleet(
    world: World, make: Make, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[LabNode], Site]:
    """Three nodes that match their class but for the reboot that it needs."""
    first, site = make("fleet-0", "e2e_cpu", "debian12_cpu")
    nodes = [
        first,
        *world.lab.up([NodeSpec(f"fleet-{n}", "e2e_cpu", flavour="warm") for n in (1, 2)]),
    ]
    succeeded(site_yml(inventory(tmp_path_factory.mktemp("fleet"), {"e2e_cpu": nodes}), site=site))
    return nodes, site


def test_a_batch_that_is_unreachable_ends_the_reboots(
    fleet: tuple[list[LabNode], Site], tmp_path: Path
) -> None:
    nodes, site = fleet
    hosts = inventory(tmp_path, {"e2e_cpu": nodes})
    document = yaml.safe_load((hosts / "hosts.yml").read_text())
    first = document["all"]["children"]["e2e_cpu"]["hosts"][nodes[0].name]
    # Nothing listens on port 9 once the play of the batches has begun.
    closed = "'batch by batch' in (ansible_play_name | default(''))"
    first["ansible_port"] = "{{ 9 if " + closed + " else " + str(first["ansible_port"]) + " }}"
    (hosts / "hosts.yml").write_text(yaml.safe_dump(document))
    before = [node.run("cut", "-d ", "-f22", "/proc/1/stat").output for node in nodes]
    allow = (
        "-e",
        "goldnode_reboot=true",
        "-e",
        "goldnode_reboot_batch=1",
        "-e",
        '{"goldnode_accepted": [0, 3]}',
    )
    run = site_yml(hosts, *allow, site=site)
    assert run.rc != 0
    assert [node.run("cut", "-d ", "-f22", "/proc/1/stat").output for node in nodes] == before
    assert f"unreachable: {nodes[0].name}\n" in run.output
    assert f"The run ended before its turn: {nodes[0].name} did not come back" in run.output


def test_a_batch_that_does_not_come_back_healthy_ends_the_reboots(
    fleet: tuple[list[LabNode], Site], tmp_path: Path
) -> None:
    nodes, site = fleet
    hosts = inventory(tmp_path, {"e2e_cpu": nodes})

    def boots() -> list[str]:
        return [node.run("cut", "-d ", "-f22", "/proc/1/stat").output for node in nodes]

    before = boots()
    # A container can at best reach 3, which is not accepted unless somebody says so: so the first batch is not healthy.
    run = site_yml(hosts, "-e", "goldnode_reboot=true", "-e", "goldnode_reboot_batch=2", site=site)
    after = boots()
    assert run.rc != 0
    assert [old != new for old, new in zip(before, after, strict=True)] == [True, True, False]
    accepted = (
        "-e",
        "goldnode_reboot=true",
        "-e",
        "goldnode_reboot_batch=2",
        "-e",
        '{"goldnode_accepted": [0, 3]}',
    )
    succeeded(site_yml(hosts, *accepted, site=site))
    assert [old != new for old, new in zip(after, boots(), strict=True)] == [False, False, True]


def test_a_kernel_for_which_the_module_does_not_build(
    world: World, make: Make, tmp_path: Path
) -> None:
    node, site = make("broken", "e2e_broken", "debian12_r535")
    succeeded(site_yml(inventory(tmp_path / "good", {"e2e_r535": [node]}), site=site))
    world.publish({*apt_archive.DEFAULT, apt_archive.BROKEN})
    world.lock(site, node, "e2e_broken")
    run = site_yml(inventory(tmp_path / "bad", {"e2e_broken": [node]}), site=site)
    failed(run, "make.log")
    log = (
        node.read("/var/lib/dkms/nvidia-current/535.309.01/build/make.log").strip().splitlines()[-1]
    )
    assert log[:60] in run.output
    assert (
        node.run(
            "modinfo", "-k", "6.1.0-902-amd64", "-F", "version", "nvidia-current"
        ).output.strip()
        == "535.309.01"
    ), "the way back still has its module"
    back = succeeded(site_yml(inventory(tmp_path / "back", {"e2e_r535": [node]}), site=site))
    assert back.changed["broken"] > 0
    verdict = json.loads(node.read("/run/goldnode/verdict.json"))
    assert [
        finding["id"] for finding in verdict["findings"] if finding["outcome"] == "mismatch"
    ] == ["boot.pending"]
