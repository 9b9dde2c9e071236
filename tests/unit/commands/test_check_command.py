"""`goldnode check`: what it looks at, what it says in which form, and how it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pydantic import RootModel
from tests.unit.catalog.test_accept_reject import CLASS, FILES, STACK, write
from tests.unit.classdoc.test_class_document import LOCK

from goldnode.classdoc import cache as stored
from goldnode.classdoc import view
from goldnode.classdoc.load import load_catalog
from goldnode.cli import main
from goldnode.commands.check import request as command
from goldnode.compat import report
from goldnode.compat.check import registry
from goldnode.compat.model import CompatFinding, DeclaredAt
from goldnode.facts import host as facts
from goldnode.facts import models
from goldnode.lock.model import dump_lock, intent_digest

ARCHIVES = FILES["archives.yml"].replace("  debian:", "  nvidia-cuda:")
NVIDIA = STACK.replace("archives: [debian]", "archives: [nvidia-cuda]")
PROPRIETARY = NVIDIA.replace("flavour: open", "flavour: proprietary")
B200 = "class: a100\nbackend: cuda\nstack: r580\ngpu: {model: B200-SXM-180GB, count: 8}\n"
ACCEPT = 'compat: {accept: [{rule: %s, reason: seen to work, owner: me, expires: "%s"}]}\n'

Check = Callable[..., Result]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Run the command on a catalog of its own: class a100 and stacks r580, plain and rocm, with `files` in place of its files."""
    monkeypatch.setattr("goldnode.catalog.load.builtin_catalog", lambda: tmp_path / "catalog")
    for name in ("GOLDNODE_CATALOG", "GOLDNODE_LOCKS", "GOLDNODE_SITE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()

    def run(*arguments: str, files: dict[str, str] | None = None) -> Result:
        stacks = {
            name: text.replace("archives: [debian]", "archives: [nvidia-cuda]")
            for name, text in FILES.items()
            if "stacks" in name
        }
        write(tmp_path / "catalog", {**FILES, **stacks, "archives.yml": ARCHIVES, **(files or {})})
        return CliRunner().invoke(main, ["check", *arguments])

    return run


def test_nothing_named_is_every_class(check: Check) -> None:
    result = check()
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("class a100  (catalog/classes/a100.yml:1)\n  unknown  stack")
    last = " ".join(result.stdout.split())
    assert "1 class validated against" in last
    assert "0 block, 1 warn, 1 unknown" in last
    assert (
        "Not checked: the workloads of a100, which name no image and no requirements; exact versions of r580"
        in last
    )


def test_nothing_named_on_a_site_with_classes_is_its_own_classes(
    check: Check, tmp_path: Path
) -> None:
    write(tmp_path / "own", {"classes/mine.yml": CLASS.replace("class: a100", "class: mine")})
    (tmp_path / "goldnode-site.yml").write_text("catalog: own\n")
    result = check()
    assert result.stdout.startswith("class mine  (own/classes/mine.yml:1)"), result.output
    assert "class a100" not in result.stdout
    assert "the 1 class in goldnode's own catalog, which -c names" in " ".join(
        result.stdout.split()
    )
    assert check("-c", "a100").stdout.startswith("class a100")
    (tmp_path / "own/classes/mine.yml").write_text("class: mine\n")
    broken = check()
    assert (broken.exit_code, broken.stdout) == (2, "")
    assert "own/classes/mine.yml" in broken.stderr


def test_blocked_class_exits_1_with_remedy_and_place(check: Check) -> None:
    result = check(
        "--class", "a100", files={"stacks/r580.yml": PROPRIETARY, "classes/a100.yml": B200}
    )
    assert result.exit_code == 1
    words = " ".join(result.stdout.split())
    assert (
        "block B200-SXM-180GB (Blackwell) needs the open kernel modules, and driver branch 580 comes with the proprietary ones"
        in words
    )
    assert (
        "[module-flavour] instead: use a stack with the open modules source: NVIDIA open-gpu-kernel-modules"
        in words
    )
    assert "at: catalog/stacks/r580.yml:6" in words


def test_classes_without_a_lock_are_named_and_can_be_refused(check: Check) -> None:
    assert "1 class cannot be applied yet: a100: no lock (goldnode lock r580)." in " ".join(
        check().output.split()
    )
    assert (check().exit_code, check("--require-lock").exit_code) == (0, 1)
    assert [item["class"] for item in document(check("--format", "json"))["unlocked"]] == ["a100"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda text: text.replace("580.178.04-1", "580.178.04-2", 1),
            "was edited after goldnode wrote it",
        ),
        (
            lambda text: f"<<<<<<< ours\n{text}=======\n>>>>>>> theirs\n",
            "this lock has the conflict markers of a merge",
        ),
        (lambda text: text.replace("stack: r580", "stack: other", 1), "was edited"),
    ],
    ids=["edited", "conflict-markers", "of-another-stack"],
)
def test_check_blocks_when_the_lock_is_not_as_written(
    check: Check, change: Callable[[str], str], message: str, tmp_path: Path
) -> None:
    check()
    stack = load_catalog([tmp_path / "catalog"]).stack("r580")
    lock = LOCK.model_copy(update={"intent": intent_digest(stack.item)})
    file = tmp_path / "catalog/stacks/r580.lock.yml"
    file.write_text(dump_lock(lock))
    assert [
        item["rule"] for item in document(check("--format", "json"))["findings"] if item["fatal"]
    ] == []
    file.write_text(change(file.read_text()))
    result = check("--format", "json")
    (fatal,) = (item for item in document(result)["findings"] if item["fatal"])
    assert result.exit_code == 1
    assert fatal["rule"] == "lock-integrity"
    assert message in fatal["message"]
    assert fatal["place"]["file"] == str(file)


