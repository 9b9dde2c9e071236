"""The record and what is undone by it, on plain values and in a directory that is a node's root."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goldnode.node import __main__ as starting
from goldnode.node.gate import gate
from goldnode.node.gate.handlers import HANDLERS
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host, Result
from goldnode.node.ground.scheduler import HookError
from goldnode.node.program import main as program
from goldnode.node.program import remote
from goldnode.node.state import record as records
from goldnode.node.state.apply import Applier, withdraw
from goldnode.node.state.engine import plan_absent
from goldnode.node.state.family import kernel_release
from goldnode.node.state.handlers import removal as removing
from goldnode.node.state.model import IMAGE, PARTS, Action, Observed
from goldnode.node.state.observe import JOURNAL, LINKS, MANAGED, RECORD
from goldnode.node.state.removal import NO_CLASS, completed, offered, own_document, part_of, removal

SIMULATED = """Reading package lists...
Remv old-driver [470-1]
Inst libfresh (1.0-1 Debian:12 [amd64])
Inst libmoved [1.0-1] (1.2-1 Debian:12 [amd64]) []
Inst libsame [1.0-1] (1.0-1 Debian:12 [amd64])
Inst leftover (3 Debian:12 [all])
Conf libfresh (1.0-1 Debian:12 [amd64])
"""


def have(**versions: str) -> dict[str, Any]:
    return {
        name.replace("_", "-"): {
            "version": version,
            "architecture": "amd64",
            "state": "installed",
            "hold": False,
        }
        for name, version in versions.items()
    }


def test_the_record_of_a_transaction() -> None:
    before = have(old_driver="470-1", libmoved="1.0-1", libsame="1.0-1")
    found = records.extended_record(
        {"held": ["x"]},
        simulated=SIMULATED,
        named=["libmoved", "libfresh"],
        have=before,
        auto=["libmoved", "libsame"],
        residual=["leftover"],
    )
    assert found == {
        "held": ["x"],
        "brought": ["leftover", "libfresh"],
        "was": {"libmoved": {"from": "1.0-1", "to": "1.2-1"}},
        "removed": {"old-driver": "470-1"},
        "residual": ["leftover"],
        "automatic": ["libmoved"],
    }


def test_package_with_only_configuration_left_stays_recorded() -> None:
    before = have(gone="1", kept="1")
    before["gone"]["state"] = "config-files"
    found = records.extended_record(
        {"brought": ["gone", "kept", "never"]},
        simulated="",
        named=[],
        have=before,
        auto=[],
        residual=["gone"],
    )
    assert found["brought"] == ["gone", "kept"]


def test_the_record_keeps_the_first_version_and_the_last() -> None:
    first = records.extended_record(
        {}, simulated="Inst a [1] (2 D [amd64])\n", named=[], have=have(a="1"), auto=[], residual=[]
    )
    second = records.extended_record(
        first,
        simulated="Inst a [2] (3 D [amd64])\n",
        named=[],
        have=have(a="2"),
        auto=[],
        residual=[],
    )
    assert second["was"] == {"a": {"from": "1", "to": "3"}}
    assert second["brought"] == []


def test_upgraded_package_stays_recorded_as_installed_by_goldnode() -> None:
    first = records.extended_record(
        {}, simulated="Inst a (1 D [amd64])\n", named=["a"], have={}, auto=[], residual=[]
    )
    second = records.extended_record(
        first,
        simulated="Inst a [1] (2 D [amd64])\n",
        named=["a"],
        have=have(a="1"),
        auto=["a"],
        residual=[],
    )
    assert (second["brought"], second["was"], second["automatic"]) == (["a"], {}, [])


def test_planned_package_that_never_arrived_is_not_recorded() -> None:
    planned = records.extended_record(
        {},
        simulated="Inst a (1 D [amd64])\nInst b (1 D [amd64])\n",
        named=[],
        have={},
        auto=[],
        residual=[],
    )
    assert planned["brought"] == ["a", "b"]
    assert records.extended_record(
        planned,
        simulated="Inst c (1 D [amd64])\n",
        named=[],
        have=have(a="1"),
        auto=[],
        residual=[],
    )["brought"] == [
        "a",
        "c",
    ]


def test_a_package_that_goldnode_removed_and_installed_again_is_not_called_removed() -> None:
    gone = records.extended_record(
        {}, simulated="Remv a [1]\n", named=[], have=have(a="1"), auto=[], residual=[]
    )
    assert gone["removed"] == {"a": "1"}
    back = records.extended_record(
        gone, simulated="Inst a (2 D [amd64])\n", named=[], have={}, auto=[], residual=[]
    )
    assert back["removed"] == {}


@pytest.mark.parametrize(
    ("before", "after", "now", "wanted"),
    [
        (None, {"r": 1}, {"r": 1}, None),
        ({"a": 1}, {"a": 1, "r": {"nvidia": {}}}, {"a": 2, "r": {"nvidia": {}}}, {"a": 2}),
        ({"a": 1}, {"a": 9}, {"a": 9, "b": 1}, {"a": 1, "b": 1}),
        ({"a": 1}, {"a": 9}, {"a": 5}, {"a": 5}),
        ({"a": 1}, {}, {"b": 1}, {"b": 1, "a": 1}),
        (
            {"r": {"x": 1}},
            {"r": {"x": 1, "nvidia": 2}},
            {"r": {"x": 1, "nvidia": 2, "mine": 3}},
            {"r": {"x": 1, "mine": 3}},
        ),
        ({}, {"r": {"nvidia": 2}}, {"r": {"nvidia": 2}, "b": 1}, {"b": 1}),
        ({"l": ["a"]}, {"l": ["a", "b"]}, {"l": ["a", "b", "c"]}, {"l": ["a", "c"]}),
        ({"l": ["a"]}, {"l": ["a", "b"]}, {"l": ["b"]}, {"l": []}),
        ({}, {"l": ["b"]}, {"l": ["b"], "m": 1}, {"m": 1}),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2, "r": 3}, {"a": 1, "r": 3}, {"a": 1}),
    ],
)
def test_unmerge_restores_the_original_and_leaves_user_changes(
    before: Any, after: Any, now: Any, wanted: Any
) -> None:
    assert records.unmerge(before, after, now) == wanted


def test_a_file_untouched_since_is_what_it_was_to_the_byte() -> None:
    name = "/etc/docker/daemon.json"
    assert (
        records.unmerged_text(name, '{ "a":1 }', '{"a": 1, "r": 2}', '{"a": 1, "r": 2}')
        == '{ "a":1 }'
    )
    assert records.unmerged_text(name, None, '{"r": 2}', '{"r": 2}') is None
    assert records.unmerged_text(name, '{"a":1}', '{"a": 1, "r": 2}', '{"a":1}') == '{"a":1}', (
        "it was never merged: the run was killed before"
    )
    assert (
        records.unmerged_text(name, "{}", '{"r": 2}', '{\n  "r": 2,\n  "é": 1\n}')
        == '{\n  "é": 1\n}\n'
    )
    assert json.loads(records.unmerged_text(name, None, '{"r": 2}', '{"r": 2, "b": 1}') or "") == {
        "b": 1
    }
    assert json.loads(records.unmerged_text(name, "\n", '{"r": 2}', '{"r": 2, "b": 1}') or "") == {
        "b": 1
    }, "it was empty"
    with pytest.raises(ValueError, match="line 1 column"):
        records.unmerged_text(name, None, '{"r": 2}', "{,")


@pytest.mark.parametrize(
    ("before", "after", "now", "wanted"),
    [
        ("a\nb\n", "a\nours\nb\n", "a\nours\nb\nmine\n", "a\nb\nmine\n"),
        (
            'mode = "auto"\nx\n',
            'mode = "legacy"\nx\n',
            'mode = "legacy"\ny\n',
            'mode = "auto"\ny\n',
        ),
        ('mode = "auto"\n', 'mode = "legacy"\n', 'mode = "cdi"\n', 'mode = "cdi"\n'),
        ("", "ours\n", "mine\nours\n", "mine\n"),
        ("x\nx\n", "x\n# end\nx\n# end\n", "x\n# end\nx\n# end\nmine\n", "x\nx\nmine\n"),
    ],
)
def test_lines_are_given_back(before: str, after: str, now: str, wanted: str) -> None:
    assert records.unmerged_text("/etc/x/config.toml", before, after, now) == wanted


@pytest.mark.parametrize(
    ("package", "release"),
    [
        ("linux-image-6.1.0-902-amd64", "6.1.0-902-amd64"),
        ("linux-image-unsigned-6.8.0-1-generic", "6.8.0-1-generic"),
        ("linux-image-6.1.0-902-amd64-unsigned", "6.1.0-902-amd64"),
        ("linux-modules-6.8.0-1-generic", "6.8.0-1-generic"),
        ("linux-modules-extra-6.8.0-1-generic", "6.8.0-1-generic"),
        ("linux-binary-7.2.12+deb14-amd64", "7.2.12+deb14-amd64"),
        ("linux-modules-7.2.12+deb14-amd64", "7.2.12+deb14-amd64"),
        ("linux-base-7.2.12+deb14-amd64", "7.2.12+deb14-amd64"),
        ("linux-base", None),
        ("linux-base-amd64", None),
        ("linux-modules-nvidia-580-open-6.8.0-1-generic", None),
        ("linux-image-generic", None),
        ("linux-image-amd64", None),
        ("linux-headers-6.1.0-902-amd64", None),
    ],
)
def test_kernel_release_is_none_for_packages_of_no_kernel_image(
    package: str, release: str | None
) -> None:
    assert kernel_release(package) == release


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/etc/goldnode/class.json", "node_class"),
        ("/etc/apt/sources.list.d/goldnode-x.sources", "node_class"),
        ("/etc/modprobe.d/goldnode-options.conf", "gpu_driver"),
        (
            "/etc/nvidia-container-runtime/config.toml",
            "container_runtime",
        ),  # before its package is purged, which takes it along
        ("/etc/kernel/postinst.d/zz-goldnode", "kernel"),
        ("/etc/default/grub.d/90-goldnode.cfg", "kernel"),
        ("/etc/systemd/system/goldnode-sanity.service", "sanity"),
        ("/etc/systemd/system/goldnode-policy.service", "gpu_policy"),
        ("/etc/udev/rules.d/90-goldnode-policy.rules", "gpu_policy"),
        ("/etc/systemd/system/goldnode-mps.service", "gpu_policy"),
        ("/etc/containerd/conf.d/goldnode.toml", "container_runtime"),
        ("/etc/docker/daemon.json", "container_runtime"),
        ("/etc/sysctl.d/90-goldnode.conf", "host_tuning"),
    ],
)
def test_without_a_record_the_part_of_a_file_follows_from_its_path(path: str, part: str) -> None:
    assert part_of(path, {}) == part
    assert part_of(path, {"parts": {path: "written by a later goldnode"}}) == part


def test_every_place_has_a_part() -> None:
    assert {part_of(f"{directory}/{pattern}", {}) for directory, pattern in MANAGED} <= set(PARTS)


def test_the_record_decides_which_part_a_file_belongs_to(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    path = "/etc/goldnode.d/time.conf"
    write = Action(
        "host_tuning",
        kind="file.write",
        target=path,
        reason="want a, have nothing",
        phase=IMAGE,
        before=None,
        after="a",
    )
    records.before_files(
        host, [write, Action("kernel", "packages.hold", "linux-image", "it is not held", IMAGE)]
    )
    known = records.read(host)
    assert known["parts"] == {path: "host_tuning"}
    assert (part_of(path, known), part_of(path, {})) == ("host_tuning", "node_class")
    other = Action(
        "host_tuning",
        kind="file.write",
        target="/etc/other",
        reason="want a, have nothing",
        phase=IMAGE,
        before=None,
        after="a",
    )
    records.before_files(host, [other])
    assert records.read(host)["parts"] == {path: "host_tuning", "/etc/other": "host_tuning"}


# -- in a root


@pytest.fixture
def root(tmp_path: Path) -> Host:
    """The root of a node with an empty dpkg database and things of its user's."""
    for directory in (
        "etc/modprobe.d",
        "etc/systemd/system/multi-user.target.wants",
        "var/lib/dpkg/info",
        "run",
        "var/lib/apt",
        "var/cache",
        "usr/lib",
        "etc/docker",
    ):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").touch()
    (tmp_path / "etc/modules").write_text("loop\nnouveau\n")
    (tmp_path / "etc/modules").chmod(0o640)
    (tmp_path / "etc/modprobe.d/mine.conf").write_text("# goldnode: not a line of its\n")
    (tmp_path / "etc/docker/daemon.json").write_text('{"a":1}')
    (tmp_path / "etc/mine").symlink_to("/theirs")
    return Host(str(tmp_path))


