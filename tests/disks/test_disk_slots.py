"""A disk with two slots heals itself, shown by booting one: a new image is written and found good, broken ones fall back by themselves, and a GPU
that is missing takes no image back. Real firmware (OVMF), systemd-boot, partitions and units, emulated.

One machine does it all in one run. Of the ways in which an image can be broken, four are tried here, one boot each; the variable
GOLDNODE_SLOT_CAUSES=all tries all of them, GOLDNODE_SLOT_TRIES=3 with as many tries as an update gives (some 40 seconds a boot).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.disks import slotdisk
from tests.e2e.qemu.disk import debian, run
from tests.e2e.test_boot_entry import CODENAME, class_document

from goldnode.core import program_file as nodefile
from goldnode.fleet.nodes import disk_update as update
from goldnode.node.ground import boot
from goldnode.node.state.domains.program import class_file, document_digest

pytestmark = [pytest.mark.disks, pytest.mark.long, pytest.mark.xdist_group("slots")]

# Those that leave no reason come first: what an image left earlier is told of it otherwise.
FEW, MORE = ("panic", "hang", "module", "unit"), ("root", "program", "mount")
CAUSES = (*FEW, *MORE) if os.environ.get("GOLDNODE_SLOT_CAUSES") == "all" else FEW
TRIES = int(os.environ.get("GOLDNODE_SLOT_TRIES", "1"))
# What is told of each after the fallback. A panic leaves nobody to say anything.
EXPECTED = {
    "panic": "it left no reason",
    "root": "it left no reason",
    "hang": "it left no reason",
    "module": "modules.dummy: modinfo -k .* finds no dummy",
    "unit": "unit ssh.service: failed",
    "program": "the boot did not complete|it left no reason",
    "mount": "the boot did not complete",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tar of the tree: Debian from where this site has it."""
    return slotdisk.tree(debian(CODENAME, tmp_path_factory.mktemp("keys")))


def document(root: Path) -> dict[str, Any]:
    """A class of this kernel, one more module and one service, without a GPU."""
    release = slotdisk.release(root)
    status = (root / "var/lib/dpkg/status").read_text()
    package = re.search(
        rf"^Package: linux-image-{re.escape(release)}\n(?:\S.*\n| .*\n)*?Version: (\S+)$",
        status,
        re.M,
    )
    assert package is not None
    made = class_document(release, package[1])
    made["modules"] = [
        {
            "name": "dummy", "package": f"linux-image-{release}", "version": package[1], "dkms": None, "load": True, "after": [],
            "before_driver": False,
        }
    ]  # fmt: skip
    made["baseline"] = {"services": ["ssh"]}
    made["health"] = {"baseline": made["baseline"]}
    made["simulated"] = False
    made["runtime"] = None
    return {**made, "digest": document_digest(made)}


def with_gpu(made: dict[str, Any]) -> dict[str, Any]:
    """The class with a GPU that the machine does not have."""
    gpu = {"model": "A100-SXM4-40GB", "count": 1, "vendor": "nvidia", "pci_ids": ["10de:20b0"]}
    changed = {**made, "gpu": gpu, "backend": "cuda"}
    return {**changed, "digest": document_digest(changed)}


PARTS = ("node_class", "kernel", "gpu_driver", "host_tuning", "sanity")


def apply(place: Path, made: dict[str, Any]) -> None:
    """The engine puts a class into the tree, as it does into that of every image."""
    for name, content, mode in (
        ("usr/lib/goldnode/goldnode-node", nodefile.build(), 0o755),
        (boot.LAYOUT.lstrip("/"), b"ab\n", 0o644),
        ("root/class.json", class_file(made).content.encode(), 0o644),
    ):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
        (place / name).chmod(mode)
    for part in PARTS:
        run(
            place / "usr/lib/goldnode/goldnode-node",
            "apply",
            "--root",
            place,
            "--class",
            place / "root/class.json",
            "--part",
            part,
        )


