"""What an update of a node checks, sends and refuses, without a node: ssh is a stand-in that runs the words here."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from goldnode.cli import main
from goldnode.commands.disks.update import update as command
from goldnode.core import program_file as nodefile
from goldnode.core.errors import DiskError, GoldnodeError
from goldnode.disks import slot_image
from goldnode.disks.model import VERIFIED, BuiltDisk, DiskFile, DiskSystem, Partition, Raw
from goldnode.fleet.nodes import disk_update as update
from goldnode.fleet.nodes import reach, return_tests
from goldnode.fleet.shared.denylist import Denial, DeniedError, DenyList, DenyListError
from goldnode.node.slots.write import head as read_head
from goldnode.node.state.domains.program import OTHER, PROGRAM

MIB = 1 << 20
BOOT = {"simulated": False, "checks": [{"id": "ssh", "outcome": "passed"}]}
ENTRY = "title x\noptions    root=PARTLABEL=root-a ro console=ttyS0 panic=5\n"


@pytest.fixture
def disk(tmp_path: Path) -> BuiltDisk:
    """A built disk: an ESP with its entry, and 3 MiB of a root file system."""
    place = tmp_path / "built/cpu/0123456789ab"
    place.mkdir(parents=True)
    raw, esp = place / "cpu-0123456789ab.raw", tmp_path / "esp"
    esp.write_bytes(b"")
    with esp.open("r+b") as opened:
        opened.truncate(2 * MIB)
    (tmp_path / "entry").write_text(ENTRY)
    for words in (
        ["mkfs.vfat", "-F", "12", str(esp)],
        ["mmd", "-i", str(esp), "::/loader", "::/loader/entries"],
        [
            "mcopy",
            "-i",
            str(esp),
            str(tmp_path / "entry"),
            "::/loader/entries/goldnode-0123456789ab-a.conf",
        ],
    ):
        subprocess.run(words, check=True, capture_output=True)
    root = b"root" * (MIB // 4) + bytes(2 * MIB)
    raw.write_bytes(bytes(MIB) + esp.read_bytes() + root + bytes(MIB))
    _, whole = slot_image.digest(raw)
    rows = (("esp", MIB, 2 * MIB), ("root-a", 3 * MIB, 3 * MIB))
    made = BuiltDisk(
        directory=place,
        name="cpu-0123456789ab",
        class_="cpu",
        build_id="0123456789ab",
        simulated=False,
        class_digest="sha256:1",
        stack="s",
        stack_lock="sha256:2",
        disk_lock="sha256:3",
        os=DiskSystem("debian", "12", "bookworm", "amd64"),
        kernel="6.1.0-901-amd64",
        driver=None,
        modules=(),
        loader="systemd-boot",
        layout="ab",
        epoch=0,
        partitions=tuple(
            Partition(
                i,
                name=name,
                type="t",
                uuid="u",
                start=at,
                size=size,
                filesystem="ext4",
                filesystem_uuid="f",
            )
            for i, (name, at, size) in enumerate(rows, 1)
        ),
        raw=Raw(raw.stat().st_size, whole, raw.stat().st_size),
        files=(DiskFile(raw.name, "raw", raw.stat().st_size, whole),),
        packages=(),
        pending=(),
        hygiene=(),
    )
    (place / "disk.json").write_text(made.text())
    verify(made)
    return made


def verify(disk: BuiltDisk, **changes: Any) -> None:
    report = {
        "schema": 1,
        "name": disk.name,
        "build_id": disk.build_id,
        "raw_sha256": disk.raw.sha256,
        "outcome": "passed",
    }
    report |= {"raw_sha256_after": disk.raw.sha256, "boots": [BOOT, BOOT], "clones": [], **changes}
    (disk.directory / VERIFIED).write_text(json.dumps(report))


def test_a_node_gets_the_root_of_the_disk_and_its_own_command_line(
    disk: BuiltDisk, tmp_path: Path
) -> None:
    image = update.open_image(disk)
    sent = bytearray()
    update.send(image.raw, image.start, image.first, sent.extend)
    line, _, packed = bytes(sent).partition(b"\n")
    first = read_head(line.decode())
    assert first["options"] == "root=PARTLABEL=root-a ro console=ttyS0 panic=5"
    assert (first["name"], first["class"], first["kernel"], first["tries"]) == (
        disk.name,
        "cpu",
        disk.kernel,
        3,
    )
    root = gzip.decompress(packed)
    assert (len(root), hashlib.sha256(root).hexdigest()) == (
        first["root"]["size"],
        first["root"]["sha256"],
    )
    assert root == b"root" * (MIB // 4) + bytes(2 * MIB)


def test_a_damaged_file_is_refused(disk: BuiltDisk) -> None:
    with disk.path("raw").open("r+b") as opened:
        opened.seek(4 * MIB)
        opened.write(b"x")
    with pytest.raises(DiskError, match="is damaged"):
        update.open_image(disk)
    with disk.path("raw").open("r+b") as opened:
        opened.truncate(2 * MIB)
    with pytest.raises(DiskError, match="is damaged"):
        update.open_image(disk)


@pytest.mark.parametrize(
    ("report", "fault"),
    [
        (None, "never booted"),
        ({"outcome": "failed"}, "the outcome of its boots is failed"),
        ({"outcome": "not-verifiable"}, "the outcome of its boots is"),
        ({"raw_sha256": "0" * 64}, "about another disk: raw_sha256"),
        ({"name": "cpu-ffffffffffff"}, "about another disk: name"),
        ({"build_id": "f" * 12}, "about another disk: build_id"),
        ({"raw_sha256_after": "0" * 64}, "not the same after it was booted"),
        ({"boots": [BOOT]}, "booted 1 times, expected 2"),
        ({"boots": [BOOT, {**BOOT, "simulated": True}]}, "booted 1 times, expected 2"),
        ("torn", "cannot be read"),
        ({}, None),
    ],
)
def test_only_what_has_booted_is_written_or_with_a_reason(
    disk: BuiltDisk, report: dict[str, Any] | str | None, fault: str | None
) -> None:
    file = disk.directory / VERIFIED
    if report is None:
        file.unlink()
    elif isinstance(report, str):
        file.write_text(report)
    else:
        verify(disk, **report)
    if fault is None:
        assert update.open_image(disk).first["unverified"] is None
        return
    with pytest.raises(DiskError, match=fault):
        update.open_image(disk)
    with pytest.raises(DiskError, match=fault):
        update.open_image(disk, "  ")
    assert str(update.open_image(disk, "it is for the lab").first["unverified"]).endswith(
        "; it is for the lab"
    )


def test_a_disk_without_slots_is_refused(disk: BuiltDisk) -> None:
    with pytest.raises(DiskError, match="layout `single`"):
        update.open_image(replace(disk, layout="single", loader="grub"))
    with pytest.raises(DiskError, match="no partition root-a"):
        update.open_image(replace(disk, partitions=disk.partitions[:1]))
    with pytest.raises(DiskError, match=r"entry goldnode-ffff-a\.conf cannot be read"):
        update.open_image(replace(disk, build_id="ffff"), "it is for this test")


def test_denied_build_is_refused_before_the_node_is_asked(
    disk: BuiltDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOLDNODE_FLEET_STORE", str(tmp_path / "fleet.db"))
    denial = Denial(
        "cpu",
        digest=disk.build_id,
        rollout="r1",
        reason="it does not boot",
        who="c/1",
        at="2026-11-25T21:00:00Z",
    )
    listed = tmp_path / "denied.json"
    listed.write_bytes(DenyList((denial,), 1).payload())
    with pytest.raises(DeniedError, match=f"goldnode rollout lift {disk.build_id} --class cpu"):
        update.open_image(disk, "a reason")
    # The way back to it is refused too.
    here = Here(tmp_path / "here", monkeypatch)
    slots = {"a": row("cpu-1", build_id="1"), "b": row("cpu-0", build_id=disk.build_id)}
    node = here.play(
        f"""case $* in
