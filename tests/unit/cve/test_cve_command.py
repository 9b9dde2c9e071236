"""`goldnode cve` from files, an address and captures, as a person runs it."""

from __future__ import annotations

import bz2
import io
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import documents
from tests.simulators.fleet import NOW, fleet, put, store
from tests.unit.cve.samples import (
    CVE,
    csaf_of_packages,
    osv_record,
    oval_debian,
    tracker,
)

from goldnode.catalog.load import builtin_catalog
from goldnode.cli import main
from goldnode.commands.cve import sources as command
from goldnode.commands.schema.kinds import schema
from goldnode.core.site import load_site
from goldnode.cve.claims import OsRelease
from goldnode.cve.csaf import CsafDocuments
from goldnode.cve.debian import DebianTracker
from goldnode.cve.oval import OvalDefinitions
from goldnode.cve.subjects import Carriers
from goldnode.evidence.changelogs import read_entries
from goldnode.lock.model import load_lock
from goldnode.node.state.debversion import compare
from goldnode.testing.rehearsal.tracker import tracker as changelog_tracker

STACK = "debian12_r535"
LOCK = load_lock(builtin_catalog() / "stacks" / f"{STACK}.lock.yml")
RELEASE = LOCK.kernel_release
VERSION = next(item.version for item in LOCK.packages if item.name == f"linux-image-{RELEASE}")


@pytest.fixture(scope="module")
def carriers() -> Carriers:
    """The locks of the catalog, which take seconds to read."""
    return command.carriers_of(load_site())


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carriers: Carriers) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GOLDNODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(command, "carriers_of", lambda _: carriers)


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["cve", *map(str, words)])


def document(*words: object, status: int = 1) -> dict[str, Any]:
    done = run(*words, "--format", "json")
    assert done.exit_code == status, done.output
    content = json.loads(done.stdout)
    jsonschema.validate(documents.valid(content), schema("cve"))
    return dict(content)


def states(content: dict[str, Any], kind: str) -> dict[str, str]:
    rows = content["vulnerabilities"][0]["rows"]
    return {name: row["state"] for row in rows if row["kind"] == kind for name in row["names"]}