@pytest.fixture(scope="module")
def root(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fresh tree."""
    place = slotdisk.unpack(tree, tmp_path_factory.mktemp("tree") / "root")
    yield place
    shutil.rmtree(place)


def reported(guest: slotdisk.Guest, word: str, since: int, limit: float = 1800) -> tuple[str, int]:
    """What the guest says under a word, from a line on; and the line after it."""
    after = guest.wait(f"GUEST {word} ", since, limit)
    return guest.lines[after - 1].partition(f"GUEST {word} ")[2], after


def test_broken_image_falls_back_automatically_and_reports_the_cause(
    root: Path, tmp_path: Path
) -> None:
    kernel = slotdisk.release(root)
    about = {
        "name": "boot_test-aaa",
        "class": "boot_test",
        "build_id": "aaa",
        "sequence": 1,
        "kernel": kernel,
    }
    wanted = document(root)
    apply(root, wanted)
    key = root / "etc/ssh/ssh_host_ed25519_key"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    image = slotdisk.root_image(root, tmp_path / "root.img")
    made = slotdisk.disk(root, image, about, tmp_path / "disk.raw", tmp_path)
    image.unlink()
    # The new image has no key of its own; it is of the same class with a GPU, which the machine does not have.
    key.unlink()
    key.with_suffix(".pub").unlink()
    apply(root, with_gpu(wanted))
    image = slotdisk.root_image(root, tmp_path / "root.img")
    sent = {
        "name": "boot_test-bbb",
        "class": "boot_test",
        "build_id": "bbb",
        "kernel": kernel,
        "options": f"root=PARTLABEL=root-a {slotdisk.OPTIONS}",
        "root": slotdisk.sent(image),
    }
    head = update.first_line(sent, 3, "made by a test")
    with (tmp_path / "image").open("wb") as out:
        update.send(image, 0, head, out.write)
    image.unlink()
    more = slotdisk.payload(
        {
            "run": (Path(__file__).parent / "guest_slots.sh").read_text(),
            "causes": " ".join(CAUSES) + "\n",
            "tries": f"{TRIES}\n",
            "update.pyz": nodefile.build(writer=True),
            "image": tmp_path / "image",
        },
        tmp_path / "payload.img",
        tmp_path,
    )
    (tmp_path / "image").unlink()
    with slotdisk.guest(made, more, tmp_path) as machine:
        # As shipped: slot a, whose entry has no counter.
        output, at = reported(machine, "BOOT", 0)
        assert output.startswith("slot=a ")
        shipped = json.loads(reported(machine, "SLOTS", at)[0])
        assert (shipped["running"], shipped["tried"], shipped["slots"]["b"]["state"]) == (
            "a",
            None,
            "empty",
        )
        identity, at = reported(machine, "IDENTITY", at)
        output, at = reported(machine, "WRITTEN", at)
        assert output.startswith("0 "), output

        # The new image is tried, found good and blessed; the node is the same.
        output, at = reported(machine, "BOOT", at)
        assert output.startswith("slot=b root=/dev/vda3 step=written state=indeterminate"), output
        output, at = reported(machine, "TRIED", at)
        assert output == "1min", "the entry that is tried asks for the watchdog"
        found = json.loads(reported(machine, "SLOTS", at)[0])
        assert (found["running"], found["tried"], found["next"], found["slots"]["b"]["state"]) == (
            "b",
            None,
            "b",
            "good",
        )
        assert found["slots"]["b"]["entry"] == "goldnode-bbb-b+3.conf"
        # The GPU that it lacks drains the node, and is no reason to take the image back.
        findings, at = reported(machine, "FINDINGS", at)
        assert [row["outcome"] for row in json.loads(findings) if row["id"] == "gpu.count"] == [
            "mismatch"
        ]
        # systemd keeps to what the command line says in this boot; the next one has no watchdog (below).
        output, at = reported(machine, "WATCHDOG", at)
        assert output == "Software Watchdog active 1min", output
        stored, at = reported(machine, "IDENTITY", at)
        assert stored == identity
        size, at = reported(machine, "SIZE", at)
        assert int(size.strip().rstrip("M")) > slotdisk.ROOT_SIZE // slotdisk.MIB - 40
        output, at = reported(machine, "INITRAMFS", at)
        assert output.startswith("0 "), output
        copies, at = reported(machine, "COPIES", at)
        assert re.search(r"initrd /goldnode/b/initrd\.img-[0-9a-f]{12}\|", copies), copies

        # From b, slot a is broken in each way and has the next boot: b comes back by itself, and says why.
        for cause in CAUSES:
            at = machine.wait(f"GUEST NEXT after-{cause}", at, 1800)
            for _ in range(8):
                output, at = reported(machine, "BOOT", at)
                if "slot=b" in output:
                    break
                assert "state=indeterminate" in output, f"{cause}: {output}"
            assert f"slot=b root=/dev/vda3 step=after-{cause}" in output
            row, at = reported(machine, "SLOTS", at)
            found = json.loads(row)
            failed = found["slots"]["a"]
            assert (found["running"], found["tried"], found["next"], failed["state"]) == (
                "b",
                None,
                "b",
                "failed",
            ), cause
            assert (failed["left"], failed["done"]) == (0, TRIES)
            assert re.search(EXPECTED[cause], found["fallback"]), found["fallback"]
            findings, at = reported(machine, "FINDINGS", at)
            (finding,) = [row for row in json.loads(findings) if row["id"] == "slot.fallback"]
            assert (finding["outcome"], finding["severity"], finding["got"]) == (
                "mismatch",
                "degraded",
                found["fallback"],
            )
            output, at = reported(machine, "WATCHDOG", at)
            assert output == "Software Watchdog inactive 0", f"{cause}: {output}"
            motd, at = reported(machine, "MOTD", at)
            assert f"goldnode: {found['fallback']}" in motd

        machine.wait("GUEST THROUGH", at, 1800)