def contents(path: Path) -> bytes | None:
    if path.is_symlink():
        return str(path.readlink()).encode()
    return None if path.is_dir() else path.read_bytes()


def tree(host: Host) -> dict[str, tuple[int, bytes | None]]:
    here = Path(host.root)
    return {
        str(path.relative_to(here)): (path.lstat().st_mode, contents(path))
        for path in sorted(here.rglob("*"))
    }


def occupy(host: Host) -> None:
    """What a run of goldnode leaves on a node, put there by its own handlers where they write somebody else's."""
    records.first_contact(host)
    applier = Applier(host, NO_CLASS, {}, lambda text: None, "gpu_driver")
    applier.apply(
        Action(
            "gpu_driver",
            "file.comment",
            "/etc/modules:2",
            "",
            data={"file": "/etc/modules", "line": 2, "module": "nouveau"},
        )
    )
    host.write("/etc/goldnode/class.json", json.dumps({**NO_CLASS, "class": "x"}).encode())
    for directory, pattern in MANAGED:
        host.write(f"{directory}/{re.sub(r'[*?]', '0', pattern)}", b"ours\n")
    host.write("/etc/goldnode/class.json", json.dumps({**NO_CLASS, "class": "x"}).encode())
    for name in LINKS:
        applier.apply(
            Action(
                "sanity",
                "link",
                name,
                "",
                data={"to": "/etc/systemd/system/goldnode-sanity.service"},
            )
        )
    host.write("/var/cache/goldnode/engine", b"")
    merge(host, '{"a": 1, "runtimes": {}}')
    applier.apply(
        Action(
            "container_runtime",
            "link",
            "/etc/systemd/system/theirs.service",
            "",
            data={"to": "/usr/lib/x.service"},
        )
    )
    applier.apply(Action("container_runtime", "link", "/etc/mine", "", data={"to": "/ours"}))