def test_check_blocks_when_the_lock_is_a_link_to_nothing(check: Check, tmp_path: Path) -> None:
    check()
    (tmp_path / "catalog/stacks/r580.lock.yml").symlink_to("elsewhere/r580.lock.yml")
    result = check("--format", "json")
    (fatal,) = (item for item in document(result)["findings"] if item["fatal"])
    assert (result.exit_code, fatal["rule"]) == (1, "lock-integrity")
    assert "this link points to nothing" in fatal["message"]


def test_check_catalog_reports_an_edited_lock_once(check: Check, tmp_path: Path) -> None:
    check()
    file = tmp_path / "catalog/stacks/r580.lock.yml"
    file.write_text(dump_lock(LOCK).replace("580.178.04-1", "580.178.04-2", 1))
    result = CliRunner().invoke(main, ["check-catalog"])
    assert result.exit_code == 2
    assert result.stderr.count("this lock was edited") == 1, result.stderr


def test_a_wrong_catalog_file_stops_only_what_uses_it(check: Check, tmp_path: Path) -> None:
    files = {
        "classes/b200.yml": B200.replace("class: a100", "class: b200").replace("count", "cuont")
    }
    whole = check(files=files)
    assert whole.exit_code == 2
    assert "class a100" in whole.stdout
    assert f"error: {tmp_path}/catalog/classes/b200.yml:4: " in whole.stderr
    one = check("--class", "a100", files=files)
    assert one.exit_code == 0, one.output
    assert "catalog/classes/b200.yml, which is wrong" in re.sub(r"\s+", " ", one.stdout)
    assert check("--class", "b200", files=files).exit_code == 2


def test_wrong_facts_are_an_error_whatever_is_asked_for(check: Check, tmp_path: Path) -> None:
    write(tmp_path / "own", {"facts/gpus.yml": "gpus: []\n"})
    (tmp_path / "goldnode-site.yml").write_text("catalog: own\n")
    for arguments in (["--class", "a100"], []):
        result = check(*arguments)
        assert result.exit_code == 2
        assert result.stdout.startswith("class a100"), "judged by goldnode's own facts"
        assert result.stderr.count(f"error: {tmp_path}/own/facts/gpus.yml:1: ") == 1


def test_a_wrong_catalog_file_leaves_the_other_classes_of_an_inventory(
    check: Check, tmp_path: Path
) -> None:
    files = {
        "classes/b200.yml": B200.replace("class: a100", "class: b200").replace("count", "cuont")
    }
    (tmp_path / "hosts.yml").write_text(INVENTORY)
    result = check("-i", "hosts.yml", files=files)
    assert result.exit_code == 2
    words = " ".join(result.stdout.split())
    assert "class a100" in words
    assert "class b200 in cohort c1" in words.partition("Not checked: ")[2]
    assert result.stderr.count("error: ") == 1
    assert "classes/b200.yml:4: " in result.stderr
    assert "hosts of no class: x1" in words
    named = check("--class", "a100", "--class", "b200", files=files)
    assert (named.exit_code, "class a100" in named.stdout) == (2, True)
    (tmp_path / "hosts.yml").write_text("b200: {hosts: {n3: {}}}\n")
    alone = check("-i", "hosts.yml", files=files)
    assert (alone.exit_code, alone.stdout, "b200.yml:4" in alone.stderr) == (2, "", True)