def data(path: Path, fixed: str, source: str = "linux") -> Path:
    row = {"status": "resolved", "fixed_version": fixed, "urgency": "high"}
    path.write_text(tracker({source: {CVE: {"bookworm": row}}}))
    return path


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four nodes of the stack: one runs its kernel, one the one before, one waits for a boot, one is of no lock."""
    nodes = fleet(4)
    for node in nodes:
        node.change(put("os/version", "12"))
        node.change(put("os/kernel/running", "6.1.0-50-amd64"))
        node.change(
            put("os/kernel/version", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.180-1 (2026-08-01)")
        )
        node.change(put("os/kernel/installed", ["6.1.0-50-amd64"]))
        node.change(put("identity/lock_digest", LOCK.digest))
        node.change(put("driver/loaded", "535.216.01"))
    nodes[0].change(put("os/kernel/running", RELEASE))
    nodes[0].change(
        put("os/kernel/version", f"#1 SMP PREEMPT_DYNAMIC Debian {VERSION} (2026-11-20)")
    )
    nodes[2].change(put("os/kernel/installed", ["6.1.0-50-amd64", RELEASE]))
    nodes[3].change(put("identity/lock_digest", "sha256:other"))
    return store(tmp_path_factory.mktemp("captures"), nodes, [NOW])


def test_nodes_of_the_last_report_are_judged_by_what_runs(tmp_path: Path, captures: Path) -> None:
    feed = f"debian={data(tmp_path / 'tracker.json', VERSION)}"
    content = document(CVE, "--feed", feed, "--data", captures)
    assert states(content, "node") == {
        "node1000": "fixed",
        "node1001": "affected",
        "node1002": "fix-not-booted",
        "node1003": "affected",
    }
    assert states(content, "lock")[STACK] == "fixed"
    assert content["nodes"] == {"captured": 4, "simulated": 4}
    text = run(CVE, "--feed", feed, "--data", captures).output
    assert f"{RELEASE} with the fix is installed and not booted" in text
    assert "SIMULATED" in text
    assert "an excerpt: it knows 1 source packages" in text


def test_driver_of_the_nodes_is_judged_by_the_facts(captures: Path) -> None:
    content = document("CVE-2025-23280", "--data", captures)
    assert set(states(content, "node").values()) == {"affected", "fix-not-booted"}
    assert states(content, "node")["node1003"] == "affected"  # no lock states what is installed


def test_locks_disks_and_images_are_judged_by_their_packages(tmp_path: Path) -> None:
    newer = data(tmp_path / "newer.json", f"{VERSION}+x")
    content = document(CVE, "--feed", f"debian={newer}", "--no-nodes")
    assert states(content, "lock")[STACK] == "affected"
    assert states(content, "disk")["demo_disk_r535"] == "affected"
    # Images have headers of the kernel at most.
    assert not states(content, "image")
    content = document(
        CVE, "--feed", f"debian={data(tmp_path / 'z.json', '1:99', 'zlib')}", "--no-nodes"
    )
    assert states(content, "image")


@pytest.mark.parametrize("packed", [False, True])
def test_oval_is_read_from_a_file_as_it_is_published(tmp_path: Path, packed: bool) -> None:
    text = oval_debian({CVE: ("linux", f"{VERSION}+x")})
    file = tmp_path / "oval-definitions-bookworm.xml.bz2"
    file.write_bytes(bz2.compress(text) if packed else text)
    content = document(CVE, "--feed", f"oval={file}", "--no-nodes")
    assert states(content, "lock")[STACK] == "affected"
    assert content["feeds"][0]["date"] == "2026-11-27"
    file.write_bytes(bz2.compress(text)[:-20])
    done = run(CVE, "--feed", f"oval={file}", "--no-nodes")
    assert (done.exit_code, "cannot be read as oval" in done.stderr) == (2, True), done.stderr


def test_fixed_everywhere_ends_with_0(tmp_path: Path) -> None:
    old = data(tmp_path / "old.json", "6.1.1-1")
    content = document(CVE, "--feed", f"debian={old}", "--no-nodes", status=0)
    assert set(states(content, "lock").values()) == {"fixed"}


def test_answer_without_data_names_the_command_that_fetches_them(tmp_path: Path) -> None:
    words = "--feed debian=https://security-tracker.debian.org/tracker/data/json --fetch"
    assert words in run(CVE, "--no-nodes").output
    given = run(CVE, "--feed", f"debian={data(tmp_path / 'd.json', '1')}", "--no-nodes")
    assert words not in given.output


def test_missing_captures_are_reported_and_not_taken_for_no_nodes(tmp_path: Path) -> None:
    done = run(CVE, "--feed", f"debian={data(tmp_path / 'old.json', '6.1.1-1')}")
    assert (done.exit_code, "nodes are not judged" in done.stderr) == (0, True)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "name vulnerabilities, or use --all"),
        ([CVE, "--all"], "name vulnerabilities, or use --all"),
        (["--all", "--module", "algif_aead"], "--module is for one CVE"),
        ([CVE, "--feed", "tracker.json"], "expected KIND=FILE"),
        ([CVE, "--feed", "debian=gone.json"], "does not exist"),
        ([CVE, "--feed", "debian=cut.json"], "cut short"),
        ([CVE, "--feed", "osv=whole.json"], "no OSV record"),
        ([CVE, "--feed", "csaf=whole.json"], "no CSAF 2 document"),
        ([CVE, "--feed", "debian=osv.json"], "no tracker JSON"),
        (
            [CVE, "--feed", "debian=whole.json@2026-01-01", "--max-age", "30"],
            "--max-age permits 30",
        ),
        ([CVE, "--feed", "debian=http://127.0.0.1:9/tracker"], "was not fetched yet"),
    ],
)
def test_wrong_input_is_one_line_with_a_remedy(tmp_path: Path, words: list[str], part: str) -> None:
    text = data(tmp_path / "whole.json", "1").read_text()
    (tmp_path / "cut.json").write_text(text[: len(text) // 2])
    (tmp_path / "osv.json").write_bytes(osv_record("DEBIAN-CVE-2026-1001", "openssl", []))
    done = run(*words, "--no-nodes")
    assert (done.exit_code, part in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.output


class _Dated(SimpleHTTPRequestHandler):
    """Serves files, each with the date of its data."""

    def log_message(self, *_: Any) -> None:
        """Write no log."""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    place = tmp_path / "served"
    place.mkdir()
    file = data(place / "tracker", VERSION)
    os.utime(file, (1_795_000_000, 1_795_000_000))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Dated, directory=str(place)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/tracker"
    server.shutdown()
    server.server_close()


def test_address_is_fetched_on_request_alone(tmp_path: Path, address: str) -> None:
    refused = run(CVE, "--feed", f"debian={address}", "--no-nodes")
    assert (refused.exit_code, "--fetch" in refused.stderr) == (2, True)
    first = document(CVE, "--feed", f"debian={address}", "--no-nodes", "--fetch", status=0)
    assert (first["feeds"][0]["date"], first["feeds"][0]["date_from"]) == (
        "2026-11-18",
        "of the server",
    )
    # What the server has later is not used until it is asked for.
    data(tmp_path / "served" / "tracker", f"{VERSION}+x")
    again = document(CVE, "--feed", f"debian={address}", "--no-nodes", status=0)
    assert again["feeds"] == first["feeds"]
    newer = document(CVE, "--feed", f"debian={address}", "--no-nodes", "--fetch")
    assert states(newer, "lock")[STACK] == "affected"


def test_answer_without_a_network_is_that_of_the_cache(address: str, tmp_path: Path) -> None:
    document(CVE, "--feed", f"debian={address}", "--no-nodes", "--fetch", status=0)
    (tmp_path / "served" / "tracker").unlink()
    failed = run(CVE, "--feed", f"debian={address}", "--no-nodes", "--fetch")
    assert (failed.exit_code, "HTTP status 404" in failed.stderr) == (2, True)
    document(CVE, "--feed", f"debian={address}", "--no-nodes", status=0)


PIECE = st.from_regex(r"[0-9A-Za-z.+~]{1,6}", fullmatch=True)


@st.composite
def versions(draw: st.DrawFn) -> str:
    epoch = draw(st.sampled_from(["", "", "1:", "0:"]))
    revision = draw(st.sampled_from(["", "-1", "-1+deb12u1", "-1+b1", "-1~bpo12+1", "-2ubuntu0.1"]))
    return f"{epoch}{draw(st.integers(0, 9))}{draw(PIECE)}{revision}"


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="dpkg is the judge")
@settings(max_examples=60)
@given(versions(), versions())
def test_order_of_versions_is_that_of_dpkg(left: str, right: str) -> None:
    order = compare(left, right)
    for operator, expected in (("lt", order < 0), ("eq", order == 0), ("gt", order > 0)):
        done = subprocess.run(["dpkg", "--compare-versions", left, operator, right], check=False)
        assert (done.returncode == 0) is expected, (left, operator, right)


CHANGELOG = """linux (6.1.192-1) bookworm-security; urgency=high

  * [amd64] a fix (CVE-2026-31431)

