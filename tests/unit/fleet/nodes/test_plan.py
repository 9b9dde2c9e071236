"""`goldnode plan`: which nodes are told together, and what a person and a program read of five nodes of two classes. No node, no Ansible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from goldnode.cli import main
from goldnode.fleet.nodes import plan as planning
from goldnode.fleet.nodes.plan import (
    CHANGE,
    CONVERGED,
    FAILED,
    REBOOT,
    REFUSED,
    UNREACHABLE,
    WAITING,
    HostPlan,
    PlannedChange,
)
from goldnode.node.state.model import PARTS as STATE_PARTS

CASES = json.loads((Path(__file__).parents[3] / "cases" / "fleet_plans.json").read_text())
PARTS = {"linux-image-6.1": "kernel", "libcuda1": "driver", "docker.io": "runtime"}
DOCUMENT = {
    "stack": {"name": "debian12_r535"},
    "lock": {"digest": "sha256:0123456789abcdef"},
    "digest": "sha256:c",
    "packages": [{"name": name, "part": part} for name, part in PARTS.items()],
}


def item(text: str) -> PlannedChange:
    section, line, *detail = text.split("|")
    return PlannedChange(section, line, tuple(detail))


@pytest.mark.parametrize("case", CASES, ids=[case["case"].replace(" ", "-") for case in CASES])
def test_hosts_with_similar_plans_are_grouped(case: dict[str, Any]) -> None:
    groups = planning.grouped(
        {name: [item(text) for text in rows] for name, rows in case["hosts"].items()}
    )
    assert len(groups) == len(case["groups"])
    for group, want in zip(groups, case["groups"], strict=True):
        assert group.hosts == want["hosts"]
        assert group.like == want.get("like")
        assert group.also == [item(text) for text in want.get("also", [])]
        assert group.lacks == [item(text) for text in want.get("lacks", [])]


def action(kind: str, target: str, **changes: Any) -> dict[str, Any]:
    row = {
        "part": "kernel",
        "kind": kind,
        "target": target,
        "reason": "want it",
        "phase": "image",
        "before": None,
        "after": "x\n",
    }
    return {**row, "reboot": None, "data": {}, **changes}


TRANSACTION = action(
    "packages.transact",
    "debian12_r535",
    data={
        "lines": [
            "upgrade   libcuda1 535.261-1 -> 535.309-1",
            "install   linux-image-6.1 6.1.2-1",
            "remove    libfoo 3 (of the driver family, not of this stack)",
            "downgrade docker.io 26 -> 20",
            "repair    linux-image-6.1 6.1.2-1 (is half-installed)",
        ]
    },
)
DAEMON = action(
    "file.write",
    "/etc/apt/preferences.d/goldnode-stack",
    before="Pin: version 1\nsame\n",
    after="Pin: version 2\nsame\n",
    data={},
)


def plan(*actions: dict[str, Any], **changes: Any) -> dict[str, Any]:
    reboot = {"required": False, "reasons": [], "after": []}
    return {
        "actions": list(actions),
        "refusals": [],
        "notes": [],
        "waiting": [],
        "holders": [],
        "reboot": reboot,
        **changes,
    }


HEAD = {
    "schema": "goldnode.plan/1",
    "state": "present",
    "class_digest": "sha256:c",
    "drain": "none",
}
JOB = {"pid": 4711, "command": "python3", "unit": "train.service", "container": "0123456789ab"}
IN_USE = {
    "code": "gpu-in-use",
    "message": "Processes hold the GPU: pid 4711 python3.",
    "remedy": "Drain the node.",
}
BOOT = {
    "required": True,
    "reasons": ["kernel 6.1 runs, want 6.2"],
    "after": ["kernel 6.1 runs, want 6.2"],
}


def fleet() -> list[HostPlan]:
    """Five nodes of two classes, and one of none."""
    changes = (TRANSACTION, DAEMON)
    return [
        HostPlan("gpu01", "a100", plan(*changes)),
        HostPlan("gpu02", "a100", plan(*changes)),
        HostPlan("gpu03", "a100", plan(*changes, holders=[JOB], waiting=[{"part": "container_runtime", "subject": "docker.service", "message": "a restart"}])),
        HostPlan("gpu04", "a100", plan(notes=[{"subject": "gpu", "message": "GPUs cannot be seen here"}])),
        HostPlan("gpu05", "a100", state=UNREACHABLE, message="ssh: connect to host gpu05 port 22: Connection refused"),
        HostPlan("cpu01", "cpu", plan(reboot=BOOT)),
        HostPlan("odd", None, state=FAILED, message="Host odd is of no node class"),
    ]  # fmt: skip


def test_the_whole_for_a_person() -> None:
    told = planning.text(fleet(), {"a100": DOCUMENT})
    assert (
        told.splitlines()
        == """\