*"slot status"*) echo '{json.dumps(survey(slots=slots))}' ;;
*"cat >"*) eval "$*" ;;
esac"""
    )
    with pytest.raises(DeniedError):
        update.run(node, update.DiskUpdate(None, reboot=False), print)
    assert "slot back" not in here.log.read_text()
    listed.write_bytes(b"{")
    with pytest.raises(DenyListError, match="could not check"):
        update.open_image(disk, "a reason")
    listed.write_bytes(DenyList((), 2).payload())
    assert update.open_image(disk, "a reason")


def row(image: str, **more: Any) -> dict[str, Any]:
    return {
        "image": image,
        "class": "cpu",
        "state": "good",
        "device": "/dev/x",
        "left": None,
        "unverified": None,
        **more,
    }


def survey(**changes: Any) -> dict[str, Any]:
    made = {
        "running": "a",
        "tried": None,
        "next": "a",
        "fallback": None,
        "slots": {"a": row("cpu-1"), "b": row("cpu-0")},
    }
    return {**made, **changes}


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (survey(), None),
        (survey(tried="x+2-1.conf"), "still tries"),
        (survey(slots={"a": row("x", **{"class": "h100"}), "b": row("y")}), "of class h100"),
        (survey(slots={"a": row("x"), "b": row("y", device=None)}), "no second slot"),
        (survey(slots={"a": row("cpu-0123456789ab"), "b": row("y")}), "already"),
    ],
)
def test_refusal_names_why_an_update_does_not_fit_the_node(
    disk: BuiltDisk, found: Mapping[str, Any], text: str | None
) -> None:
    reported = update.refusal(update.open_image(disk), found)
    assert (reported is None) if text is None else (text in str(reported))


def test_node_is_reached_with_the_ssh_settings_of_its_inventory() -> None:
    found = reach.reached(
        "gpu07",
        {
            "ansible_host": "10.0.0.7",
            "ansible_port": 2222,
            "ansible_user": "ops",
            "ansible_ssh_private_key_file": "/keys/ops key",
            "ansible_ssh_common_args": "-o ProxyJump=bastion",
            "ansible_become": True,
        },
    )
    assert found.local_command("cat", "/a b") == [
        *reach.SSH, "-p", "2222", "-l", "ops", "-i", "/keys/ops key", "-o", "ProxyJump=bastion", "--", "10.0.0.7", "sudo -n cat '/a b'",
    ]  # fmt: skip
    assert reach.reached("n", {}).local_command("true") == [*reach.SSH, "--", "n", "true"]
    assert reach.node("ops@n", None).name == "n"
    with pytest.raises(GoldnodeError, match="reached by `docker`"):
        reach.reached("n", {"ansible_connection": "community.docker.docker"})


def test_a_host_that_the_inventory_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("all: {hosts: {gpu07: {ansible_user: ops}}}\n")
    assert "-l" in reach.node("gpu07", str(tmp_path / "hosts.yml")).ssh
    with pytest.raises(GoldnodeError, match="no host gpu08"):
        reach.node("gpu08", str(tmp_path / "hosts.yml"))


class Here:
    """A stand-in for a node: ssh runs the words on this machine, where `python3` plays the node's program."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        place.mkdir()
        self.log = place / "log"
        self.log.write_text("")
        monkeypatch.setattr(update, "PROGRAM", str(place / "program"))
        monkeypatch.setattr(update, "PAUSE", 0.0)
        monkeypatch.setattr(nodefile, "build", lambda writer: b"# the program\n")

    def play(self, script: str) -> reach.SshNode:
        """A node on which every command is this shell script, with the words in $*."""
        shell = self.place / "node"
        shell.write_text(f'#!/bin/sh\nlog={self.log}\necho "$*" >>$log\n{script}\n')
        shell.chmod(0o755)
        return reach.SshNode("gpu07", (str(shell),), (), {})


