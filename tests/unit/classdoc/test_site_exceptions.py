"""Exceptions of the site file: accepted in one try, refused when they have expired, and in every report."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import textwrap
from pathlib import Path

import pytest
from tests.unit.catalog.test_accept_reject import FILES, write

from goldnode.classdoc.exceptions import exception_faults, in_force
from goldnode.classdoc.findings import check_use, findings_of_class
from goldnode.classdoc.load import load_catalog
from goldnode.classdoc.view import read_class
from goldnode.commands.check.catalog_report import check
from goldnode.compat import report
from goldnode.compat.model import CompatFinding
from goldnode.core.errors import CatalogError, SiteError
from goldnode.core.site import Site, exception_entry, load_site

ENDED = dt.date(2028, 7, 1)  # the day after the end of life of the stack
ROW = '{rule: end-of-life, class: a100, owner: ada, reason: moves in March, expires: "2028-12-31"}'


def site(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "goldnode-site.yml"
    text = "exceptions:\n" + "".join(f"  - {row}\n" for row in rows) if rows else "archives: {}\n"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_text_of_the_refusal_is_what_lets_the_class_pass(tmp_path: Path) -> None:
    catalog = load_catalog([write(tmp_path / "catalog", FILES)])
    with pytest.raises(CatalogError, match="past its end of life") as caught:
        check_use(read_class("a100", catalog, Site(), on=ENDED))
    pasted = re.search(
        r"add this line to goldnode-site\.yml, .*: (exceptions: \[\{.*\}\])", str(caught.value)
    )
    assert pasted is not None, caught.value
    file = tmp_path / "goldnode-site.yml"
    file.write_text(f"{pasted[1]}\n")
    with pytest.raises(SiteError, match="is still the placeholder"):
        load_site(file)
    filled = pasted[1].replace("NAME", "ada").replace("REASON", "moves in March")
    file.write_text(re.sub(r'expires: "[^"]*"', 'expires: "2028-12-31"', filled))
    check_use(read_class("a100", catalog, load_site(file), on=ENDED))


@pytest.mark.parametrize(
    ("row", "passes"),
    [
        pytest.param(ROW, True, id="class"),
        pytest.param(ROW.replace("class: a100", "stack: r580"), True, id="stack"),
        pytest.param(ROW.replace("class: a100", "class: a100, stack: r580"), True, id="both"),
        pytest.param(ROW.replace("class: a100", "class: other"), False, id="another-class"),
        pytest.param(
            ROW.replace("class: a100", "class: a100, stack: plain"), False, id="another-stack"
        ),
        pytest.param(ROW.replace("end-of-life", "security-floor"), False, id="another-rule"),
    ],
)
def test_an_exception_is_for_what_it_names(tmp_path: Path, row: str, passes: bool) -> None:
    catalog = load_catalog([write(tmp_path / "catalog", FILES)])
    own = load_site(site(tmp_path, row))
    if passes:
        check_use(read_class("a100", catalog, own, on=ENDED))
        return
    with pytest.raises(CatalogError, match="past its end of life"):
        check_use(read_class("a100", catalog, own, on=ENDED))


@pytest.mark.parametrize(
    ("row", "line", "message"),
    [
        pytest.param(
            ROW.replace("2028-12-31", "2028-06-30"),
            2,
            "exception of ada .* expired on 2028-06-30",
            id="expired",
        ),
        pytest.param(ROW.replace("end-of-life", "end-of-live"), 2, 'Use "end-of-life"', id="rule"),
    ],
)
def test_a_wrong_exception_is_an_error_with_its_line(
    tmp_path: Path, row: str, line: int, message: str
) -> None:
    catalog = load_catalog([write(tmp_path / "catalog", FILES)])
    path = site(tmp_path, row)
    with pytest.raises(SiteError, match=message) as caught:
        check_use(read_class("a100", catalog, load_site(path), on=ENDED))
    assert (caught.value.file, caught.value.line) == (str(path), line)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW.replace("class: a100, ", ""), "needs `class` or `stack`"),
        (ROW.replace("owner: ada, ", ""), "owner"),
        (ROW.replace('"2028-12-31"', "soon"), "expires"),
    ],
)
def test_an_incomplete_exception_is_an_error_of_the_site_file(
    tmp_path: Path, row: str, message: str
) -> None:
    with pytest.raises(SiteError, match=message) as caught:
        load_site(site(tmp_path, row))
    assert caught.value.line is not None


def test_an_accepted_finding_stays_in_the_report(tmp_path: Path) -> None:
    catalog = load_catalog([write(tmp_path / "catalog", FILES)])
    with_it = findings_of_class("a100", catalog, load_site(site(tmp_path, ROW)), on=ENDED)
    (ended,) = [item for item in with_it if item.rule == "end-of-life"]
    assert (ended.fatal, ended.accepted) == (False, "moves in March (ada, until 2028-12-31)")
    without = findings_of_class("a100", catalog, load_site(site(tmp_path)), on=ENDED)
    (ended,) = [item for item in without if item.rule == "end-of-life"]
    assert ended.fatal
    text = report.text(report.CompatReport([("class a100", None)], [ended]))
    assert f"exceptions:\n{' ' * 15}- {exception_entry('end-of-life', 'class a100')}" in text


@pytest.mark.parametrize("name", [None, "goldnode-site.yml", "elsewhere.yml"])
def test_the_block_of_the_report_works_when_it_is_pasted_into_the_file_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GOLDNODE_SITE", raising=False)
    if name is not None:
        (tmp_path / name).write_text("archives: {}\n", encoding="utf-8")
    if name == "elsewhere.yml":
        monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / name))
    catalog = load_catalog([write(tmp_path / "catalog", FILES)])
    today = dt.datetime.now(tz=dt.UTC).date()
    stack = catalog.stack("r580")
    ended = stack.item.end_of_life.model_copy(update={"date": today - dt.timedelta(days=1)})
    catalog.stacks["r580"] = dataclasses.replace(
        stack, item=stack.item.model_copy(update={"end_of_life": ended})
    )

    def findings() -> list[CompatFinding]:
        found = findings_of_class("a100", catalog, load_site())
        return [item for item in found if item.rule == "end-of-life"]

    text = report.text(report.CompatReport([("class a100", None)], findings()))
    reported = re.search(r"accept it, in (\S+):\n((?: {13}(?:exceptions:|  - .*)\n)+)", text)
    assert reported is not None, text
    block = textwrap.dedent(reported[2]).replace("NAME", "ada").replace("REASON", "moves in March")
    with (tmp_path / reported[1]).open("a", encoding="utf-8") as file:
        file.write(block)
    assert Path(reported[1]).name == (name or "goldnode-site.yml")
    (after,) = findings()
    assert (after.fatal, str(after.accepted).partition(" (")[0]) == (False, "moves in March")


def test_the_entry_for_an_image_names_the_image() -> None:
    entry = exception_entry("known-bad", "image nvidia/cuda:12.4.1-base-ubuntu22.04 on class l4")
    assert 'class: l4, subject: "nvidia/cuda:12.4.1-base-ubuntu22.04"' in entry


@pytest.mark.parametrize(
    ("rule", "fatal", "offered"),
    [
        ("security-floor", True, True),
        ("security-floor", False, False),
        ("module-flavour", True, False),
    ],
)
def test_an_exception_is_offered_for_what_blocks_and_could_work(
    rule: str, fatal: bool, offered: bool
) -> None:
    finding = CompatFinding(
        rule,
        severity="block",
        subject="class a100",
        message="it does",
        sources=(),
        way_out="use another",
        fatal=fatal,
    )
    assert ("exceptions" in report.refusal(finding)["remedy"]) == offered
    assert ("exceptions" in str(report.error(finding))) == offered


def test_check_catalog_reports_expired_unknown_and_unmatched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    today = dt.datetime.now(tz=dt.UTC).date()
    late = (today + dt.timedelta(days=9)).isoformat()
    path = site(
        tmp_path,
        ROW.replace("a100", "cpu_only").replace("2028-12-31", "2026-01-01"),
        ROW.replace("a100", "gone").replace("2028-12-31", late),
        ROW.replace("a100", "cpu_only")
        .replace("end-of-life", "amdgpu")
        .replace("2028-12-31", late),
    )
    monkeypatch.delenv("GOLDNODE_SITE", raising=False)
    found = check()
    wrong = [str(problem) for problem in found.wrong if path.name in str(problem)]
    assert any(":2: " in text and "expired on 2026-01-01" in text for text in wrong), wrong
    assert any(":3: " in text and 'class "gone" of an exception' in text for text in wrong), wrong
    assert any(":4: " in text and "matches no finding" in text for text in found.notes), found.notes


def test_exceptions_hold_until_the_end_of_their_last_day(tmp_path: Path) -> None:
    own = load_site(site(tmp_path, ROW))
    assert in_force(own, "a100", "r580", dt.date(2028, 12, 31))
    assert not in_force(own, "a100", "r580", dt.date(2029, 1, 1))
    catalog = load_catalog([write(tmp_path / "catalog", FILES)])
    assert not list(exception_faults(own, catalog, ENDED))
