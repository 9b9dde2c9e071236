"""`goldnode explain`: texts that people paste, the symptoms of operators' guides, and the command around them."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from click import Argument, Command, Context, Group
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.case_tables import table
from tests.unit.test_page_commands import commands, fault

from goldnode.cli import main
from goldnode.explain import here
from goldnode.explain.answer import explain
from goldnode.explain.model import TextAnswer
from goldnode.facts import symptoms as symptom_facts
from goldnode.facts.symptoms import near, symptoms
from goldnode.node.state.kinds import KINDS

CASES = Path(__file__).parents[2] / "cases/explain"
TEXTS = table("explain/texts.yml")
SAMPLE = Path(__file__).parents[1] / "node/fixtures/smi-text/h100_580.txt"
GUIDES = table("explain/symptoms.yml")


def ids(text: str) -> list[str]:
    explanation = explain(text)
    return [row.id for row in (*explanation.answers, *(row for row, _ in explanation.similar))]


@pytest.mark.parametrize("case", TEXTS, ids=[case["name"] for case in TEXTS])
def test_text_gets_its_answers_and_no_others(case: dict[str, Any]) -> None:
    explanation = explain(case["text"])
    assert [form for form, _ in explanation.forms] == case["forms"]
    assert sorted(row.id for row in explanation.answers) == sorted(case["answers"])
    assert case.get("notes", "") in ", ".join(notes for _, notes in explanation.forms)
    assert len(explanation.unread) == case.get("unread", len(explanation.unread))


@pytest.mark.parametrize(("number", "wanted", "text"), GUIDES, ids=[row[0] for row in GUIDES])
def test_symptom_of_the_guides_is_among_the_answers(number: str, wanted: str, text: str) -> None:
    assert wanted in ids(text), number


def test_each_guide_has_one_row() -> None:
    assert [row[0] for row in GUIDES] == [f"S{number:02}" for number in range(1, 80)]


def test_findings_that_answer_on_a_node_exist() -> None:
    wrong = [
        (row.id, name)
        for row in symptoms().values()
        for name in row.here
        if not any(fnmatchcase(name, kind) or fnmatchcase(kind, name) for kind in KINDS)
    ]
    assert not wrong


def misnamed(words: list[str]) -> str | None:
    """Return what is wrong with a `goldnode` command of an answer: command, option, or an argument that it does not take."""
    command: Command = main
    rest = list(words)
    while isinstance(command, Group) and rest and rest[0][0].islower():
        below = command.get_command(Context(command), rest[0])
        if below is None:
            return f"{command.name} has no command {rest[0]}"
        command, rest = below, rest[1:]
    takes = any(isinstance(item, Argument) for item in command.params)
    if rest and rest[0][0] != "-" and not takes:
        return f"{command.name} takes no argument {rest[0]}"
    return fault(words)


def test_commands_that_the_answers_name_exist() -> None:
    wrong = []
    for name in ("symptoms.yml", "log_lines.yml", "xid.yml", "known_bad.yml"):
        text = files("goldnode.facts").joinpath(name).read_text(encoding="utf-8")
        wrong += [(name, " ".join(row), misnamed(row)) for row in commands(text) if misnamed(row)]
    assert wrong == []


@pytest.mark.parametrize("words", ["slurm gres CLASS", "fleet diff NODE NODE", "check -r FILE"])
def test_command_that_does_not_exist_is_found(words: str) -> None:
    assert misnamed(words.split())


@pytest.mark.parametrize("text", ["the weather is fine", "please help", "GPU", ""])
def test_description_of_something_else_has_no_symptom(text: str) -> None:
    assert near(text) == [] if text else True
    assert ids(text) == []


def test_escapes_of_a_log_reach_no_terminal() -> None:
    shown = CliRunner().invoke(
        main, ["explain", "x\x1b[31m NVRM: Xid (PCI:0000:84:00): 79, \x1b]0;a\x07"]
    )
    assert shown.exit_code == 0
    assert "\x1b" not in shown.output


def test_versions_of_the_text_are_judged() -> None:
    answer = explain(
        "The NVIDIA driver on your system is too old (found version 11040). torch 2.5.0+cu124"
    ).answers[0]
    assert answer.id == "driver-too-old-for-cuda"
    assert "CUDA up to 11.4" in answer.versions[0]
    assert "CUDA 12.4 runs on driver 525" in answer.versions[1]


def test_driver_of_this_node_is_compared() -> None:
    text = "unsatisfied condition: cuda>=12.8, please update your driver"
    assert "is older" in explain(text, "470.82.01").answers[0].versions[-1]
    assert "reaches that" in explain(text, "535.104.05").answers[0].versions[-1]


def test_capability_names_the_first_cuda() -> None:
    text = "NVIDIA B200 with CUDA capability sm_100 is not compatible with the current PyTorch installation."
    assert explain(text).answers[0].versions[0].startswith("sm_100 (Blackwell")


def test_query_inside_a_bug_report_is_judged() -> None:
    rule = "____________________________________________\n"
    text = f"NVIDIA bug report log file\n{rule}{SAMPLE.read_text()}{rule}unknown section\n"
    explanation = explain(text)
    assert [form for form, _ in explanation.forms] == ["`nvidia-smi -q`", "an nvidia-bug-report"]
    assert "gpu.ecc.uncorrected" in [row.id for row in explanation.answers]
    assert [text for _, text in explanation.unread] == [
        "NVIDIA bug report log file",
        "unknown section",
    ]


def test_exit_status_and_documents() -> None:
    run = CliRunner().invoke
    done = run(main, ["explain", "--format", "json", "79"])
    document = json.loads(done.output)
    assert (done.exit_code, document["schema"]) == (0, "goldnode.explain/1")
    assert document["answers"][0]["id"] == "xid.79"
    assert run(main, ["explain", "the weather is fine"]).exit_code == 1
    assert run(main, ["explain", "no/such/file.log"]).exit_code == 2
    assert run(main, ["explain"], input="NVRM: Xid (PCI:0000:84:00): 48, x").exit_code == 0


def test_file_is_read(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(b"\xff\xfe" + "CUDA out of memory".encode("utf-16-le"))
    done = CliRunner().invoke(main, ["explain", str(log)])
    assert "memory is full" in done.output
    log.write_bytes(b"\x1f\x8b\x08")
    assert "zcat" in CliRunner().invoke(main, ["explain", str(log)]).stderr


def test_node_answers_for_the_rows_of_a_symptom() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "xid.79", "outcome": "mismatch", "got": "Xid 79", "remedy": "Restart it."},
        {"id": "gpu.lost", "outcome": "match", "got": "none", "remedy": None},
    ]
    report = here.LocalReport(rows={"check": rows}, driver=None, failed={"diagnose": "no answer"})
    answer = TextAnswer(id="x", title="", text="", line=1, run="check", here=("xid.*",))
    assert here.about(answer, report) == ["xid.79: mismatch: Xid 79. Restart it."]
    slow = TextAnswer(id="x", title="", text="", line=1, run="diagnose")
    assert here.about(slow, report) == ["could not check: goldnode-node diagnose: no answer"]


@given(st.text(max_size=400))
def test_any_text_is_explained(text: str) -> None:
    explain(text)


@given(
    st.lists(
        st.sampled_from([line for case in TEXTS for line in case["text"].splitlines()]), max_size=12
    )
)
def test_any_order_of_known_lines_is_explained(lines: list[str]) -> None:
    explain("\n".join(lines))


MESSAGES = table("explain/messages.yml")


@pytest.mark.parametrize(("line", "wanted"), MESSAGES["answers"])
def test_variant_of_a_message_has_its_answer_first(line: str, wanted: str) -> None:
    assert ids(line)[:1] == [wanted], line


@pytest.mark.parametrize(("sentence", "wanted"), MESSAGES["described"])
def test_description_without_a_message_has_its_symptom_first(sentence: str, wanted: str) -> None:
    reading = explain(sentence)
    near = [row for row, _ in reading.similar]
    assert [row.id for row in (*reading.answers, *near)][:1] == [wanted], sentence


@pytest.mark.parametrize("line", MESSAGES["harmless"])
def test_line_of_a_healthy_node_has_no_answer(line: str) -> None:
    assert [row.id for row in explain(line).answers] == [], line


def test_search_for_fixed_text_first_finds_what_the_patterns_find() -> None:
    lines = [line for path in sorted(CASES.glob("*.yml")) for line in path.read_text().splitlines()]
    rows = [
        (row.symptom, row.pattern)
        for fallback in (False, True)
        for row in symptom_facts.message_rows(fallback)
    ]
    hits = 0
    for line in lines:
        slow = [name for name, pattern in rows if pattern.search(line)]
        fast = [
            *symptom_facts.fitting(line, fallback=False),
            *symptom_facts.fitting(line, fallback=True),
        ]
        assert fast == slow, line
        hits += len(slow)
    assert hits > 100
