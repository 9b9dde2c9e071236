"""Changes between nightly runs over driver packages and kernels."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from goldnode.core.errors import ModulesError
from goldnode.lock import pairchanges
from goldnode.lock.pairchanges import PairHistory, PairRunChanges

DAY = dt.date(2026, 11, 28)


def row(kernel: str, outcome: str = "builds", why: str = "") -> dict[str, str]:
    return {
        "package": "nvidia-kernel-dkms",
        "version": "550.163.01-2",
        "kernel": kernel,
        "outcome": outcome,
        "why": why,
    }


def after(file: Path, *rows: dict[str, str], day: int = 0) -> PairRunChanges:
    """Run a night, and return what it has changed."""
    known = pairchanges.history(file, ["--driver nvidia-*"])
    known, changed = pairchanges.compared(known, rows, today=DAY + dt.timedelta(day))
    pairchanges.write(file, known)
    return changed


def kernels(changed: PairRunChanges) -> dict[str, list[str]]:
    return {
        name: [pair.kernel for pair in getattr(changed, name)]
        for name in ("new", "changed", "gone")
    }


def test_nights_list_what_is_new_changed_and_gone(tmp_path: Path) -> None:
    file = tmp_path / "changes.json"
    first = after(file, row("6.12.1"), row("7.2.1", "fails", "no such member"))
    assert kernels(first) == {"new": ["6.12.1", "7.2.1"], "changed": [], "gone": []}
    assert not after(file, row("6.12.1"), row("7.2.1", "fails", "no such member"), day=1)
    third = after(file, row("7.2.1"), row("7.2.2", "excluded", "rt"), day=2)
    assert kernels(third) == {"new": ["7.2.2"], "changed": ["7.2.1"], "gone": ["6.12.1"]}
    assert pairchanges.run_lines(third) == [
        "changed: nvidia-kernel-dkms 550.163.01-2 on 7.2.1 builds, it was fails",
        "new: nvidia-kernel-dkms 550.163.01-2 on 7.2.2 excluded (rt)",
        "gone: nvidia-kernel-dkms 550.163.01-2 on 6.12.1",
    ]
    page = pairchanges.markdown(pairchanges.history(file, ["--driver nvidia-*"]))
    assert page.index("### 2026-11-30") < page.index("### 2026-11-28")
    assert "2026-11-29" not in page, "a night without a change is not listed"


@pytest.mark.parametrize("outcome", ["no result", "not measured"])
def test_pair_without_a_result_is_no_change(tmp_path: Path, outcome: str) -> None:
    file = tmp_path / "changes.json"
    after(file, row("7.2.1"))
    assert not after(file, row("7.2.1", outcome), row("7.2.2", outcome), day=1)
    assert kernels(after(file, row("7.2.1", "fails"), row("7.2.2"), day=2)) == {
        "new": ["7.2.2"],
        "changed": ["7.2.1"],
        "gone": [],
    }


def test_failures_come_first(tmp_path: Path) -> None:
    changed = after(tmp_path / "c", row("a"), row("b", "excluded"), row("c", "fails", "error"))
    lines = pairchanges.run_lines(changed)
    assert [line.split(" on ")[1][0] for line in lines] == ["c", "b", "a"]


def test_history_of_other_options_is_refused(tmp_path: Path) -> None:
    after(tmp_path / "c", row("a"))
    with pytest.raises(ModulesError, match="its runs have other options: --driver nvidia-"):
        pairchanges.history(tmp_path / "c", ["--suite debian/sid"])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"document": "goldnode.module-changes/2"}'])
def test_history_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c").write_text(text)
    with pytest.raises(ModulesError, match="cannot be read"):
        pairchanges.history(tmp_path / "c", [])


def test_history_has_an_end() -> None:
    known = PairHistory(selection=())
    for day in range(400):
        known, _ = pairchanges.compared(known, [row(str(day))], today=DAY + dt.timedelta(day))
    assert len(known.runs) == 366
    assert known.runs[0].new[0].kernel == "399"