ANSWER = json.dumps(
    survey(next="b", slots={"a": row("cpu-1"), "b": row("cpu-0123456789ab", state="tried", left=3)})
)


def test_an_image_goes_to_the_node_completely(
    disk: BuiltDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Here(tmp_path / "here", monkeypatch)
    node = here.play(
        f"""case $* in
*"slot status"*) echo '{json.dumps(survey())}' ;;
*"slot write"*) cat >{here.place}/sent; echo "3 of 3 MiB" >&2; echo '{ANSWER}' ;;
*"cat >"*) eval "$*" ;;
esac"""
    )
    reported: list[str] = []
    found = update.run(
        node, update.DiskUpdate(update.open_image(disk), reboot=False), reported.append
    )
    assert (found["next"], reported) == ("b", ["3 of 3 MiB"])
    _, _, packed = (here.place / "sent").read_bytes().partition(b"\n")
    assert (
        hashlib.sha256(gzip.decompress(packed)).hexdigest()
        == update.open_image(disk).first["root"]["sha256"]
    )
    lines = here.log.read_text().splitlines()
    assert lines[-1].startswith("rm -f ")  # nothing of ours stays there
    assert "systemctl reboot" not in lines


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo 'ssh: connect to host gpu07: No route to host' >&2; exit 255", "No route to host"),
        (
            "case $* in *status*) echo 'goldnode-node: this node has no slots.' >&2; exit 3;; esac",
            "this node has no slots",
        ),
        ("case $* in *status*) echo '[]';; esac", "does not report its slots"),
        (f"case $* in *status*) echo '{json.dumps(survey(tried='x'))}';; esac", "still tries"),
        # It refuses and hears no more of what is sent.
        (
            f"case $* in *status*) echo '{json.dumps(survey())}';; "
            "*write*) echo 'goldnode-node: the disk is failing.' >&2; exit 3;; *'cat >'*) eval \"$*\";; esac",
            "the disk is failing",
        ),
    ],
)
def test_ssh_or_node_failure_during_an_update_is_one_error(
    disk: BuiltDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, text: str
) -> None:
    node = Here(tmp_path / "here", monkeypatch).play(script)
    with pytest.raises(GoldnodeError, match=text):
        update.run(
            node, update.DiskUpdate(update.open_image(disk), reboot=False), lambda text: None
        )