7 hosts of 2 classes: 1 unreachable, 1 failed, 3 to change, 1 reboot pending, 1 converged. Nothing was changed.

class a100 (stack debian12_r535, lock 0123456789ab): 5 hosts: 1 unreachable, 3 to change, 1 converged
  unreachable: gpu05: ssh: connect to host gpu05 port 22: Connection refused
  converged: gpu04

  gpu01, gpu02:
    packages: 1 to install, 1 to repair, 1 to upgrade, 1 to downgrade, 1 to remove, in one transaction
      kernel   install   linux-image-6.1  6.1.2-1
      kernel   repair    linux-image-6.1  half installed → 6.1.2-1
      driver   upgrade   libcuda1         535.261-1 → 535.309-1
      driver   remove    libfoo           3
      runtime  downgrade docker.io        26 → 20
    files
      change /etc/apt/preferences.d/goldnode-stack: want it
          @@ -1,2 +1,2 @@
          -Pin: version 1
          +Pin: version 2
           same

  gpu03: as gpu01, gpu02, but
    also, holds a GPU
      pid 4711 python3, unit train.service, container 0123456789ab
    also, waits for a drain
      docker.service: a restart
  not verified here: GPUs cannot be seen here

class cpu: 1 host: 1 reboot pending

  cpu01:
    reboot afterwards
      kernel 6.1 runs, want 6.2

