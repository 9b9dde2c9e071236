"""Game days on a machine with a kernel and a network card of its own (emulated): the faults that a container cannot show.

The machine boots the image of the class. Its class document is then that of a class with a declared MTU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import documents
from tests.disks.conftest import CLASS, ROOT, Site

from goldnode.disks.model import BuiltDisk
from goldnode.disks.qemu import SSH_OPTIONS, VirtualMachine, VmOptions, make_key, overlay
from goldnode.node.ground.verdict_files import CLASS as CLASS_FILE
from goldnode.node.ground.verdict_files import VERDICT
from goldnode.node.state.domains.program import class_file, document_digest

pytestmark = [pytest.mark.disks, pytest.mark.long, pytest.mark.xdist_group("disk")]

LINK = "enp0s3"  # of QEMU's machine
DECLARED = f"baseline: {{network: {{{LINK}: {{mtu: 1500}}}}}}\n"


@pytest.fixture(scope="module")
def machine(built: BuiltDisk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VirtualMachine]:
    """The image, running on an overlay that stores what is written."""
    place = tmp_path_factory.mktemp("game-day")
    key = make_key(place)
    disk = overlay(built.path("raw"), place / "disk.qcow2", size=built.raw.size)
    credentials = {"ssh.authorized_keys.root": key.with_suffix(".pub").read_text()}
    options = VmOptions(snapshot=False, form="qcow2", key=key, credentials=credentials)
    with VirtualMachine(disk, place / "machine", options) as made:
        made.wait_ssh(900)
        made.ssh(["systemctl", "is-system-running", "--wait"], limit=900)
        yield made


def declared(machine: VirtualMachine, site: Site, place: Path) -> str:
    """The class document of the image, with a declared MTU: what site.yml would write for such a class."""
    name = "game_day_machine"
    text = (ROOT / f"catalog/classes/{CLASS}.yml").read_text()
    assert f"class: {CLASS}\n" in text
    (place / "classes").mkdir()
    (place / f"classes/{name}.yml").write_text(
        text.replace(f"class: {CLASS}\n", f"class: {name}\n") + DECLARED
    )
    exported = site.run("class", "export", name, GOLDNODE_CATALOG=str(place))
    assert exported.returncode == 0, exported.stderr
    wanted = json.loads(exported.stdout)
    document = json.loads(machine.ssh(["cat", CLASS_FILE], limit=600).out)
    document |= {key: wanted[key] for key in ("baseline", "health")}
    document["digest"] = document_digest(document)
    return class_file(document).content


@pytest.fixture(scope="module")
def hosts(site: Site, machine: VirtualMachine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inventory of the machine, which is healthy as a node of the class with a declared MTU."""
    place = tmp_path_factory.mktemp("catalog")
    content = declared(machine, site, place).encode()
    machine.ssh([f"cat > {CLASS_FILE}"], stdin=content, limit=600)
    done = machine.ssh(["systemctl start goldnode-watch.service; cat", VERDICT], limit=900)
    verdict = json.loads(done.out)
    assert verdict["status"] == "healthy", verdict
    reached = {
        "ansible_host": "127.0.0.1",
        "ansible_port": machine.port,
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(machine.key),
        "ansible_ssh_common_args": " ".join(("-o", "ConnectTimeout=120", *SSH_OPTIONS)),
    }
    path = place / "hosts.yml"
    path.write_text(json.dumps({CLASS: {"hosts": {"machine": reached}}}))
    return path


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("link-mtu", f"net.mtu {LINK} 1400"),
        (
            "log-line",
            "memory.oom game-day-log-line.service the kernel ended the service game-day-log-line.service (tail) at its own limit",
        ),
    ],
)
def test_check_of_a_machine_sees_the_fault_and_is_as_before(
    site: Site, hosts: Path, tmp_path: Path, fault: str, seen: str
) -> None:
    words = ("game-day", CLASS, "-i", str(hosts), "--node", "machine", "--fault", fault, "--now")
    # In seconds of the controller: an emulated machine takes minutes for a check.
    done = site.run(*words, "--within", "1800", "--apply", "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = documents.valid(done.stdout)
    assert (document["state"], document["simulated"], document["left"]) == ("ended", False, [])
    rows = {row["witness"]: row for row in document["sightings"]}
    assert (rows["check"]["outcome"], rows["check"]["text"]) == ("seen", seen)
    assert document["before"] == []