def test_a_wrong_stack_stops_only_the_classes_on_it(check: Check, tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("a100: {hosts: {n1: {}}}\nc: {hosts: {n2: {}}}\n")
    files = {
        "stacks/plain.yml": "stack: plain\n  : [\n",
        "classes/c.yml": "class: c\nbackend: cpu\nstack: plain\n",
    }
    result = check("-i", "hosts.yml", files=files)
    assert result.exit_code == 2
    assert "class a100" in result.stdout
    assert 'class "c" cannot be used: this is not valid YAML' in result.stderr
    assert check("--stack", "r580", files=files).exit_code == 0
    both = check("--stack", "r580", "--stack", "plain", files=files)
    assert (both.exit_code, "stack r580" in both.stdout, "plain.yml:" in both.stderr) == (
        2,
        True,
        True,
    )


def test_an_inventory_without_a_class_names_the_unreadable_catalog(
    check: Check, tmp_path: Path
) -> None:
    (tmp_path / "hosts.yml").write_text("mine: {hosts: {n1: {}}}\n")
    (tmp_path / "goldnode-site.yml").write_text("catalog: nowhere\n")
    result = check("-i", "hosts.yml")
    assert result.exit_code == 2
    assert "nowhere" in result.stderr
    assert "no host of any class" not in result.stderr


def test_an_inventory_with_many_hosts_of_a_class_judges_the_class_once(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fleet.ini").write_text("[a100]\nnode[001:300]\n")
    made: list[str] = []

    def counted(name: str, *rest: Any, **more: Any) -> view.ClassView:
        made.append(name)
        return view.read_class(name, *rest, **more)

    monkeypatch.setattr(command, "read_class", counted)
    assert check("-i", "fleet.ini").exit_code == 0
    assert made == ["a100"]


def test_check_blocks_fabric_manager_toolkit_and_open_module_faults(check: Check) -> None:
    toolkit = "[nvidia-container-toolkit, nvidia-container-toolkit-base, libnvidia-container-tools, libnvidia-container1]"
    runtime = f'runtime: {{engine: docker, package: d, packages: [d], toolkit: {{vendor: nvidia, packages: {toolkit}, version: "1.17.7"}}}}\n'
    runtime = runtime.replace("package: d,", "package: docker.io,").replace("[d]", "[docker.io]")
    stack = NVIDIA.replace("  fabric_manager: {package: nvidia-fabricmanager}\n", "") + runtime
    result = check("--format", "json", files={"stacks/r580.yml": stack})
    fatal = {
        (item["rule"], Path(item["place"]["file"]).name, item["place"]["line"])
        for item in document(result)["findings"]
        if item["fatal"]
    }
    assert ("fabric-manager", "a100.yml", 4) in fatal
    assert ("toolkit-floor", "r580.yml", 17) in fatal
    volta = B200.replace("B200-SXM-180GB", "V100-SXM2-32GB")
    assert (
        "does not work with the open kernel modules"
        in check(files={"classes/a100.yml": volta}).stdout
    )


def document(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_json_report_has_subjects_counts_and_findings(check: Check) -> None:
    found = document(check("--format", "json", "--stack", "plain"))
    assert found["schema"] == "goldnode.check/1"
    assert "GPUs and platforms of plain: stacks alone have none" in found["not_checked"]
    assert [item["subject"] for item in found["subjects"]] == ["stack plain"]
    assert found["fatal"] is False
    assert found["facts"] == str(facts.compiled())
    assert found["counts"] == {"block": 0, "warn": 1, "unknown": 1, "accepted": 0}
    (support,) = (item for item in found["findings"] if item["rule"] == "os-support")
    assert support["sources"][0]["file"] == "distros.yml"
    assert support["remedy"].startswith("plan the move")


def test_sarif_report_marks_accepted_findings_as_suppressed(check: Check) -> None:
    accept = B200 + ACCEPT % ("module-flavour", "2099-01-01")
    result = check(
        "--format", "sarif", files={"stacks/r580.yml": PROPRIETARY, "classes/a100.yml": accept}
    )
    assert result.exit_code == 0, "accepted"
    log = document(result)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert {rule["id"] for rule in rules} == registry().keys()
    for item in run["results"]:
        assert rules[item["ruleIndex"]]["id"] == item["ruleId"]
        assert item["level"] in ("error", "warning", "note")
        place = item["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uriBaseId"] == "SRCROOT"
        assert place["artifactLocation"]["uri"].startswith("catalog/")
        assert place["region"]["startLine"] > 0
    (accepted,) = (item for item in run["results"] if item["ruleId"] == "module-flavour")
    assert accepted["level"] == "warning"
    assert accepted["suppressions"][0]["justification"] == "seen to work (me, until 2099-01-01)"


def test_sarif_level_follows_severity_and_fatality() -> None:
    def level(severity: Any, fatal: bool) -> str:
        finding = CompatFinding(
            "no-lock",
            severity=severity,
            subject="class c",
            message="m",
            sources=(),
            way_out="r",
            place=DeclaredAt(Path("/nowhere/c.yml"), 2),
            fatal=fatal,
        )
        (result,) = report.sarif(report.CompatReport([], [finding]))["runs"][0]["results"]
        assert result["locations"][0]["physicalLocation"]["artifactLocation"] == {
            "uri": "file:///nowhere/c.yml"
        }
        return str(result["level"])

    assert [
        level(*pair)
        for pair in (("block", True), ("unknown", True), ("warn", False), ("unknown", False))
    ] == [
        "error",
        "error",
        "warning",
        "note",
    ]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (
            ACCEPT % ("kernl-driver", "2099-01-01"),
            13,
            'there is no rule "kernl-driver" whose findings could be accepted. Use "kernel-driver"',
        ),
        (
            ACCEPT % ("no-lock", "2026-01-01"),
            13,
            'the acceptance of rule "no-lock" by me (seen to work) expired on 2026-01-01',
        ),
        (ACCEPT % ("end-of-life", "2099-01-01"), 13, "waived by the stack"),
        (
            "compat: {unknown: blok}\n",
            13,
            '"compat.unknown" is "blok", expected "block" or "warn" or "accept"',
        ),
        (
            "compat: {accept: [{rule: no-lock, reason: r, owner: o}]}\n",
            13,
            'key "compat.accept.0.expires" is missing',
        ),
    ],
)
def test_invalid_acceptance_of_a_class_is_refused_at_its_line(
    check: Check, text: str, line: int, message: str, tmp_path: Path
) -> None:
    result = check(files={"classes/a100.yml": CLASS + text})
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"error: {tmp_path}/catalog/classes/a100.yml:{line}: " in result.stderr
    assert message in result.stderr


def test_unknown_can_block_and_can_be_accepted(check: Check) -> None:
    assert check(files={"classes/a100.yml": CLASS + "compat: {unknown: block}\n"}).exit_code == 1
    result = check(files={"classes/a100.yml": CLASS + "compat: {unknown: accept}\n"})
    assert result.exit_code == 0
    assert (
        "accepted (unknown): all unknowns, by class a100 (compat.unknown: accept)" in result.stdout
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--class", "a10"), 'class "a10" is not in the catalog. Use one of: a100.'),
        (("--stack", "r58"), 'stack "r58" is not in the catalog. Use "r580"'),
        (("--limit", "x"), "--limit needs an inventory"),
        (("--explain", "no-lok"), 'there is no rule "no-lok". Use "no-lock"'),
        (("-i", "nowhere"), 'there is no inventory "nowhere"'),
        (
            ("-i", "hosts.yml", "--limit", "nosuch"),
            "--limit nosuch names no host of hosts.yml. Use one of: ",
        ),
        (
            ("-i", "hosts.yml", "--limit", "otherz"),
            '--limit otherz names no host of hosts.yml. Use "others".',
        ),
        (
            ("-i", "misspelt.yml"),
            '(its groups: a-100, x), so that there is nothing to check. Rename group "a-100" to "a100", the name of the class.',
        ),
        (("-i", "latin.ini"), "latin.ini: the inventory cannot be read: 'utf-8' codec"),
        (("-i", "latin.ini"), "Save it as UTF-8."),
        (("--class", "a100", "--requirements", "latin.ini"), "Save it as UTF-8."),
        (("--format", "xml"), "Invalid value for '--format'"),
        (
            ("--class", "a100", "--python", "three"),
            '"three" is not a version of Python 3, for example 3.12.',
        ),
    ],
)
def test_invalid_arguments_and_files_exit_2_with_the_reason(
    check: Check, arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    (tmp_path / "hosts.yml").write_text(INVENTORY)
    (tmp_path / "latin.ini").write_bytes(b"caf\xe9\n")
    (tmp_path / "misspelt.yml").write_text("x: {hosts: {n1: }}\na-100: {hosts: {n1: }}\n")
    result = check(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_an_empty_catalog_is_no_success(tmp_path: Path, check: Check) -> None:
    check()
    for path in (tmp_path / "catalog/classes").iterdir():
        path.unlink()
    result = CliRunner().invoke(main, ["check"])
    assert (result.exit_code, "has no class to check" in result.stderr) == (2, True)


def test_explain_prints_one_rule_and_list_rules_all(check: Check) -> None:
    reported = check("--explain", "kernel-driver").stdout
    assert reported.startswith("kernel-driver: The driver's module builds on the kernel\n")
    assert "- Debian changelogs of nvidia-graphics-drivers" in reported
    listed = check("--list-rules").stdout.splitlines()
    assert [line.split(" ")[0] for line in listed] == sorted(registry())


INVENTORY = """\
a100: {hosts: {n1: {goldnode_cohort: c1}, n2: {}}}
b200: {hosts: {n3: {goldnode_cohort: c1}}}
others: {hosts: {x1: {}}}
"""


def test_variables_of_an_inventory(check: Check, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yml"
    hosts.write_text("a100: {hosts: {n1: {}, n2: {}}, vars: {goldnode_drian: slurm}}\n")
    done = check("-i", str(hosts))
    assert (
        'goldnode_drian (hosts n1, n2) is not a variable of goldnode: use "goldnode_drain"'
        in " ".join(done.output.split())
    )
    hosts.write_text("a100: {hosts: {n1: {goldnode_drain: slrum}}}\n")
    done = check("-i", str(hosts))
    assert done.exit_code == 2
    assert (
        'goldnode_drain of host n1 is "slrum", expected none, command, slurm or kubectl. Use "slurm".'
        in done.output
    )


def test_an_inventory_with_its_cohorts(check: Check, tmp_path: Path) -> None:
    own = {"classes/b200.yml": B200.replace("class: a100", "class: b200").replace("r580", "r595")}
    own["stacks/r595.yml"] = (
        NVIDIA.replace("r580", "r595").replace('"580"', '"595"').replace("2028-06-30", "2027-03-01")
    )
    (tmp_path / "hosts.yml").write_text(INVENTORY)
    result = check("-i", "hosts.yml", files=own)
    assert result.exit_code == 1
    words = " ".join(result.stdout.split())
    assert "cohort c1" in words
    assert (
        "need one driver version, and these have driver branch 580 (class a100); driver branch 595 (class b200) [cohort-driver]"
        in words.replace(". [", " [")
    )
    assert "warn its nodes have GPUs of different architectures" in words
    assert "hosts of no class: x1" in words
    result = check("-i", "hosts.yml", "--limit", "n2,n3", files=own)
    assert result.exit_code == 0, result.output
    assert "2 classes" in result.stdout
    result = check("-i", "hosts.yml", "--limit", "x1", files=own)
    assert (
        result.exit_code,
        "has no host of any class among those that --limit x1 names" in result.stderr,
    ) == (2, True)
    (tmp_path / "hosts.yml").write_text("a100: {hosts: {n1: {goldnode_cohort: '{{ rack }}'}}}\n")
    assert (
        "is a template ({{ rack }}), which is not evaluated here"
        in check("-i", "hosts.yml", files=own).stderr
    )
    (tmp_path / "hosts.yml").write_text("a100: {hosts: {n1: }}\nb200: {hosts: {n1: }}\n")
    assert "in two classes" in check("-i", "hosts.yml", files=own).stderr


def test_images_and_requirements_are_checked_against_a_class(check: Check, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.8.0\n")
    found = document(
        check(
            "--format",
            "json",
            "--image",
            "nvidia/cuda:12.4.1-base-ubuntu22.04",
            "--requirements",
            "requirements.txt",
            "--class",
            "a100",
        )
    )
    assert (found["images"], found["requirements"]) == (1, 1)
    assert {"class a100"} == {item["subject"] for item in found["subjects"]}


def test_our_own_catalog_has_no_unexplained_block() -> None:
    found = command.compatibility_report(command.CheckRequest())
    assert not found.fatal
    assert {(item.subject, item.rule) for item in found.findings if item.severity == "block"} == {
        (f"class {name}", "end-of-life")
        for name in ("demo_a100", "demo_disk_r535", "demo_disk_r550")
    }
    assert len(found.subjects) == 19
    assert any("no lock" in sentence for sentence in found.not_checked)


# What site.yml does with it


def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> stored.Compiler:
    monkeypatch.setenv("GOLDNODE_CATALOG", str(tmp_path / "catalog"))
    monkeypatch.setattr("goldnode.catalog.load.builtin_catalog", lambda: tmp_path / "catalog")
    write(
        tmp_path / "catalog",
        {
            **FILES,
            "archives.yml": ARCHIVES,
            **{name.replace("_", "/") + ".yml": text for name, text in files.items()},
        },
    )
    return stored.Compiler()


def test_a_blocked_class_has_refusals_in_place_of_a_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks = {
        f"stacks_{name}": FILES[f"stacks/{name}.yml"].replace("[debian]", "[nvidia-cuda]")
        for name in ("plain", "rocm")
    }
    made = compiler(tmp_path, monkeypatch, stacks_r580=PROPRIETARY, classes_a100=B200, **stacks)
    found = made.document("a100")
    assert found["class"] == "a100"
    (refusal,) = found["refusals"]
    assert refusal["code"] == "module-flavour"
    assert refusal["remedy"] == "Use a stack with the open modules."
    assert refusal["message"].endswith("comes with the proprietary ones.")
    assert [line.partition(":")[0] for line in made.remarks("a100")] == ["unknown", "warn", "warn"]


def test_a_class_that_fits_and_has_no_lock_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks = {
        f"stacks_{name}": FILES[f"stacks/{name}.yml"].replace("[debian]", "[nvidia-cuda]")
        for name in ("plain", "rocm")
    }
    found = compiler(tmp_path, monkeypatch, stacks_r580=NVIDIA, **stacks).document("a100")
    assert "has no lock" in found["error"]
    assert "refusals" not in found


# Facts are parsed once


def test_parsed_facts_are_stored_by_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(facts, "FACTS", tmp_path)
    monkeypatch.setitem(models.FILES, "x.yml", RootModel[dict[Any, Any]])
    (tmp_path / "x.yml").write_text("a: 1\n")
    uncached: Callable[[str, Path], Any] = facts._own.__wrapped__

    def load(name: str) -> Any:
        return uncached(name, tmp_path)

    assert load("x.yml") == {"a": 1}
    (cached_file,) = (tmp_path / "cache/goldnode/facts").iterdir()
    cached_file.write_text('{"a": 2}')
    assert load("x.yml") == {"a": 2}, "read, not parsed"
    cached_file.chmod(0o666)
    assert load("x.yml") == {"a": 1}, "anyone could have written it"
    cached_file.write_text("{")
    cached_file.chmod(0o600)
    assert load("x.yml") == {"a": 1}, "broken"
    (tmp_path / "x.yml").write_text("a: 3\n")
    assert load("x.yml") == {"a": 3}
    (tmp_path / "x.yml").write_text("{1: x}\n")
    assert load("x.yml") == {1: "x"}
    assert load("x.yml") == {1: "x"}, "JSON would make it text"


def test_requirements_are_judged_for_the_python_that_is_named(check: Check, tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("torch==2.5.1\ntorchvision==0.20.1\n")
    arguments = ("--class", "a100", "--requirements", "r.txt", "--format", "json", "--python")
    found = {
        python: {
            item["rule"]
            for item in document(check(*arguments, python))["findings"]
            if item["fatal"] and "r.txt" in item["subject"]
        }
        for python in ("3.12", "3.13")
    }
    assert found == {"3.12": set(), "3.13": {"wheel-tags"}}