def merge(host: Host, content: str) -> None:
    """As a domain merges its settings into a file of the user's: an action with the content, whose handler writes it."""
    applier = Applier(host, NO_CLASS, {}, lambda text: None, "container_runtime")
    applier.handlers["runtime.config"] = lambda action: host.write(
        action.target, action.data["content"].encode()
    )
    applier.apply(
        Action(
            "container_runtime",
            "runtime.config",
            "/etc/docker/daemon.json",
            "",
            data={"content": content},
        )
    )


def test_a_root_is_what_it_was_before(root: Host) -> None:
    before = tree(root)
    assert plan_absent(root).actions == ()
    occupy(root)
    assert len(tree(root)) > len(before) + 25, "nothing was there to be taken away"
    done, _, after = withdraw(root, handlers=HANDLERS)
    assert len(done) > 25
    assert after.actions == ()
    assert tree(root) == before
    assert withdraw(root, handlers=HANDLERS)[0] == []
    assert tree(root) == before


def test_the_first_contact_is_noted_once_and_never_on_a_node_goldnode_has_been_to(
    root: Host,
) -> None:
    occupy(root)
    known = records.read(root)
    assert "/etc/modprobe.d" in known["first"]["directories"]
    assert "/etc/sysctl.d" not in known["first"]["directories"]
    records.first_contact(root)
    assert records.read(root) == known
    root.path(RECORD).unlink()
    records.first_contact(root)
    assert records.read(root) == {}, "an older goldnode was here, so it is too late to know"