def booting(
    here: Here, *states: Mapping[str, Any], gpu: Sequence[Mapping[str, Any]] = (), plan: str = "{}"
) -> reach.SshNode:
    """A node that is in another boot after `systemctl reboot`, and then tells these states one after the other."""
    for number, state in enumerate(states):
        (here.place / f"state{number}").write_text(json.dumps(state))
    return here.play(
        f"""cd {here.place}
case $* in
*boot_id*) [ -e booted ] && echo two || echo one ;;
*"systemctl reboot"*) touch booted ;;
*"goldnode-node plan"*) echo '{plan}' ;;
*goldnode-node*"slot status"*) n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) >n; cat state$n ;;
*"slot status"*) echo '{json.dumps(survey(holders=gpu))}' ;;
*"slot write"*|*"slot back"*) cat >/dev/null; echo '{ANSWER}' ;;
*"cat >"*) eval "$*" ;;
esac"""
    )


def test_a_node_is_not_rebooted_while_that_would_turn_its_ecc_off(
    disk: BuiltDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Here(tmp_path / "here", monkeypatch)
    plan = json.dumps({"reboot": {"held": ["the next boot would turn ECC off for GPU 0"]}})
    node = booting(here, FINE, plan=plan)
    with pytest.raises(
        DiskError, match="not rebooted, since the next boot would turn ECC off for GPU 0"
    ):
        update.run(node, update.DiskUpdate(update.open_image(disk), reboot=True), lambda text: None)
    lines = here.log.read_text().splitlines()
    assert any("policy apply" in line for line in lines)
    assert "systemctl reboot" not in lines


TRIED = survey(
    running="b",
    tried="x+2-1.conf",
    slots={"a": row("cpu-1"), "b": row("cpu-0123456789ab", left=2, state="tried")},
)
FINE = survey(running="b", next="b", slots={"a": row("cpu-1"), "b": row("cpu-0123456789ab")})
SAME = survey(
    slots={"a": row("cpu-0123456789ab"), "b": row("cpu-0123456789ab", state="failed")},
    fallback="modules.dummy: missing",
)
FELL = survey(
    fallback="image cpu-0123456789ab in slot b failed 3 tries: modules.dummy: missing; cpu-1 in slot a runs"
)


def test_a_reboot_is_waited_for_until_the_image_is_good(
    disk: BuiltDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = booting(Here(tmp_path / "here", monkeypatch), TRIED, TRIED, FINE)
    reported: list[str] = []
    assert (
        update.run(
            node, update.DiskUpdate(update.open_image(disk), reboot=True, limit=60), reported.append
        )["running"]
        == "b"
    )
    assert reported == [
        "no queue: this site has no store of its fleet",
        "gpu07 boots cpu-0123456789ab",
        "cpu-0123456789ab is tried, 2 tries left after this one",
    ]


def test_a_program_that_others_can_change_is_not_asked_after_the_boot(
    disk: BuiltDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Here(tmp_path / "here", monkeypatch)
    node = booting(here, FINE)
    asked: list[str] = []
    run = reach.SshNode.run

    def verified(self: reach.SshNode, *command: str, **more: Any) -> Any:
        """As the shell of a node ends where its test of the program fails."""
        if PROGRAM in " ".join(command):
            asked.append(command[-1])
            return subprocess.CompletedProcess(command, OTHER, b"", b"")
        return run(self, *command, **more)

    monkeypatch.setattr(reach.SshNode, "run", verified)
    with pytest.raises(DiskError, match="others than root can change goldnode's program"):
        update.run(
            node,
            update.DiskUpdate(update.open_image(disk), reboot=True, limit=60),
            lambda text: None,
        )
    assert [text.rpartition(f"exec {PROGRAM} ")[2] for text in asked] == [
        "policy apply",
        "plan --format json",
        "slot status --format json",
    ]
    assert all("find" in text.partition(f"exec {PROGRAM} ")[0] for text in asked), (
        "tested before it runs"
    )


@pytest.mark.parametrize("after", [FELL, SAME])  # SAME: both slots hold the image
def test_a_fallback_is_an_error_with_its_reason_and_the_node_stays_drained(
    disk: BuiltDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: Mapping[str, Any]
) -> None:
    here = Here(tmp_path / "here", monkeypatch)
    words = {
        "goldnode_drain": "command",
        "goldnode_drain_command": [str(here.place / "drain")],
        "goldnode_resume_command": ["false"],
    }
    (here.place / "drain").write_text(f"#!/bin/sh\necho drained >>{here.log}\n")
    (here.place / "drain").chmod(0o755)
    node = replace(booting(here, TRIED, after), variables=words)
    with pytest.raises(DiskError, match=r"gpu07 fell back: .*modules.dummy: missing"):
        update.run(
            node,
            update.DiskUpdate(update.open_image(disk), reboot=True, limit=60),
            lambda text: None,
        )
    lines = here.log.read_text().splitlines()
    assert lines.index("drained") < lines.index("systemctl reboot")


def test_a_node_that_stays_drained_is_reported(
    disk: BuiltDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Here(tmp_path / "here", monkeypatch)
    words = {
        "goldnode_drain": "command",
        "goldnode_drain_command": ["sh", "-c", "exit 3"],
        "goldnode_resume_command": ["false"],
    }
    reported: list[str] = []
    update.run(
        replace(booting(here, FINE), variables=words),
        update.DiskUpdate(update.open_image(disk), reboot=True, limit=60),
        reported.append,
    )
    assert (
        reported[-1]
        == "gpu07 was out of service before, as sh says, and stays so. `false gpu07` returns it."
    )


@pytest.mark.parametrize("jobs", [[], ["gemm"]])
def test_a_node_whose_class_wants_tests_stays_drained(
    disk: BuiltDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: list[str]
) -> None:
    here = Here(tmp_path / "here", monkeypatch)
    words = {
        "goldnode_drain": "command",
        "goldnode_drain_command": ["true"],
        "goldnode_resume_command": ["sh", "-c", f"echo resumed >>{here.log}"],
    }
    tests = return_tests.OutstandingTests("rollout", jobs, lambda _: [])
    monkeypatch.setattr(return_tests, "of_class", lambda *_: tests)
    node = replace(booting(here, FINE), variables=words)
    wish = update.DiskUpdate(update.open_image(disk), reboot=True, limit=60)
    if not jobs:
        update.run(node, wish, lambda text: None)
    else:
        with pytest.raises(
            DiskError,
            match=r"cpu-0123456789ab runs, and the node stays drained: .*gemm has not run",
        ):
            update.run(node, wish, lambda text: None)
    assert ("resumed" in here.log.read_text().splitlines()) is (not jobs)


def test_a_gpu_in_use_is_a_refusal_before_anything_is_written(
    disk: BuiltDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Here(tmp_path / "here", monkeypatch)
    node = booting(
        here, FINE, gpu=[{"pid": 4711, "command": "python3", "unit": None, "container": None}]
    )
    with pytest.raises(DiskError, match="in use by pid 4711 python3, and no scheduler drains"):
        update.run(node, update.DiskUpdate(update.open_image(disk), reboot=True), lambda text: None)
    assert "slot write" not in here.log.read_text()
    assert (
        update.run(
            node, update.DiskUpdate(update.open_image(disk), reboot=False), lambda text: None
        )["next"]
        == "b"
    )


def test_the_way_back_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Here(tmp_path / "here", monkeypatch)
    found = update.run(booting(here), update.DiskUpdate(None, reboot=False), lambda text: None)
    assert found["next"] == "b"
    assert "slot back" in here.log.read_text()
    assert "slot: cpu" not in update.text(found, "gpu07")
    assert "gpu07: slot b: cpu-0123456789ab, tried (boots next)" in update.text(found, "gpu07")


def test_options_that_contradict_each_other() -> None:
    done = CliRunner().invoke(command, ["gpu07", "--back", "--image", "x"])
    assert "--back writes no image" in str(done.exception)


def test_the_tools_of_this_test_are_there() -> None:
    assert all(map(shutil.which, ("mkfs.vfat", "mmd", "mcopy")))


def test_absent_inventory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inventories/demo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["disks", "update", "-i", "inventories/demmo", "gpu07"])
    absent = 'error: there is no inventory "inventories/demmo". Use "inventories/demo".\n'
    assert (done.exit_code, done.output) == (2, absent)
