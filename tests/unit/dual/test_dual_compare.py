"""Comparison of records: three answers, the first divergence by name, and the reports."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests import documents
from tests.unit.dual.dual_records import ZERO, Row, numbers, written

from goldnode.cli import main
from goldnode.commands.dual import text as dual_text
from goldnode.documents.dual import DualDocument
from goldnode.dual import signing, store, tolerances
from goldnode.dual.compare import compare
from goldnode.dual.errors import DualError
from goldnode.dual.recorder.values import value
from goldnode.evidence import signed_file

ONE = f"sha256:{'1' * 64}"
GOOD: list[Row] = [
    ("input", "input.0", numbers(1.0, 2.0)),
    ("layer", "embed", numbers(1.0, 2.0, 3.0, dtype="float32")),
    ("layer", "block.0.norm", numbers(1.0, 2.0, 3.0, dtype="float32")),
    ("layer", "block.0", numbers(1.0, 2.0, 3.0, dtype="float32")),
    ("output", "output", numbers(0.5, 0.25, dtype="float32")),
]


def replaced(
    name: str, *items: float, dtype: str = "float32", rows: Sequence[Row] = GOOD
) -> list[Row]:
    return [
        (role, own, numbers(*items, dtype=dtype) if own == name else one) for role, own, one in rows
    ]


def report(
    directory: Path,
    a: Sequence[Row],
    b: Sequence[Row],
    bounds: str | None = None,
    changes: tuple[dict[str, Any], dict[str, Any]] = ({}, {}),
) -> DualDocument:
    left, right = (
        store.read(written(directory / name, rows, own))
        for name, rows, own in (("a", a, changes[0]), ("b", b, changes[1]))
    )
    path = None
    if bounds is not None:
        path = directory / "tolerances.yml"
        path.write_text(bounds, encoding="utf-8")
    found = compare(left, right, tolerances.load(path), now=1.8e9)
    documents.valid(found.model_dump(mode="json", by_alias=True))
    return found


def test_a_record_is_equal_to_itself(tmp_path: Path) -> None:
    found = report(tmp_path, GOOD, GOOD)
    assert (found.answer, found.reasons) == ("pass", ["1 output is equal in every bit"])
    assert found.first_difference is None
    assert found.first_divergence is None


def test_rounding_passes_and_its_first_place_is_named(tmp_path: Path) -> None:
    other = replaced(
        "output", 0.5 + 2**-24, 0.25, rows=replaced("block.0.norm", 1.0 + 2**-23, 2.0, 3.0)
    )
    found = report(tmp_path, GOOD, other)
    assert found.answer == "pass"
    assert found.first_divergence is None
    assert found.first_difference is not None
    assert (found.first_difference.name, found.first_difference.step) == ("block.0.norm", 2)


def test_a_fault_is_named_by_its_first_layer(tmp_path: Path) -> None:
    other = replaced("output", 0.6, 0.25, rows=replaced("block.0", 1.0, 2.1, 3.0))
    other = replaced("embed", 1.0 + 2**-23, 2.0, 3.0, rows=other)
    found = report(tmp_path, GOOD, other)
    assert found.answer == "fail"
    assert found.reasons[0] == "the output: 1 of 2 elements are outside of the tolerance"
    assert found.first_difference is not None
    assert found.first_divergence is not None
    assert found.first_difference.name == "embed"
    assert (found.first_divergence.name, found.first_divergence.module) == ("block.0", "Linear")


def test_a_layer_alone_does_not_fail(tmp_path: Path) -> None:
    """Its own difference is of no account if the output is right; the report names it."""
    found = report(tmp_path, GOOD, replaced("block.0.norm", 1.0, 9.0, 3.0))
    assert found.answer == "pass"
    assert found.first_divergence is not None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_in_one_side_fails(value: float, tmp_path: Path) -> None:
    loose = "tolerances: 1\nprecisions: {float32: {absolute: 1.0e+30, ulp: 1000000000}}\n"
    found = report(tmp_path, GOOD, replaced("output", 0.5, value), loose)
    assert found.answer == "fail"
    json.dumps(found.model_dump(mode="json"), allow_nan=False)


@pytest.mark.parametrize(
    ("a", "b", "changes", "words"),
    [
        (
            GOOD,
            replaced("input.0", 1.0, 3.0, dtype="float64"),
            ({}, {}),
            "the inputs differ: input.0",
        ),
        (GOOD, GOOD[1:], ({}, {}), "the inputs differ: input.0"),
        (GOOD, GOOD[:-1], ({}, {}), "the output: only a has it"),
        (GOOD[:-1], GOOD[:-1], ({}, {}), "the records have no outputs"),
        (
            GOOD,
            GOOD,
            (
                {
                    "weights_digest": ZERO,
                    "weights": [{"name": "w.0", "digest": ZERO}, {"name": "w.1", "digest": ZERO}],
                },
                {
                    "weights_digest": ONE,
                    "weights": [{"name": "w.0", "digest": ZERO}, {"name": "w.1", "digest": ONE}],
                },
            ),
            "the weights differ before the first run: w.1",
        ),
        (
            GOOD[1:],
            GOOD[1:],
            ({}, {"source": {"kind": "command", "name": "x", "digest": ONE}}),
            "the commands differ",
        ),
        (
            [("output", "x", numbers(dtype="float32"))],
            [("output", "x", numbers(dtype="float32"))],
            ({}, {}),
            "output x has no elements",
        ),
    ],
)
def test_incomparable_records_give_answer_unknown(
    a: list[Row],
    b: list[Row],
    changes: tuple[dict[str, Any], dict[str, Any]],
    words: str,
    tmp_path: Path,
) -> None:
    found = report(tmp_path, a, b, changes=changes)
    assert found.answer == "unknown"
    assert any(words in reason for reason in found.reasons), found.reasons


def test_other_inputs_are_unknown_even_where_outputs_differ(tmp_path: Path) -> None:
    other = replaced("output", 9.0, 9.0, rows=replaced("input.0", 1.0, 3.0, dtype="float64"))
    assert report(tmp_path, GOOD, other).answer == "unknown"


def test_another_shape_of_an_output_fails(tmp_path: Path) -> None:
    found = report(tmp_path, GOOD, replaced("output", 0.5, 0.25, 0.0))
    assert found.answer == "fail"
    assert "the shapes differ: [2] and [3]" in found.reasons[0]


def test_the_coarser_setting_gives_the_tolerance(tmp_path: Path) -> None:
    other = replaced("output", 0.5004, 0.25)
    settings = {"device": "cuda", "precision": "tf32", "threads": 1}
    assert report(tmp_path, GOOD, other).answer == "fail"
    (tmp_path / "again").mkdir()
    assert (
        report(tmp_path / "again", GOOD, other, changes=({}, {"settings": settings})).answer
        == "pass"
    )


def test_an_eight_bit_float_needs_a_declared_tolerance(tmp_path: Path) -> None:
    rows: list[Row] = [("output", "x", numbers(0x38, dtype="uint8"))]
    for name in ("a", "b"):
        written(tmp_path / name, rows)
        path = tmp_path / name / "record.json"
        text = path.read_text().replace('"uint8"', '"float8_e4m3fn"')
        document = json.loads(text)
        found = store.read(tmp_path / name).value(store.read(tmp_path / name).document.arrays[0])
        document["arrays"][0]["digest"] = value("float8_e4m3fn", found.shape, found.data).digest
        path.write_text(json.dumps(document))
    a, b = (store.read(tmp_path / name) for name in ("a", "b"))
    assert compare(a, b, tolerances.load(None)).answer == "unknown"
    own = tmp_path / "t.yml"
    own.write_text("tolerances: 1\nprecisions: {float8_e4m3fn: {ulp: 1}}\n")
    assert compare(a, b, tolerances.load(own)).answer == "pass"


def test_a_pattern_goes_before_the_precision(tmp_path: Path) -> None:
    own = "tolerances: 1\narrays:\n- {name: 'out*', role: output, relative: 0.3}\n- {name: '*', ulp: 0}\n"
    found = report(tmp_path, GOOD, replaced("output", 0.6, 0.25), own)
    assert found.answer == "pass"
    (output,) = [row for row in found.arrays if row.role == "output"]
    assert output.tolerance is not None
    assert output.tolerance.source == "tolerances.yml"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("tolerances: 2\n", 1, "tolerances"),
        ("tolerances: 1\nprecisions:\n  float31: {ulp: 1}\n", 3, "float31"),
        ("tolerances: 1\nprecisions:\n  float32: {}\n", 3, "there is no bound"),
        ("tolerances: 1\nprecisions:\n  float32: {ulp: -1}\n", 3, "ulp"),
        ("tolerances: 1\nprecisions:\n  float32: {relative: .nan}\n", 3, "relative"),
        ("tolerances: 1\nsamples:\n- {name: x, kind: tokens}\n", 3, "kind"),
        ("tolerances: 1\nlatency:\n- {phase: warm, quantile: 1.5, margin: 5%}\n", 3, "quantile"),
        ("tolerances: 1\nlatency:\n- {phase: warm, quantile: 0.5, margin: 5}\n", 3, "percentage"),
    ],
)
def test_a_wrong_tolerances_file_names_its_line(
    text: str, line: int, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.yml"
    path.write_text(text)
    with pytest.raises(DualError, match=words) as problem:
        tolerances.load(path)
    assert problem.value.line == line


# Sampled outputs and times


def sampled(*items: float) -> list[Row]:
    return [*GOOD, ("sample", "sample", numbers(*items, dtype="int64"))]


@pytest.mark.parametrize(
    ("a", "b", "answer"),
    [
        (sampled(*[0, 1] * 20_000), sampled(*[1, 0] * 20_000), "pass"),
        (sampled(*[0, 1] * 20_000), sampled(*[0, 0, 0, 1] * 10_000), "fail"),
        (sampled(*[0, 1] * 20), sampled(*[0, 1] * 20), "unknown"),
        (sampled(*[0, 1] * 20_000), GOOD, "unknown"),
        (sampled(*[0, 1] * 20_000), sampled(), "unknown"),
    ],
    ids=["alike", "other", "few", "one side", "no draws"],
)
def test_sampled_outputs_have_three_answers(
    a: list[Row], b: list[Row], answer: str, tmp_path: Path
) -> None:
    assert report(tmp_path, a, b).answer == answer


def test_declared_times_decide_and_others_do_not(tmp_path: Path) -> None:
    fast = {"latency": {"cold": [], "warm": [0.001 + 1e-6 * (one % 7) for one in range(400)]}}
    slow = {"latency": {"cold": [], "warm": [0.002 + 1e-6 * (one % 7) for one in range(400)]}}
    assert report(tmp_path, GOOD, GOOD, changes=(fast, slow)).answer == "pass"
    own = "tolerances: 1\nlatency: [{phase: warm, quantile: 0.95, margin: 10%}]\n"
    (tmp_path / "again").mkdir()
    found = report(tmp_path / "again", GOOD, GOOD, own, (fast, slow))
    assert found.answer == "fail"
    assert found.reasons[0].startswith("p95 of warm runs: slower by at least 9")
    (tmp_path / "none").mkdir()
    assert report(tmp_path / "none", GOOD, GOOD, own).answer == "unknown"


# Reports


def many(count: int, wrong: int | None = None) -> list[Row]:
    rows: list[Row] = [("input", "input.0", numbers(1.0))]
    rows += [
        ("layer", f"blocks.{index}.<b>", numbers(1.0 if index != wrong else 2.0, dtype="float32"))
        for index in range(count)
    ]
    return [*rows, ("output", "output", numbers(1.0 if wrong is None else 2.0, dtype="float32"))]


def test_the_page_is_one_file_and_escapes_names(tmp_path: Path) -> None:
    times = {
        "latency": {"cold": [0.1, 0.2], "warm": [0.001] * 50},
        "name": "<script>alert(1)</script>",
    }
    found = report(tmp_path, many(500), many(500, 7), changes=(times, times))
    page = dual_text.html(found)
    assert "<script" not in page
    assert "&lt;b&gt;" in page
    for outside in ("http://", "https://", "src=", "@import", "url("):
        assert outside not in page
    assert "101 more arrays are in the JSON document" in page
    assert "blocks.7.&lt;b&gt; (Linear), step 8" in page


def test_simulated_hardware_is_labelled(tmp_path: Path) -> None:
    found = report(tmp_path, GOOD, GOOD, changes=({}, {"simulated": True}))
    assert dual_text.text(found).startswith("SIMULATED")
    assert "<title>Simulated:" in dual_text.html(found)


@pytest.mark.parametrize(
    ("b", "status", "answer"),
    [(GOOD, 0, "pass"), (replaced("output", 9.0, 9.0), 1, "fail"), (GOOD[:-1], 3, "unknown")],
)
def test_the_command_has_an_exit_status_per_answer(
    b: list[Row], status: int, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "a", GOOD)
    written(tmp_path / "b", b)
    line = [
        "dual",
        "compare",
        "a",
        "b",
        "--html",
        "x.html",
        "--report",
        "x.json",
        "--format",
        "json",
    ]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == status, done.output
    assert documents.valid(done.stdout)["answer"] == answer
    assert json.loads((tmp_path / "x.json").read_text()) == json.loads(done.stdout)
    assert (tmp_path / "x.html").read_text().startswith("<!doctype html>")
    done = CliRunner().invoke(main, line[:4])
    assert done.stdout.startswith(answer)


def test_the_command_verifies_records_and_signs_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[Path, Path]
) -> None:
    secret, public = keys
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        store.sign(store.read(written(tmp_path / name, GOOD)), secret)
    line = ["dual", "compare", "a", "b", "--report", "x.json", "--trust", str(public)]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 0, done.output
    assert "wrote x.json (not signed: name a key with --key)" in done.stderr
    done = CliRunner().invoke(main, [*line, "--key", str(secret)])
    assert "wrote x.json (signed)" in done.stderr
    file = tmp_path / "x.json"
    assert signed_file.verify(file, file.read_bytes(), [public], signing.REPORT)
    signed_file.envelope_of(tmp_path / "b/record.json").unlink()
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 2
    assert "the record is not signed" in done.stderr


def test_a_broken_record_is_an_error_of_the_command(tmp_path: Path) -> None:
    written(tmp_path / "a", GOOD)
    array = written(tmp_path / "b", GOOD) / "arrays/00004.npy"
    array.write_bytes(array.read_bytes()[:-1])
    done = CliRunner().invoke(main, ["dual", "compare", str(tmp_path / "a"), str(tmp_path / "b")])
    assert done.exit_code == 2
    assert "00004.npy: the array output cannot be read" in done.stderr
    assert "Traceback" not in done.output


def test_the_facts_have_a_tolerance_for_each_common_precision() -> None:
    found = tolerances.built_in()
    assert set(found.precisions) == {"float64", "float32", "tf32", "float16", "bfloat16", "exact"}
    assert found.precisions["tf32"].relative == found.precisions["float16"].relative