def test_each_action_is_repeatable_wherever_a_removal_is_cut_off(root: Host) -> None:
    before = tree(root)
    occupy(root)
    total = len(plan_absent(root).actions)
    for stop in range(0, total, 5):
        if tree(root) == before:
            occupy(root)
        cut = [0]

        class CutError(Exception):
            pass

        def apply(
            self: Applier, action: Action, stop: int = stop, cut: list[int] = cut
        ) -> str | None:
            cut[0] += 1
            if cut[0] > stop:
                raise CutError
            return self.handlers[action.kind](action)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Applier, "apply", apply)
            with pytest.raises(CutError):
                withdraw(root, handlers=HANDLERS)
        withdraw(root, handlers=HANDLERS)
        assert tree(root) == before, stop


def test_interrupted_removal_leaves_its_last_action_planned(root: Host) -> None:
    """systemd and GRUB have to read anew what has left; a run that dies before that leaves a journal that says so."""
    applier = Applier(root, NO_CLASS, {}, lambda text: None, "absent")
    root.write("/etc/modprobe.d/goldnode-x.conf", b"")

    def die(self: Applier, action: Action) -> None:
        if action.kind == "removal.settle":
            raise NodeError("killed")
        self.handlers[action.kind](action)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Applier, "apply", die)
        with pytest.raises(NodeError, match="killed"):
            withdraw(root, handlers=HANDLERS)
    owed = plan_absent(root).actions
    assert [action.kind for action in owed] == [
        "removal.settle",
        "directory.remove",
        "directory.remove",
    ]
    applier.apply(owed[0])
    assert not root.path(JOURNAL).exists()


