"""The class documents that a node keeps, which of them a rollback returns to, and the trial of a kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.state.test_cases import document
from tests.unit.node.state.test_history import LiveHost

from goldnode.node.ground.host import Host, boot_identity
from goldnode.node.program import main as program
from goldnode.node.state import applied, observe, rollback, trial
from goldnode.node.state import apply as applying
from goldnode.node.state.domains.program import class_file, document_digest
from goldnode.node.state.model import Action, Plan
from goldnode.node.state.observe import TRIAL


def made(name: str, uri: str = "http://a.example") -> Any:
    """A class document of the lock `name`."""
    found = {**document(), "lock": {"digest": f"sha256:{name}", "resolved": "x"}}
    return {**found, "digest": document_digest(found), "site": {"archives": [{"uri": uri}]}}


def row(name: str, by: str = "apply", *, whole: bool = True, good: bool = True) -> dict[str, Any]:
    return {**applied.row_of(made(name), by, whole), "good": good}


@pytest.fixture(autouse=True)
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applied, "packages", lambda host: {"libc6": {"version": "2.36"}})


# rows, oldest first: lock, by, whole, good; what is asked for; the lock that is returned to, and whether the node is there already
CHOICES: list[tuple[list[dict[str, Any]], str, str, bool]] = [
    ([row("a1"), row("b1")], "", "a1", False),
    (
        [row("a1"), row("b1", good=False), row("c1")],
        "",
        "a1",
        False,
    ),  # known-good goes before the last
    (
        [row("a1", good=False), row("b1", good=False), row("c1")],
        "",
        "b1",
        False,
    ),  # none was found good
    (
        [row("a1"), row("b1", whole=False, good=False), row("c1")],
        "",
        "a1",
        False,
    ),  # begun and given up
    (
        [row("a1"), row("b1", whole=False, good=False)],
        "",
        "a1",
        False,
    ),  # the one in force never became whole
    ([row("b1"), row("a1", "rollback")], "", "a1", True),  # taken back already
    (
        [row("b1"), row("a1", "rollback", whole=False)],
        "",
        "a1",
        True,
    ),  # and the rollback is to be finished
    ([row("b1"), row("a1", "rollback"), row("c1")], "", "a1", False),  # forward since
    ([row("za"), row("yb"), row("yc")], "z", "za", False),
    ([row("a1"), row("b1"), row("c1")], "sha256:b1", "b1", False),
    ([row("b1"), row("a1", "rollback")], "b1", "b1", False),  # forward again by name
    ([row("za"), row("yb")], "y", "yb", True),
]


@pytest.mark.parametrize(("rows", "to", "want", "again"), CHOICES)
def test_rollback_chooses_the_expected_earlier_document(
    rows: list[dict[str, Any]], to: str, want: str, again: bool
) -> None:
    choice = applied.earlier(rows, to)
    assert (choice.to["lock_digest"], choice.left, choice.again) == (
        f"sha256:{want}",
        rows[-1],
        again,
    )


@pytest.mark.parametrize(
    ("rows", "to", "words"),
    [
        ([], "", "has no class document"),
        ([row("a1")], "", "has had no other class document"),
        ([row("a1", whole=False, good=False), row("b1")], "", "has had no other class document"),
        ([row("a1"), row("b1")], "ff", "ff is not kept on this node. Kept are the locks: a1"),
        ([row("z1"), row("z2")], "z", "z is the beginning of several digests"),
    ],
)
def test_rollback_without_a_matching_document_is_an_error(
    rows: list[dict[str, Any]], to: str, words: str
) -> None:
    with pytest.raises(applied.GoneError) as none:
        applied.earlier(rows, to)
    assert none.value.code == "nothing-earlier"
    assert words in f"{none.value.message} {none.value.remedy}"


def test_documents_are_stored_whole_and_the_index_follows_the_node(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    for name, by in (("a1", "apply"), ("b1", "apply"), ("a1", "rollback")):
        wanted = made(name)
        applied.enter(host, wanted, by)
        host.write("/etc/goldnode/class.json", class_file(wanted).content.encode())
        applied.mark(host, wanted, whole=True)
        applied.mark(host, wanted, good=name == "a1")
    rows = applied.rows(host)
    assert [(row["lock_digest"], row["by"], row["whole"], row["good"]) for row in rows] == [
        ("sha256:b1", "apply", True, False),
        ("sha256:a1", "rollback", True, True),
    ]
    assert applied.read(host, rows[0]) == made("b1")
    assert json.loads(host.text(applied._versions_file(made("a1")["digest"])) or "") == {
        "libc6": "2.36"
    }


def test_a_site_that_has_moved_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    applied.enter(host, made("a1"), "apply")
    applied.enter(host, made("a1", "http://b.example"), "apply")
    (found,) = applied.rows(host)
    assert applied.read(host, found)["site"]["archives"][0]["uri"] == "http://b.example"
    assert len(host.glob(applied.PLACE, "*.json")) == 2, "the index and one document"


def test_a_document_of_an_older_goldnode_is_stored_when_it_is_left(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write("/etc/goldnode/class.json", class_file(made("a1")).content.encode())
    assert [row["whole"] for row in applied.rows(host)] == [True]
    applied.enter(host, made("b1"), "apply")
    assert applied.read(host, applied.earlier(applied.rows(host)).to) == made("a1")


def test_few_are_stored_and_never_without_the_last_good_one() -> None:
    rows = [row(f"{number:02}", good=number == 1) for number in range(20)]
    stored = applied.rows_to_keep(rows)
    assert len(stored) == applied.KEEP
    assert stored[0] is rows[1]
    assert stored[1:] == rows[-applied.KEEP + 1 :]
    assert applied.rows_to_keep(rows[:3]) == rows[:3]


@pytest.mark.parametrize("spoil", ["change", "remove"])
def test_a_document_that_was_changed_is_not_returned_to(tmp_path: Path, spoil: str) -> None:
    host = Host(str(tmp_path))
    for name in ("a1", "b1"):
        applied.enter(host, made(name), "apply")
        applied.mark(host, made(name), whole=True)
    (file,) = [
        path
        for path in (tmp_path / applied.PLACE.lstrip("/")).glob("*.json")
        if '"sha256:a1"' in path.read_text() and path.name != "index.json"
    ]
    file.write_text("{}") if spoil == "change" else file.unlink()
    reported = rollback.planned(host, "", {}, 0)
    assert [refusal["code"] for refusal in reported["plan"]["refusals"]] == ["damaged"]
    assert reported["rollback"] is None


def test_only_what_is_new_is_written(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    applied.mark(host, made("a1"), whole=True)
    assert not (tmp_path / "var").exists(), (
        "a node of an older goldnode gets no index by being checked"
    )
    applied.enter(host, made("a1"), "apply")
    applied.mark(host, made("a1"), whole=True, good=True)
    before = (tmp_path / observe.INDEX.lstrip("/")).stat().st_mtime_ns
    applied.mark(host, made("a1"), good=True)
    applied.mark(host, made("b1"), good=True)
    assert (tmp_path / observe.INDEX.lstrip("/")).stat().st_mtime_ns == before


# A kernel that is tried


def finding(name: str, outcome: str, severity: str = "drain") -> dict[str, Any]:
    return {
        "id": name,
        "outcome": outcome,
        "severity": severity,
        "expected": "a",
        "got": "b",
        "remedy": "r",
    }


TRIED = document()["kernel"]["release"]
# the kernel that runs, findings, armed in this very boot; whether it becomes the default, and what is told
TRIALS: list[tuple[str, list[dict[str, Any]], bool, bool, str | None]] = [
    (TRIED, [finding("stack.lock", "match")], False, True, "is the default from now on"),
    (
        TRIED,
        [finding("boot.next", "mismatch"), finding("boot.pending", "mismatch", "degraded")],
        False,
        True,
        "is the default from now on",
    ),
    (
        TRIED,
        [finding("gpu.ids", "not_verified_here"), finding("gpu.clocks", "not_exposed")],
        False,
        True,
        "is the default from now on",
    ),
    (
        TRIED,
        [finding("pcie.gen", "deferred"), finding("gpu.ecc", "suppressed")],
        False,
        True,
        "is the default from now on",
    ),
    (
        TRIED,
        [finding("driver.loaded", "mismatch")],
        False,
        False,
        "does not become the default: driver.loaded: b (want a)",
    ),
    (
        TRIED,
        [finding("driver.loaded", "could_not_read")],
        False,
        False,
        "does not become the default",
    ),
    ("6.1.0-905-amd64", [], False, False, "the boot that tried it came up with 6.1.0-905-amd64"),
    ("6.1.0-905-amd64", [], True, False, None),
]


@pytest.mark.parametrize(("runs", "findings", "same_boot", "default", "words"), TRIALS)
def test_a_tried_kernel_is_the_default_only_after_a_good_check(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    runs: str,
    findings: list[Any],
    same_boot: bool,
    default: bool,
    words: str | None,
) -> None:
    host = LiveHost(str(tmp_path))
    host.write("/proc/sys/kernel/osrelease", f"{runs}\n".encode())
    host.write("/proc/sys/kernel/random/boot_id", b"now\n")
    host.write("/proc/1/stat", f"1 (systemd) {' '.join(map(str, range(30)))}".encode())
    armed = boot_identity(host) if same_boot else "before"
    host.write(
        TRIAL, json.dumps({"release": TRIED, "boot_identity": armed, "failed": None}).encode()
    )
    made_default: list[str] = []
    monkeypatch.setattr(
        applying.Applier, "make_default", lambda self, release: made_default.append(release)
    )
    reported = trial.settle(host, document(), {"findings": findings})
    assert made_default == ([TRIED] if default else [])
    assert (reported is None) if words is None else (reported is not None and words in reported)
    assert bool(json.loads(host.text(TRIAL) or "{}").get("failed")) == (
        not default and words is not None
    )


def test_a_node_without_a_trial_is_not_disturbed(tmp_path: Path) -> None:
    host = LiveHost(str(tmp_path))
    verdict = {"findings": [finding("x", "mismatch")]}
    assert program.settled(host, document(), verdict, passive=True) is verdict
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("left", [True, False])
def test_a_part_that_succeeds_keeps_the_journal_of_one_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    """Else neither the next run nor a rollback may finish what a failed transaction left with dpkg."""
    host = Host(str(tmp_path))
    host.write(observe.JOURNAL, json.dumps({"part": "gpu_driver"}).encode())
    repair = Action("node_class", "packages.repair", "dpkg", "half done")
    plan = Plan((repair,) if left else ())
    monkeypatch.setattr(applying, "plan", lambda *words, **more: plan)
    applier = applying.Applier(host, made("a1"), {}, lambda text: None, "sanity")
    after = applying.settle(
        host, document=made("a1"), part="sanity", before=plan, applier=applier, done=[]
    )
    assert after is plan
    assert host.exists(observe.JOURNAL) == left
