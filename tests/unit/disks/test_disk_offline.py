"""The engine on a root filesystem in place of a machine: what `site.yml` asks it for when a disk is built."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from goldnode.classdoc.load import load_catalog
from goldnode.core.errors import DiskError
from goldnode.core.program_file import build, payload
from goldnode.core.site import Site
from goldnode.disks import locking, offline
from goldnode.disks.definition import load_definition
from goldnode.disks.model import Loader
from goldnode.node.ground.host import Host
from goldnode.node.program import remote
from goldnode.node.state.apply import Applier
from goldnode.node.state.engine import plan
from goldnode.oci import emulation
from goldnode.oci.model import MACHINES


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    site = Site.model_validate(
        {
            "archives": {
                name: {"url": "http://archive.example/debian"}
                for name in ("debian", "debian-security")
            }
        }
    )
    found = locking.target("cpu_only", load_definition(), load_catalog(), site).document(None)
    return {**found, "site": {"archives": []}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    here = tmp_path / "root"
    for name in ("etc/apt", "var/lib/dpkg/info", "var/lib/dpkg/updates", "usr/lib", "boot", "run"):
        (here / name).mkdir(parents=True)
    (here / "etc/os-release").write_text('ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n')
    (here / "var/lib/dpkg/status").write_text(
        "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.21\nMaintainer: x\nDescription: x\n"
    )
    return here


def ask(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **request: Any
) -> dict[str, Any]:
    given = {
        "state": "present",
        "part": None,
        "lock_timeout": 0,
        "to": "",
        "root": None,
        "sources": None,
        **request,
    }
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(given)))
    archive = Path(request["root"]).parent / "goldnode-node"
    archive.write_bytes(build())
    assert remote.answer(payload(content=False)["sha256"], str(archive)) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_root_is_planned_with_what_can_be_true_of_it(
    root: Path,
    document: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = ask(monkeypatch, capsys, operation="plan", document=document, root=str(root))["plan"]
    assert plan["refusals"] == []
    assert {action["phase"] for action in plan["actions"]} == {"image"}
    targets = {action["target"] for action in plan["actions"]}
    assert {
        "/etc/goldnode/class.json",
        "/usr/lib/goldnode/goldnode-node",
        "/etc/systemd/system/goldnode-sanity.service",
    } <= targets
    (transaction,) = [action for action in plan["actions"] if action["kind"] == "packages.transact"]
    assert (
        f"docker.io={next(row['version'] for row in document['packages'] if row['name'] == 'docker.io')}"
        in transaction["data"]["install"]
    )
    assert sorted(path.name for path in root.iterdir()) == [
        "boot",
        "etc",
        "run",
        "usr",
        "var",
    ]  # a plan leaves nothing


def test_a_part_is_applied_to_the_root_and_nothing_is_judged(
    root: Path,
    document: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = ask(
        monkeypatch,
        capsys,
        operation="apply",
        part="node_class",
        document=document,
        root=str(root),
        sources="/run/x.list",
    )
    assert (answer["changed"], answer["gate"]) == (True, [])
    assert "verdict" not in answer
    assert (
        json.loads((root / "etc/goldnode/class.json").read_text())["digest"] == document["digest"]
    )
    assert not (root / "run/goldnode/verdict.json").exists()
    assert answer["plan"]["parts"]["node_class"] == []
    again = ask(
        monkeypatch, capsys, operation="apply", part="node_class", document=document, root=str(root)
    )
    assert again["changed"] is False


def test_apt_sees_the_archive_of_the_build_alone(document: Any) -> None:
    applier = Applier(Host("/nowhere"), document, {"sources": "/run/x.list"}, print)
    assert "Dir::Etc::sourcelist=/run/x.list" in applier.apt
    assert "Dir::Etc::sourceparts=/dev/null" in applier.apt
    assert not [
        word for word in Applier(Host("/nowhere"), document, {}, print).apt if "sourcelist" in word
    ]


def test_prove_fails_when_the_root_differs_from_its_class(root: Path, document: Any) -> None:
    with pytest.raises(
        DiskError,
        match=r"is not what its class says after site\.yml: .*file\.write /etc/goldnode/class\.json",
    ):
        offline.prove(offline.ImageRoot(root), document, {"program": payload(content=False)})


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_root_of_another_architecture_is_judged_in_a_process_that_can_run_its_programs(
    root: Path, document: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = next(name for name in MACHINES if not emulation.native(name))
    asked = []

    def emulated(architecture: str, command: list[str]) -> list[str]:
        asked.append(architecture)
        return command  # without an emulator: the same answer

    monkeypatch.setattr(offline, "emulated", emulated)
    with pytest.raises(DiskError, match=r"file\.write /etc/goldnode/class\.json"):
        offline.prove(
            offline.ImageRoot(root, foreign), document, {"program": payload(content=False)}
        )
    assert asked == [foreign]
    monkeypatch.setattr(offline, "emulated", lambda _, __: ["sh", "-c", "echo no room >&2; exit 1"])
    with pytest.raises(DiskError, match="cannot be judged: no room"):
        offline.prove(offline.ImageRoot(root, foreign), document, {})


@pytest.mark.parametrize("system", ["debian12", "debian13"])
@pytest.mark.parametrize(
    ("loader", "reported"),
    [
        ("systemd-boot", "systemd-boot's entries get the words"),
        ("grub", "the words are in GRUB's configuration"),
    ],
)
def test_note_on_the_command_line_names_the_boot_loader(
    root: Path, document: Any, system: str, loader: Loader, reported: str
) -> None:
    with (root / "var/lib/dpkg/status").open("a") as status:
        for name in load_definition().document.systems[system].loaders[loader]:
            status.write(
                f"\nPackage: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\nMaintainer: x\nDescription: x\n"
            )
    asked: Any = {
        **document,
        "policy": {**document["policy"], "host": {"cmdline": ["pci=realloc"]}},
    }
    notes = {note.subject: note.message for note in plan(Host(str(root)), asked).notes}
    assert (
        notes["policy.host.cmdline"]
        == f"the command line of an image is made when its boot loader is installed; {reported}"
    )