def test_the_site_file_of_a_controller_that_is_a_node_stays(root: Host) -> None:
    occupy(root)
    root.write("/etc/goldnode/site.yml", b"locks: /srv\n")
    withdraw(root, handlers=HANDLERS)
    assert root.text("/etc/goldnode/site.yml") == "locks: /srv\n"


def test_user_change_between_two_merges_survives_removal(root: Host) -> None:
    merge(root, '{"a": 1, "runtimes": {}}')
    root.write("/etc/docker/daemon.json", b'{"a": 2, "runtimes": {}}')
    merge(root, '{"a": 2, "runtimes": {}, "features": {"cdi": true}}')
    root.write(
        "/etc/docker/daemon.json", b'{"b": 1, "a": 2, "runtimes": {}, "features": {"cdi": true}}'
    )
    withdraw(root, handlers=HANDLERS)
    assert json.loads(root.text("/etc/docker/daemon.json") or "") == {"b": 1, "a": 2}


def test_a_broken_file_of_the_user_is_refused_before_anything_is_touched(root: Host) -> None:
    occupy(root)
    root.write("/etc/docker/daemon.json", b"{,")
    before = tree(root)
    with pytest.raises(
        NodeError,
        match=r"refused before anything was touched: /etc/docker/daemon.json: not JSON .*line 1 column 2",
    ):
        withdraw(root, handlers=HANDLERS)
    after = {
        name: value for name, value in tree(root).items() if not name.startswith("run/goldnode")
    }
    assert after == {
        name: value for name, value in before.items() if not name.startswith("run/goldnode")
    }