of no class: 1 host: 1 failed
  failed: odd: Host odd is of no node class""".splitlines()
    )


def test_the_whole_for_a_program() -> None:
    found = planning.overview(fleet(), {"inventory": "i", "limit": None}, {"a100": DOCUMENT})
    assert json.loads(json.dumps(found)) == found
    assert (found["schema"], found["inventory"]) == ("goldnode.plans/1", "i")
    assert found["counts"] == {UNREACHABLE: 1, FAILED: 1, CHANGE: 3, REBOOT: 1, CONVERGED: 1}
    assert set(found["hosts"]) == {host.name for host in fleet()}, "no host is missing"
    mine = found["classes"]["a100"]
    assert (mine["stack"], mine["converged"]) == ("debian12_r535", ["gpu04"])
    assert [group["hosts"] for group in mine["groups"]] == [["gpu01", "gpu02"], ["gpu03"]]
    rows = {(row["package"], row["verb"]): row for row in mine["groups"][0]["sections"]["packages"]}
    assert (
        rows["libcuda1", "upgrade"]["from"],
        rows["libcuda1", "upgrade"]["to"],
        rows["libcuda1", "upgrade"]["part"],
    ) == (
        "535.261-1",
        "535.309-1",
        "driver",
    )
    assert rows["libfoo", "remove"]["to"] is None
    assert found["hosts"]["gpu03"]["holders"] == [JOB]


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (plan(), CONVERGED),
        (plan(DAEMON), CHANGE),
        (plan(DAEMON, refusals=[IN_USE]), REFUSED),
        (plan(refusals=[IN_USE]), REFUSED),
        (plan(waiting=[{"part": "p", "subject": "s", "message": "m"}]), WAITING),
        (plan(reboot=BOOT), REBOOT),
        (plan(DAEMON, reboot=BOOT), CHANGE),
    ],
)
def test_host_state_ranks_refusal_before_change_before_reboot(
    found: dict[str, Any], state: str
) -> None:
    assert HostPlan("a", "c", found).state == state


def test_equal_plans_of_many_hosts_are_one_object_and_judged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"n{number:03}" for number in range(300)]
    for number, name in enumerate(names):
        actions = [action("file.write", "/etc/x", after="one\n" if number % 100 else "two\n")]
        lines = [f"{row['kind']} {row['target']}: {row['reason']}" for row in actions]
        parts = {part: lines if part == "kernel" else [] for part in STATE_PARTS}
        found = plan(*actions, parts=parts, boot_identity=f"boot {number}", **HEAD)
        found["reboot"]["held"] = []
        answer = {
            "node_class": {"class": "c", "class_digest": "sha256:c"},
            "ansible_facts": {"goldnode_plan": found},
        }
        (tmp_path / name).write_text(json.dumps(answer), encoding="utf-8")
    hosts = planning.hosts_of([*names, "silent"], dict.fromkeys(names, "c"), tmp_path, "why")
    assert [host.state for host in hosts] == [CHANGE] * 300 + [FAILED]
    assert len({id(host.plan) for host in hosts[:-1]}) == 2
    judged: list[object] = []
    own = planning.items

    def counted(plan: dict[str, Any], parts: dict[str, str]) -> list[PlannedChange]:
        judged.append(plan)
        return own(plan, parts)

    monkeypatch.setattr(planning, "items", counted)
    groups = planning.groups_of(hosts, DOCUMENT)
    assert len(judged) == 2
    assert [len(group.hosts) for group in groups] == [297, 3]


@pytest.mark.parametrize(
    ("states", "plain", "detailed"),
    [
        ([CONVERGED], 0, 0),
        ([CONVERGED, CHANGE], 0, 1),
        ([WAITING], 0, 1),
        ([REBOOT], 0, 1),
        ([CHANGE, REFUSED], 2, 2),
        ([CONVERGED, UNREACHABLE], 2, 2),
        ([FAILED], 2, 2),
    ],
)
def test_exit_code_follows_from_the_states_of_hosts(
    states: list[str], plain: int, detailed: int
) -> None:
    hosts = [HostPlan(f"h{number}", "c", state=state) for number, state in enumerate(states)]
    assert (
        planning.exit_code(hosts, detailed=False),
        planning.exit_code(hosts, detailed=True),
    ) == (
        plain,
        detailed,
    )


@pytest.mark.parametrize(
    ("kind", "target", "section"),
    [
        ("file.write", "/etc/modprobe.d/goldnode-options.conf", "kernel modules"),
        ("file.comment", "/etc/modules:3", "kernel modules"),
        ("file.write", "/etc/initramfs-tools/hooks/zz-goldnode", "initramfs"),
        ("initramfs.rebuild", "6.1.0-902-amd64", "initramfs"),
        ("file.write", "/etc/systemd/system/goldnode-sanity.service", "units"),
        ("runtime.restart", "docker.service", "units"),
        ("boot.once", "6.1", "boot loader"),
        ("file.write", "/etc/default/grub.d/91-goldnode-cmdline.cfg", "boot loader"),
        ("module.build", "nvidia for 6.1", "kernel modules"),
        ("gpu.set", "power limit", "GPU settings"),
        ("tuning.set", "governor", "host settings"),
        ("runtime.config", "/etc/docker/daemon.json", "units"),
        ("link", "/etc/cdi/x", "files"),
        ("packages.hold", "kernel", "packages"),
    ],
)
def test_action_is_shown_in_its_section(kind: str, target: str, section: str) -> None:
    (found,) = planning.items(plan(action(kind, target)), {})
    assert found.section == (section if kind != "runtime.config" else "files")


def test_a_refusal_names_who_holds_the_gpu_once() -> None:
    found = planning.items(plan(DAEMON, refusals=[IN_USE], holders=[JOB]), {})
    assert [row.section for row in found] == ["refused", "files"]
    assert "pid 4711 python3" in found[0].line


def test_password_of_an_address_is_masked() -> None:
    secret = action(
        "file.write",
        "/etc/apt/sources.list.d/goldnode-x.sources",
        before="a\n",
        after="URIs: http://me:secret@mirror/x\n",
    )
    (found,) = planning.items(plan(secret), {})
    assert "secret" not in str(found)
    assert "+URIs: http://***@mirror/x" in found.detail


def test_a_long_diff_is_cut_unless_all_is_asked_for() -> None:
    lines = "".join(f"line {number}\n" for number in range(200))
    long = [HostPlan("a", "c", plan(action("file.write", "/etc/x", before="old\n", after=lines)))]
    fresh = [HostPlan("a", "c", plan(action("file.write", "/etc/x", after=lines)))]
    assert "more lines: --full shows them" in planning.text(long, {})
    assert "line 1" not in planning.text(fresh, {})
    assert "new /etc/x: want it (200 lines)" in planning.text(fresh, {})
    for hosts in (long, fresh):
        assert "+line 199" in planning.text(hosts, {}, full=True)


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        (None, FAILED, "there was no answer: why"),
        ("nonsense", FAILED, "its answer is no plan"),
        ("[]", FAILED, "its answer is no plan"),
        (
            '{"ansible_facts": {"goldnode_plan": {"schema": "x"}}}',
            FAILED,
            "its answer is no plan: plan does not have the keys",
        ),
        (
            '{"unreachable": true, "msg": "Task failed: Failed to connect to the host via ssh: banner\\nssh: no route"}',
            UNREACHABLE,
            "ssh: no route",
        ),
        (
            '{"failed": true, "msg": "Task failed: Action failed: Host h is of no node class: groups"}',
            FAILED,
            "Host h is of no node class",
        ),
    ],
)
def test_answer_without_a_plan_gives_its_state_and_reason(
    answer: str | None, state: str, words: str
) -> None:
    host = planning.host_of("h", "c", answer, "why")
    assert (host.state, host.node_class) == (state, "c")
    assert words in str(host.message)


def test_an_inventory_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("all: [")
    done = CliRunner().invoke(main, ["plan", "-i", str(tmp_path / "hosts.yml")])
    assert done.exit_code == 2
    assert "hosts.yml:2: this is not valid YAML" in done.output
    with_limit = CliRunner().invoke(
        main, ["plan", "-i", str(tmp_path / "hosts.yml"), "--limit", "x"]
    )
    assert "hosts.yml:2: this is not valid YAML" in with_limit.output, "it is not the limit"


def test_an_inventory_or_a_limit_that_is_nothing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inventories/demo").mkdir(parents=True)
    (tmp_path / "inventories/demo/hosts.yml").write_text(
        "cpu_only: {hosts: {gpu07: {}, gpu08: {}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    absent = 'error: there is no inventory "inventories/demmo". Use "inventories/demo".\n'
    for words, said in (
        (("plan", "-i", "inventories/demmo"), absent),
        (("adopt", "-i", "inventories/demmo", "gpu07"), absent),
        (
            ("plan", "-i", "inventories/demo", "--limit", "gpu77"),
            'error: --limit gpu77 names no host of inventories/demo. Use "gpu07".\n',
        ),
        (
            ("plan", "-i", "inventories/demo", "--limit", "cpu_onyl"),
            'error: --limit cpu_onyl names no host of inventories/demo. Use "cpu_only".\n',
        ),
    ):
        done = CliRunner().invoke(main, list(words))
        assert (done.exit_code, done.output) == (2, said)