linux (6.1.190-1) bookworm-security; urgency=high

  * another one (CVE-2026-20001, CVE-2026-20002)
  * and a part of the first (CVE-2026-31431)
"""


def made() -> str:
    """Data of the rehearsal, from the changelog."""
    return changelog_tracker([("bookworm", "linux", read_entries(CHANGELOG))])


def test_data_of_two_releases_have_a_row_for_each() -> None:
    newer = "linux (6.12.115-1) trixie-security; urgency=high\n\n  * a fix (CVE-2026-31431)\n"
    logs = [
        ("bookworm", "linux", read_entries(CHANGELOG)),
        ("trixie", "linux", read_entries(newer)),
    ]
    rows = json.loads(changelog_tracker(logs))["linux"]["CVE-2026-31431"]["releases"]
    fixed = {codename: row["fixed_version"] for codename, row in rows.items()}
    assert fixed == {"bookworm": "6.1.190-1", "trixie": "6.12.115-1"}


def test_sample_from_a_changelog_names_the_first_version_with_each_fix() -> None:
    rows = json.loads(made())["linux"]
    fixed = {cve: row["releases"]["bookworm"]["fixed_version"] for cve, row in rows.items()}
    assert fixed == dict.fromkeys(
        ("CVE-2026-31431", "CVE-2026-20001", "CVE-2026-20002"), "6.1.190-1"
    )
    assert "not by the tracker" in rows["CVE-2026-20001"]["description"]


def test_formats_made_from_one_changelog_agree_on_each_kernel() -> None:
    """With the changelog of linux 6.1.192-3 they agree on 4,442 vulnerabilities of 20 kernels."""
    text = made()
    rows = json.loads(text)["linux"]
    fixed = {cve: row["releases"]["bookworm"]["fixed_version"] for cve, row in rows.items()}
    bookworm = OsRelease("debian", "12", "bookworm")
    oval = oval_debian({cve: ("linux", version) for cve, version in fixed.items()})
    csaf = csaf_of_packages(
        {cve: ("linux", "6.1.189-1", version) for cve, version in fixed.items()}
    )
    sources = (
        DebianTracker(text, {"bookworm"}),
        OvalDefinitions([io.BytesIO(oval)]),
        CsafDocuments([csaf]),
    )
    for version in ("6.1.189-1", "6.1.190-1", "6.1.192-1"):
        for cve in fixed:
            answers = {one.claims(bookworm, "linux")[cve].judge(version).state for one in sources}
            assert len(answers) == 1, (version, cve, answers)
