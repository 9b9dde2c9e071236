"""`goldnode check --to`: the diff of findings, the order, rollout documents and the reasons why there are none."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result
from tests import documents
from tests.unit.commands import what_if_fleet
from tests.unit.commands.what_if_fleet import PAGE, excerpts, page, report, write_fleet

from goldnode.classdoc import view
from goldnode.cli import main
from goldnode.commands.check import request as check_request
from goldnode.commands.check import what_if
from goldnode.commands.schema.kinds import schema
from goldnode.compat.finding_diff import finding_changes, severity_of
from goldnode.compat.model import CompatFinding, CompatSeverity
from goldnode.inventory.classes import expand
from goldnode.lock.model import dump_lock, load_lock

Json = dict[str, Any]
Check = Callable[..., Result]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fleet(tmp_path_factory.mktemp("fleet"))


@pytest.fixture
def fleet(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the fleet's site, which is the working directory."""
    for name in ("GOLDNODE_CATALOG", "GOLDNODE_LOCKS", "GOLDNODE_SITE"):
        monkeypatch.delenv(name, raising=False)
    shutil.copytree(written, tmp_path / "site")
    monkeypatch.chdir(tmp_path / "site")
    return tmp_path / "site"


def listed(inventory: str, limit: str | None) -> Json:
    """Return the inventory as `ansible-inventory --list` does, in a hundredth of its time."""
    assert limit is None
    groups = yaml.safe_load(Path(inventory).read_text(encoding="utf-8"))
    rows = {
        group: {
            host: values for pattern, values in body["hosts"].items() for host in expand(pattern)
        }
        for group, body in groups.items()
    }
    return {
        "_meta": {
            "hostvars": {
                host: values or {} for hosts in rows.values() for host, values in hosts.items()
            }
        },
        "all": {"children": list(rows)},
        **{group: {"hosts": list(hosts)} for group, hosts in rows.items()},
    }