def test_a_torn_class_document_does_not_count(root: Host) -> None:
    root.write("/etc/goldnode/class.json", b'{"schema": "goldn')
    assert own_document(root) is None
    assert completed(None)["kernel"]["release"] == ""


def test_offered_versions_are_listed_once(root: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    from goldnode.node.ground.host import Result

    out = " libc6 | 2.36-9 | http://mirror.example/debian bookworm/main amd64 Packages\n libc6 | 2.36-9 | http://mirror.example/debian bookworm/main Sources\n"
    monkeypatch.setattr(root, "run", lambda *argv, **_: Result(argv, 0, out, ""))
    assert offered(root, ["libc6"]) == {"libc6": ["2.36-9"]}
    assert offered(root, []) == {}


def test_the_program_plans_and_applies_it(root: Host, capsys: pytest.CaptureFixture[str]) -> None:
    occupy(root)
    assert program.main(["plan", "--absent", "--root", root.root]) == 0
    reported = capsys.readouterr().out
    assert (
        reported.index("sanity:") < reported.index("gpu_driver:") < reported.index("node_class:")
    ), "the parts are told in the order of the deed"
    assert program.main(["apply", "--absent", "--format", "json", "--root", root.root]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "absent"
    assert not root.path("/var/lib/goldnode").exists()


@pytest.mark.parametrize("arguments", [["apply"], ["apply", "--absent", "--part", "kernel"]])
def test_the_program_wants_one_of_both(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        program.main(arguments)
    assert left.value.code == 3


def test_a_domain_may_have_things_that_are_no_files() -> None:
    own = Action("gpu_policy", "policy.reset", "gpu0", "set by goldnode")
    domain = SimpleNamespace(
        absent=lambda document, seen, record: [own] if record.get("policy") else []
    )
    seen = Observed(traces={})
    assert [
        action.kind
        for action in removal(None, seen, {"policy": True}, [domain, SimpleNamespace()])[0]
    ] == [
        "policy.reset",
        "removal.settle",
    ]
    assert removal(None, seen, {}, [domain])[0] == []


def test_a_gate_that_cannot_let_go_stops_the_removal(
    root: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(host: Host) -> list[str]:
        raise HookError("scontrol ended with 1")

    monkeypatch.setattr(gate, "release", fail)
    applier = Applier(root, NO_CLASS, {}, lambda text: None, "absent", handlers=HANDLERS)
    with pytest.raises(
        NodeError, match=r"cannot resume it: scontrol ended with 1\. Fix that, then run again\."
    ):
        applier.apply(Action("sanity", "gate.release", "gate", ""))


def test_asking_a_bare_node_leaves_nothing_on_it(root: Host) -> None:
    assert remote.COPIES == starting.PLACE
    before = tree(root)
    root.write(f"{remote.COPIES}/abc/x.py", b"")
    remote.forget_program(root)
    assert tree(root) == before


def test_a_purge_of_docker_leaves_volumes_to_their_owner(
    root: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's docker.io keeps a script in its state directory that its purge runs, and that deletes all of it."""
    root.write("/var/lib/docker/volumes/mine/_data/file", b"mine")
    root.write(removing.NUKE, b"#!/bin/sh\nrm -rf $1\n", 0o755)
    there = []

    def run(*argv: str, **_: Any) -> Result:
        there.append((argv[:2], root.path(removing.NUKE).exists()))
        return Result(argv, 0, "", "")

    monkeypatch.setattr(root, "run", run)
    monkeypatch.setattr(records, "residual_states", lambda _: ["docker.io"])
    data = {
        "remove": ["docker.io"],
        "purge": ["docker.io"],
        "back": [],
        "broken": [],
        "lines": ["purge docker.io"],
    }
    reported = Applier(root, completed(None), {}, print, "absent").apply(
        Action("kernel", "packages.leave", "packages", "why", data=data)
    )
    assert (("dpkg", "--purge"), False) in there
    assert "/var/lib/docker stays" in str(reported)
