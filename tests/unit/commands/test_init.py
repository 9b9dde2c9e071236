"""`goldnode init` and `goldnode apply --local` as commands: questions, options, refusals, and what follows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.unit.fleet.nodes.test_first_class import machine

from goldnode.cli import main
from goldnode.commands.init import command
from goldnode.core import extras
from goldnode.fleet.nodes import first_class, local
from goldnode.fleet.nodes.plan import CHANGE, CONVERGED, FAILED, HostPlan


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and a machine with one RTX 4090 on Ubuntu."""
    for name in ("GOLDNODE_CATALOG", "GOLDNODE_SITE", "GOLDNODE_LOCKS", "ANSIBLE_COLLECTIONS_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GOLDNODE_CACHE", str(tmp_path / ".cache"))
    here = machine("ubuntu 24.04", "7.0.0-34-generic", ("GeForce-RTX-4090", 1))
    monkeypatch.setattr(first_class, "this_machine", lambda: here)
    return tmp_path


def run(*words: str, answers: str | None = None) -> Result:
    return CliRunner().invoke(main, list(words), input=answers)


def report(*words: str) -> dict[str, Any]:
    result = run(*words, "--format", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def inventory(directory: Path) -> str:
    text = next((directory / "inventory").iterdir()).read_text(encoding="utf-8")
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_terminal", lambda: True)


@pytest.mark.usefixtures("terminal")
def test_defaults_are_those_of_this_machine(desk: Path) -> None:
    result = run("init", "site", answers="\n\n\n")
    assert result.exit_code == 0, result.output
    assert (
        "This machine: ubuntu 24.04, kernel 7.0.0-34-generic, 1 x GeForce-RTX-4090" in result.stderr
    )
    assert "[localhost]" in result.stderr
    assert "[auto]" in result.stderr
    assert "[ubuntu2404_hwe_r580]" in result.stderr
    assert (
        inventory(desk / "site")
        == "workstation:\n  hosts:\n    localhost:\n      ansible_connection: local\n"
    )
    assert "wrote site/goldnode-site.yml" in result.stdout
    assert "class workstation " in result.stdout
    assert "gpu-model" not in result.stdout, "the model of this machine is known"
    steps = result.stdout.partition("Next:\n")[2]
    assert "cd site" in steps
    assert "goldnode lock ubuntu2404_hwe_r580" in steps
    assert "apply --local" in steps
    assert "warning" not in result.stdout


@pytest.mark.usefixtures("terminal")
def test_answer_that_cannot_be_used_is_asked_again(desk: Path) -> None:
    result = run(
        "init",
        "site",
        answers="gpu01 gpu02\nH100-SXM5-80\n2 x L4\nubuntu2404_r58\nubuntu2404_r580\n",
    )
    assert result.exit_code == 0, result.output
    assert 'GPU model "H100-SXM5-80" is not in the facts. Use "H100-SXM5-80GB".' in result.output
    assert 'stack "ubuntu2404_r58" is not in the catalog. Use "ubuntu2404_r580".' in result.output
    assert inventory(desk / "site") == "l4_2:\n  hosts:\n    gpu01:\n    gpu02:\n"
    assert "ansible-playbook" in result.stdout.partition("Next:\n")[2]


@pytest.mark.usefixtures("terminal")
def test_interrupted_question_writes_nothing(desk: Path) -> None:
    result = run("init", "site", answers="gpu01\n")
    assert result.exit_code == 1
    assert "Aborted" in result.output
    assert not (desk / "site").exists()


def test_without_a_terminal_the_missing_options_are_named(desk: Path) -> None:
    result = run("init", "site")
    assert result.exit_code == 2
    assert (
        "--host HOST (or --local), --class CLASS (or --gpu GPU and --stack STACK)" in result.stderr
    )
    assert "use --yes for the defaults" in result.stderr
    result = run("init", "site", "--host", "a", "--gpu", "L4")
    assert "missing: --class CLASS (or --gpu GPU and --stack STACK)" in result.stderr
    assert not (desk / "site").exists()


def test_options_answer_every_question(desk: Path) -> None:
    found = report(
        *("init", "site", "--host", "gpu[1:2]", "--gpu", "8 x H100-SXM5-80GB"),
        *("--stack", "debian13_r580", "--name", "mine", "--user", "ops"),
    )
    assert (found["schema"], found["class"], found["hosts"]) == (
        "goldnode.init/1",
        "mine",
        ["gpu[1:2]"],
    )
    assert found["check"]["fatal"] is False
    assert "catalog/classes/mine.yml" in found["written"]
    assert "ansible_user: ops\n    ansible_become: true" in inventory(desk / "site")


def test_class_of_the_catalog_needs_no_file_of_its_own(desk: Path) -> None:
    found = report("init", "--host", "a", "--class", "cpu_only")
    assert "catalog/classes/cpu_only.yml" not in found["written"]
    assert [step for step in found["next"] if step.startswith(("cd ", "goldnode lock"))] == [], (
        "it has a lock"
    )
    assert report("check", "-i", "inventory")["fatal"] is False
    assert (desk / "goldnode-site.yml").is_file()


def test_monitor_adds_the_optional_part_of_the_stack(desk: Path) -> None:
    found = report("init", "--yes", "--graphics")
    assert found["class"] == "workstation_ubuntu2404_hwe_r580"
    text = (desk / f"catalog/classes/{found['class']}.yml").read_text(encoding="utf-8")
    assert text.endswith("options:\n- graphics\n")
    assert report("init", "--yes", "--graphics")["written"] == []
    result = run(
        "init", "x", "--host", "a", "--gpu", "auto", "--stack", "debian13_r580", "--graphics"
    )
    assert 'stack "debian13_r580" has no optional part "graphics"' in result.stderr


def test_yes_takes_the_defaults() -> None:
    found = report("init", "--yes")
    assert (found["class"], found["hosts"], found["notes"]) == ("workstation", ["localhost"], [])


def test_another_class_can_be_added(desk: Path) -> None:
    report("init", "site", "--host", "a", "--class", "cpu_only")
    found = report("init", "site", "--host", "b", "--class", "l4")
    assert found["written"] == ["inventory/l4.yml"]
    result = run("init", "site", "--host", "a", "--class", "cpu_only_debian13")
    assert result.exit_code == 2
    assert 'host "a" is in two classes' in result.stderr
    assert sorted(path.name for path in (desk / "site/inventory").iterdir()) == [
        "cpu_only.yml",
        "l4.yml",
    ]


def test_second_run_changes_nothing() -> None:
    report("init", "site", "--yes")
    again = report("init", "site", "--yes")
    assert again["written"] == []
    assert "goldnode-site.yml" in again["unchanged"]


def test_file_that_exists_is_replaced_only_with_permission(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (desk / "ansible.cfg").write_text("mine", encoding="utf-8")
    result = run("init", "--yes")
    assert result.exit_code == 2
    assert (
        "ansible.cfg: this file exists with another content, and nothing was written"
        in result.stderr
    )
    assert [path.name for path in desk.iterdir() if path.name != ".cache"] == ["ansible.cfg"]
    monkeypatch.setattr(command, "_terminal", lambda: True)
    result = run("init", "--local", "--class", "workstation", answers="n\n")
    assert "ansible.cfg exists with another content. Replace it? [y/N]" in result.stderr
    assert result.exit_code == 2
    assert run("init", "--local", "--class", "workstation", answers="y\n").exit_code == 0
    (desk / "ansible.cfg").write_text("mine again", encoding="utf-8")
    assert run("init", "--yes", "--overwrite").exit_code == 0
    assert "mine" not in (desk / "ansible.cfg").read_text(encoding="utf-8")


def test_class_that_does_not_fit_this_machine_is_reported() -> None:
    result = run("init", "--local", "--class", "l4")
    assert result.exit_code == 0
    assert (
        "warning: this machine runs ubuntu 24.04, and stack debian12_r580 is for debian 12; site.yml"
        in result.stdout
    )
    assert (
        "warning: this machine has GeForce-RTX-4090, and the class has L4; site.yml"
        in result.stdout
    )


def test_class_that_the_check_blocks_ends_with_1(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine("ubuntu 24.04", "7.0.0-34-generic", ("V100-PCIE-16GB", 1))
    monkeypatch.setattr(first_class, "this_machine", lambda: here)
    result = run("init", "--yes")
    assert result.exit_code == 1
    assert "V100-PCIE-16GB (Volta) does not work with the open kernel modules" in result.stdout
    assert (desk / "goldnode-site.yml").is_file()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--class", "l4", "--gpu", "L4"), "--class has its GPUs and its stack"),
        (("--class", "l44"), 'class "l44" is not in the catalog. Use one of: a100_sxm4_40gb, '),
        (
            ("--gpu", "auto", "--stack", "debian13_r580", "--name", "l4"),
            'class "l4" exists already',
        ),
        (
            ("--gpu", "auto", "--stack", "debian13_cpu"),
            "nothing was written, since the class cannot be used: backend",
        ),
        (("--class", "l4", "--host", "a b;c"), '"b;c" is not the name of a host'),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    desk: Path, words: tuple[str, ...], expected: str
) -> None:
    result = run("init", "site", "--host", "a", *words)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert not (desk / "site").exists()


def test_site_without_ansible_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goldnode.commands.init.request.installed", lambda name: False)
    assert (
        "pipx install --force --include-deps 'goldnode[ansible]'" in report("init", "--yes")["next"]
    )


# goldnode apply --local


def planned(state: str, **more: Any) -> HostPlan:
    plan = {
        "refusals": [], "actions": [], "waiting": [], "holders": [], "notes": [], "parts": {},
        "reboot": {"required": bool(more.get("reasons")), "reasons": more.get("reasons", []), "after": []},
    }  # fmt: skip
    return HostPlan(
        "localhost", "cpu_only", None if state == FAILED else plan, state, more.get("message")
    )


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Root on a machine whose plans are a list; nothing is run. Returns what would have been run."""
    done: list[str] = []
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(local, "run", lambda target, quiet: done.append(f"site.yml {target.name}"))
    monkeypatch.setattr(local, "reboot", lambda: done.append("reboot"))
    monkeypatch.setattr(local, "text", lambda target, found, full: f"the plan of {target.name}")
    monkeypatch.setattr("goldnode.fleet.nodes.plan.require", lambda name: None)
    return done


def plans(monkeypatch: pytest.MonkeyPatch, *found: HostPlan) -> None:
    left = list(found)
    monkeypatch.setattr(local, "plan", lambda target: left.pop(0) if len(left) > 1 else left[0])


REBOOT = ["kernel 7 is installed and has to be booted"]
RUNS: dict[str, tuple[list[HostPlan], list[str], int, list[str]]] = {
    "nothing to change": ([planned(CONVERGED)], ["--yes"], 0, []),
    "applied": ([planned(CHANGE), planned(CONVERGED)], ["--yes"], 0, ["site.yml cpu_only"]),
    "a reboot is only reported": (
        [planned(CHANGE), planned(CONVERGED, reasons=REBOOT)], ["--yes"], 0, ["site.yml cpu_only"],
    ),
    "a reboot with permission": (
        [planned(CHANGE), planned(CONVERGED, reasons=REBOOT)], ["--yes", "--reboot"], 0, ["site.yml cpu_only", "reboot"],
    ),
    "permission without a reason": (
        [planned(CHANGE), planned(CONVERGED)], ["--yes", "--reboot"], 0, ["site.yml cpu_only"],
    ),
    "a dry run": ([planned(CHANGE)], ["--dry-run", "--reboot"], 1, []),
    "no terminal": ([planned(CHANGE)], [], 2, []),
    "a refusal": ([planned("refused")], ["--yes", "--reboot"], 2, []),
    "no plan": ([planned(FAILED, message="m")], ["--yes"], 2, []),
    "a change is left": ([planned(CHANGE), planned(CHANGE)], ["--yes", "--reboot"], 2, ["site.yml cpu_only"]),
}  # fmt: skip


@pytest.mark.parametrize("case", RUNS)
def test_apply_shows_the_plan_and_then_applies_it(
    monkeypatch: pytest.MonkeyPatch, steps: list[str], case: str
) -> None:
    found, words, code, done = RUNS[case]
    plans(monkeypatch, *found)
    result = run("apply", "--local", "--class", "cpu_only", *words)
    assert (result.exit_code, steps) == (code, done), result.output
    assert "the plan of cpu_only" in result.stdout
    if case == "a reboot is only reported":
        assert "It must be rebooted" in result.stdout
        assert REBOOT[0] in result.stdout


def test_apply_reports_as_json(monkeypatch: pytest.MonkeyPatch, steps: list[str]) -> None:
    plans(monkeypatch, planned(CHANGE), planned(CONVERGED, reasons=REBOOT))
    result = run("apply", "--local", "--class", "cpu_only", "--yes", "--format", "json")
    found = json.loads(result.stdout)
    assert (found["schema"], found["applied"], found["reboot"]) == (
        "goldnode.apply/1",
        True,
        REBOOT,
    )
    assert "the plan of cpu_only" in result.stderr


def test_apply_takes_the_class_of_the_site_directory(
    monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    run("init", "--local", "--class", "cpu_only")
    plans(monkeypatch, planned(CONVERGED))
    found = report("apply", "--local")
    assert (found["class"], found["reason"]) == ("cpu_only", "of localhost in ./inventory")


def test_apply_without_a_site_takes_the_class_that_fits(
    monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    monkeypatch.setattr(first_class, "this_machine", lambda: machine("debian 13", "6.12.1-amd64"))
    plans(monkeypatch, planned(CONVERGED))
    assert report("apply", "--local")["class"] == "cpu_only_debian13"
    monkeypatch.setattr(first_class, "this_machine", lambda: machine("fedora 44", "7.1", ("L4", 1)))
    result = run("apply", "--local")
    assert result.exit_code == 2
    assert (
        "no class of the catalog fits this machine (fedora 44, kernel 7.1, 1 x L4)" in result.stderr
    )
    assert "goldnode init --local" in result.stderr


def test_apply_reports_a_missing_lock_and_missing_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("apply", "--local", "--yes")
    assert result.exit_code == 2
    assert 'stack "ubuntu2404_hwe_r580" has no lock' in result.stderr
    assert "goldnode lock ubuntu2404_hwe_r580" in result.stderr
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    result = run("apply", "--local", "--class", "cpu_only")
    assert result.exit_code == 2
    assert "need root" in result.stderr
    assert "Run `sudo /" in result.stderr


def test_apply_without_local_points_to_ansible(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("apply", "--class", "cpu_only")
    assert result.exit_code == 2
    assert "ansible-playbook" in result.stderr
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    assert "goldnode[ansible]" in run("apply", "--local").stderr


def test_local_run_is_site_yml_with_a_local_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def started(command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        seen.extend([command[0], Path(command[2]).read_text(encoding="utf-8"), command[3]])
        assert more["env"]["ANSIBLE_CONFIG"].endswith("/ansible.cfg")
        return subprocess.CompletedProcess(command, 4)

    monkeypatch.setattr(subprocess, "run", started)
    with pytest.raises(local.LocalError, match=r"site\.yml did not finish"):
        local.run(local.LocalTarget("cpu_only", {}, "r"), quiet=False)
    assert seen[0] == str(Path(sys.executable).with_name("ansible-playbook"))
    assert seen[1] == "cpu_only:\n  hosts:\n    localhost:\n      ansible_connection: local\n"
    assert seen[2].endswith("/site.yml")