@pytest.fixture
def quick(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the site of the fleet; no process is started for its inventories."""
    monkeypatch.setattr(check_request, "listed", listed)
    return fleet


def check(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["check", *arguments])


def document(*arguments: str) -> Json:
    result = check("--format", "json", *arguments)
    assert result.exit_code in (0, 1), result.output
    found: Json = documents.valid(result.stdout)
    jsonschema.validate(found, schema("what-if"))
    return found


def edit(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def relock(path: Path, **changes: Any) -> None:
    """Write a lock again as goldnode would, with other content."""
    path.write_text(dump_lock(load_lock(path).model_copy(update=changes)), encoding="utf-8")


def reasons(found: Json, name: str) -> str:
    return " | ".join(item["why"] for item in found["refused"] if item["class"] == name)


# The fleet of the page: 570 -> 580, three classes, five images


def test_upgrade_of_the_fleet_reports_every_class_image_and_cohort(fleet: Path) -> None:
    found = document("--to", "fleet_r580", "-i", "hosts.yml")
    assert {(item["name"], item["before"], item["after"]) for item in found["subjects"]} == {
        ("infer_l4", "limits", "fits"),
        ("vllm/vllm-openai:v0.15.1", "limits", "blocked"),
        ("registry.example.org/infer/server:cu130", "blocked", "fits"),
        ("train_a100", "limits", "fits"),
        ("nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04", "fits", "fits"),
        ("train_h100", "limits", "fits"),
        ("nvidia/cuda:12.8.1-cudnn-runtime-ubuntu24.04", "fits", "fits"),
        ("nvidia/cuda:13.0.2-cudnn-runtime-ubuntu24.04", "limits", "fits"),
        ("finetune", "fits", "fits"),
        ("pretrain", "fits", "fits"),
    }
    assert {item["class"]: item["hosts"] for item in found["moves"]} == {
        "infer_l4": 40,
        "train_a100": 16,
        "train_h100": 32,
    }
    assert [(step["do"], step["what"]) for step in found["order"]] == [
        ("replace", ["image vllm/vllm-openai:v0.15.1 on class infer_l4"]),
        ("move", ["class infer_l4", "class train_a100", "class train_h100"]),
        ("start", ["image registry.example.org/infer/server:cu130 on class infer_l4"]),
        ("drop", ["stack fleet_r570"]),
    ]
    (locks,) = found["locks"]
    assert {part["part"] for part in locks["parts"] if part["before"] != part["after"]} == {
        "kernel",
        "driver",
        "fabric manager",
        "container toolkit",
    }
    assert {
        row["name"]: row["kind"] for row in locks["packages"] if "fabricmanager" in row["name"]
    } == {
        "nvidia-fabricmanager-570": "removed",
        "nvidia-fabricmanager": "new",
    }
    assert "known to be bad (vllm-image-own-compat)" in reasons(found, "infer_l4")
    assert [item["class"] for item in found["rollouts"]] == ["train_a100", "train_h100"]


def test_page_shows_the_report_of_the_fleet(quick: Path) -> None:
    found = excerpts(report(quick))
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, found) == text, f"run `python -m {what_if_fleet.__name__}`"


def test_rollout_documents_are_of_their_schema(quick: Path) -> None:
    result = check("--to", "fleet_r580", "-i", "hosts.yml", "--rollouts", "out")
    assert result.exit_code == 1, "infer_l4 has none"
    files = sorted((quick / "out").iterdir())
    assert [path.name.split("-")[0] for path in files] == ["train_a100", "train_h100"]
    for path in files:
        assert f"wrote out/{path.name}" in result.stderr
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        jsonschema.validate(found, schema("rollout"))
        documents.valid(found)
        assert found["limits"] == {"per": {"cohort": "all-or-none"}}
        assert (
            found["from"]["lock"] == load_lock(quick / "catalog/stacks/fleet_r570.lock.yml").digest
        )
        assert found["to"]["lock"] == load_lock(quick / "catalog/stacks/fleet_r580.lock.yml").digest


def test_text_without_refusals_ends_with_0(quick: Path) -> None:
    result = check("--to", "fleet_r580", "-c", "train_h100")
    assert result.exit_code == 0, result.output
    assert "\norder:\n" in result.stdout
    assert "To declare it: `stack: fleet_r580` in catalog/classes/train_h100.yml:4" in result.stdout
    assert "cohorts, which an inventory declares (-i)" in " ".join(result.stdout.split())
    assert "drop" not in result.stdout, "the other two classes still use the present stack"


def test_html_is_one_escaped_page_without_network(quick: Path) -> None:
    edit(
        quick / "goldnode-site.yml",
        ("the move to 580 is planned", "the move to <b>580</b> is planned"),
    )
    result = check("--to", "fleet_r580", "-i", "hosts.yml", "--format", "html")
    assert result.exit_code == 1
    assert "the move to &lt;b&gt;580&lt;/b&gt; is planned" in result.stdout
    assert "<b>580" not in result.stdout
    assert re.findall(r"(?:src|href)=\"(?!#)[^\"]*\"", result.stdout) == []
    ids = re.findall(r'id="(\w+)"', result.stdout)
    assert set(re.findall(r'href="#(\w+)"', result.stdout)) <= set(ids)
    assert len(ids) == len(set(ids))


# Locks, stacks and classes


def test_lock_file_moves_the_classes_of_its_stack(quick: Path) -> None:
    new = quick / "new/fleet_r570.lock.yml"
    new.parent.mkdir()
    shutil.copy(quick / "catalog/stacks/fleet_r570.lock.yml", new)
    relock(new, kernel_release="6.12.117+deb13-amd64")
    found = document("--to", "new/fleet_r570.lock.yml", "-i", "hosts.yml")
    assert {item["class"] for item in found["moves"]} == {"infer_l4", "train_a100", "train_h100"}
    assert [
        part["part"] for part in found["locks"][0]["parts"] if part["before"] != part["after"]
    ] == ["kernel"]
    assert {item["class"]: item.get("limits") for item in found["rollouts"]} == {
        "train_a100": None,
        "train_h100": None,
    }, "nodes of a cohort may have two kernels, but not two drivers"
    changes = [item for subject in found["subjects"] for item in subject["changes"]]
    assert {item["after"]["rule"] for item in changes if item["change"] == "unchanged"} >= {
        "security-floor"
    }
    assert "drop" not in [step["do"] for step in found["order"]]


def test_stack_without_lock_is_compared_as_declared_and_gets_no_rollout(quick: Path) -> None:
    (quick / "catalog/stacks/fleet_r580.lock.yml").unlink()
    result = check("--to", "fleet_r580", "-c", "train_h100")
    assert result.exit_code == 1
    words = " ".join(result.stdout.split())
    assert "driver 570.211.01 -> branch 580" in words
    assert "packages are not compared: a lock is missing" in words
    assert 'no rollout of class train_h100, because: - stack "fleet_r580" has no lock' in words
    assert "instead: run `goldnode lock fleet_r580`" in words


def test_edited_present_lock_is_a_reason(quick: Path) -> None:
    edit(quick / "catalog/stacks/fleet_r570.lock.yml", ("570.211.01-1", "570.211.01-2"))
    found = document("--to", "fleet_r580", "-c", "train_h100")
    assert "its present lock is not usable: this lock was edited" in reasons(found, "train_h100")
    gone = [item for item in found["subjects"][0]["changes"] if item["change"] == "gone"]
    assert "lock-integrity" in {item["before"]["rule"] for item in gone}


def test_other_backend_or_os_stays_unless_named(quick: Path) -> None:
    edit(
        quick / "hosts.yml",
        ("infer_l4:\n", "cpu_only: {hosts: {c1: {}}}\nl4: {hosts: {l1: {}}}\ninfer_l4:\n"),
    )
    found = document("--to", "fleet_r580", "-i", "hosts.yml")
    assert {item["class"]: item["why"].partition(",")[0] for item in found["stays"]} == {
        "cpu_only": "its backend is cpu",
        "l4": "its nodes have debian 12 amd64",
    }
    named = document("--to", "fleet_r580", "-c", "l4", "-c", "cpu_only")
    assert "is a new installation" in reasons(named, "l4")
    assert 'backend "cpu" needs no GPU driver, but stack "fleet_r580" carries' in reasons(
        named, "cpu_only"
    )


def test_classes_of_one_cohort_move_at_the_same_time_or_not_at_all(quick: Path) -> None:
    edit(quick / "hosts.yml", ("goldnode_cohort: finetune", "goldnode_cohort: pretrain"))
    # The images of the two classes have other NCCL versions, which a cohort must not have.
    for name in ("train_a100", "train_h100"):
        text = (quick / f"catalog/classes/{name}.yml").read_text(encoding="utf-8")
        (quick / f"catalog/classes/{name}.yml").write_text(
            text.partition("images:")[0], encoding="utf-8"
        )
    found = document("--to", "fleet_r580", "-i", "hosts.yml")
    assert [step["what"] for step in found["order"] if step["do"] == "move"] == [
        ["class infer_l4", "classes train_a100, train_h100 at the same time"]
    ]
    assert {item["class"]: item["together"] for item in found["rollouts"]} == {
        "train_a100": ["train_h100"],
        "train_h100": ["train_a100"],
    }
    edit(
        quick / "hosts.yml",
        ('"i[01:40].example.org": {}', '"i[01:40].example.org": {goldnode_cohort: pretrain}'),
    )
    found = document("--to", "fleet_r580", "-i", "hosts.yml")
    assert found["rollouts"] == []
    assert "shares cohort pretrain with class infer_l4, which cannot move" in reasons(
        found, "train_h100"
    )


def test_cohort_with_a_class_that_stays_is_refused(quick: Path) -> None:
    new = quick / "catalog/classes/other_h100.yml"
    new.write_text(
        (quick / "catalog/classes/train_h100.yml").read_text().replace("train_h100", "other_h100")
    )
    edit(
        quick / "hosts.yml",
        ("infer_l4:\n", "other_h100:\n  hosts: {o1: {goldnode_cohort: pretrain}}\ninfer_l4:\n"),
    )
    edit(new, ("stack: fleet_r570", "stack: debian12_r580"))
    found = document("--to", "fleet_r580", "-i", "hosts.yml")
    (cohort,) = (item for item in found["subjects"] if item["name"] == "pretrain")
    assert cohort["before"] == "blocked"
    assert cohort["after"] == "unknown", "the lock of debian12_r580 is not known"
    assert cohort["changes"][0]["after"]["rule"] == "cohort-driver"


def test_limit_leaves_hosts_of_cohorts_out_and_reports_it(fleet: Path) -> None:
    found = document("--to", "fleet_r580", "-i", "hosts.yml", "-l", "h0*")
    assert [(item["class"], item["hosts"]) for item in found["moves"]] == [("train_h100", 9)]
    assert (
        "hosts outside of --limit h0*, which may share cohorts with these" in found["not_checked"]
    )


def test_candidate_image_is_judged_on_both_stacks(quick: Path) -> None:
    found = document(
        "--to", "fleet_r580", "-c", "train_h100", "--image", "nvidia/cuda:12.9.1-base-ubuntu24.04"
    )
    assert ("nvidia/cuda:12.9.1-base-ubuntu24.04", "train_h100") in {
        (item["name"], item["class"]) for item in found["subjects"]
    }


def test_requirements_are_judged_on_both_stacks(quick: Path) -> None:
    (quick / "r.txt").write_text("torch==2.9.0+cu130\n")
    found = document(
        "--to", "fleet_r580", "-c", "train_a100", "--requirements", "r.txt", "--python", "3.12"
    )
    (item,) = (item for item in found["subjects"] if item["kind"] == "requirements")
    assert (item["before"], item["name"]) == ("blocked", "r.txt")
    assert item["after"] != "blocked"
    assert [step["do"] for step in found["order"]] == ["move", "start"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--to", "fleet_r58"), 'stack "fleet_r58" is not in the catalog. Use "fleet_r580"'),
        (
            ("--to", "none/fleet_r580.lock.yml"),
            "none/fleet_r580.lock.yml: there is no such lock. Name a file",
        ),
        (("--to", "hosts.yml"), "hosts.yml:"),
        (
            ("--to", "fleet_r570", "-i", "hosts.yml"),
            "there is nothing to compare: class infer_l4 stays: it is on stack fleet_r570 already",
        ),
        (
            ("--to", "debian13_rocm", "-i", "hosts.yml"),
            "its backend is cuda, and stack debian13_rocm has",
        ),
        (("--to", "fleet_r580", "-i", "none.yml"), 'there is no inventory "none.yml"'),
        (("--to", "fleet_r580", "-i", "stray.yml"), "has no host of any class"),
        (("--to", "fleet_r580", "-c", "train_h10"), 'class "train_h10" is not in the catalog'),
        (("--to", "fleet_r580", "--format", "sarif"), "--to does not go with --format sarif."),
        (("--to", "fleet_r580", "-s", "fleet_r570"), "--to does not go with --stack."),
        (("--format", "html"), "--format html needs --to."),
        (("--rollouts", "out"), "--rollouts needs --to."),
    ],
)
def test_comparison_that_is_not_possible_ends_with_2(
    quick: Path, arguments: tuple[str, ...], expected: str
) -> None:
    (quick / "stray.yml").write_text("others: {hosts: {x1: {}}}\n")
    result = check(*arguments)
    assert result.exit_code == 2, result.output
    assert expected in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            "modules: prebuilt\nmirror: {directory: m, url: 'http://m.example.org'}\n",
            'and stack "fleet_r580" has none',
        ),
        ("mirror: {directory: m, url: 'http://m.example.org'}\n", "the mirror has no publication"),
    ],
    ids=["modules", "mirror"],
)
def test_lock_that_the_site_cannot_install_is_a_reason(
    quick: Path, lines: str, expected: str
) -> None:
    site = quick / "goldnode-site.yml"
    site.write_text(site.read_text(encoding="utf-8") + lines, encoding="utf-8")
    assert expected in reasons(document("--to", "fleet_r580", "-c", "train_h100"), "train_h100")


def test_optional_part_that_the_lock_lacks_is_a_reason(quick: Path) -> None:
    edit(quick / "catalog/classes/train_h100.yml", ("images:", "options: [dcgm]\nimages:"))
    assert "asks for dcgm, which the lock" in reasons(
        document("--to", "fleet_r580", "-c", "train_h100"), "train_h100"
    )


@pytest.mark.parametrize("to", ["fleet_r580", "catalog/stacks/fleet_r580.lock.yml"])
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("580.178.04-1", "580.178.04-2", "this lock was edited after goldnode wrote it"),
        (
            "packages:\n",
            "<<<<<<< ours\npackages:\n=======\n",
            "this lock has the conflict markers of a merge",
        ),
        ("stack: fleet_r580\n", "stack: fleet_r57\n", "this lock was edited"),
    ],
    ids=["edited", "conflict-markers", "of-another-stack"],
)
def test_bad_target_lock_ends_with_2(
    quick: Path, to: str, old: str, new: str, expected: str
) -> None:
    edit(quick / "catalog/stacks/fleet_r580.lock.yml", (old, new))
    result = check("--to", to, "-c", "train_h100")
    assert result.exit_code == 2, result.output
    assert "fleet_r580.lock.yml:" in result.stderr
    assert expected in result.stderr


def test_stale_target_lock_is_a_reason_by_stack_and_an_error_by_file(quick: Path) -> None:
    edit(quick / "catalog/stacks/fleet_r580.yml", ("    - nvidia-modprobe\n", ""))
    assert "this lock is stale" in reasons(
        document("--to", "fleet_r580", "-c", "train_h100"), "train_h100"
    )
    result = check("--to", "catalog/stacks/fleet_r580.lock.yml", "-c", "train_h100")
    assert (result.exit_code, "this lock is stale" in result.stderr) == (2, True)


def test_wrong_catalog_file_stops_only_comparisons_that_use_it(quick: Path) -> None:
    edit(quick / "catalog/classes/infer_l4.yml", ("count: 1", "cuont: 1"))
    assert check("--to", "fleet_r580", "-c", "train_h100").exit_code == 0
    edit(
        quick / "hosts.yml",
        ('"i[01:40].example.org": {}', '"i[01:40].example.org": {goldnode_cohort: pretrain}'),
    )
    fleet_wide = check("--to", "fleet_r580", "-i", "hosts.yml")
    assert fleet_wide.exit_code == 2
    words = " ".join(fleet_wide.stdout.split())
    assert "rollout of class train_a100: #" in words
    assert "shares cohort pretrain with class infer_l4, which cannot be judged" in words
    whole = check("--to", "fleet_r580")
    assert whole.exit_code == 2
    assert "class train_h100" in whole.stdout
    assert "error: " in whole.stderr
    assert "infer_l4.yml:6" in whole.stderr


def test_many_hosts_and_cohorts_are_judged_once_per_class(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = "\n".join(
        f"    h{number}: {{goldnode_cohort: c{number // 8}}}" for number in range(400)
    )
    (quick / "many.yml").write_text(f"train_h100:\n  hosts:\n{hosts}\n")
    made: list[str] = []

    def counted(name: str, *rest: Any, **more: Any) -> Any:
        made.append(name)
        return view.read_class(name, *rest, **more)

    monkeypatch.setattr(what_if, "read_class", counted)
    found = document("--to", "fleet_r580", "-i", "many.yml")
    assert made == ["train_h100"] * 2
    assert [item["name"] for item in found["subjects"] if item["kind"] == "cohort"] == [
        "c0, c1, c10, c11, c12, c13 and 44 more"
    ]


# The diff of findings


def finding(
    message: str, severity: CompatSeverity = "warn", rule: str = "r", **more: Any
) -> CompatFinding:
    return CompatFinding(rule, severity, "class c", message, (), **more)


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ([], [], []),
        ([finding("a")], [finding("a")], ["unchanged"]),
        ([finding("a")], [], ["gone"]),
        ([], [finding("a")], ["new"]),
        ([finding("a")], [finding("b")], ["changed"]),
        ([finding("a")], [finding("a", "block", fatal=True)], ["changed"]),
        ([finding("a")], [finding("a", accepted="ada")], ["changed"]),
        ([finding("a")], [finding("a", rule="other")], ["new", "gone"]),
        ([finding("a", row="x")], [finding("b", row="y")], ["new", "gone"]),
        ([finding("a"), finding("b")], [finding("c")], ["new", "gone", "gone"]),
        ([finding("a"), finding("b")], [finding("b"), finding("c")], ["changed", "unchanged"]),
    ],
)
def test_findings_are_new_gone_changed_or_unchanged(
    before: list[CompatFinding], after: list[CompatFinding], changes: list[str]
) -> None:
    assert [item.change for item in finding_changes(before, after)] == changes


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [
        ([], "fits"),
        ([finding("a")], "limits"),
        ([finding("a"), finding("b", "unknown")], "unknown"),
        ([finding("a", "unknown", fatal=True)], "blocked"),
        ([finding("a", "unknown"), finding("b", "block", fatal=True)], "blocked"),
        ([finding("a", "block", accepted="ada")], "fits"),
    ],
)
def test_heaviest_open_finding_decides_the_verdict(
    findings: list[CompatFinding], verdict: str
) -> None:
    assert severity_of(findings) == verdict


def test_changed_finding_shows_both_sides(quick: Path) -> None:
    relock(quick / "catalog/stacks/fleet_r580.lock.yml", driver_version="580.105.08")
    words = " ".join(check("--to", "fleet_r580", "-c", "train_h100").stdout.split())
    assert re.search(
        r"changed [a-z]+: .*580\.105\.08.* before: warn: no version of driver branch 570", words
    )
