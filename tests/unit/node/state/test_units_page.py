"""Units of nodes, of disk images and of a controller: their sandboxes, scored by systemd.

`python -m tests.unit.node.state.test_units_page` writes the table of docs/reference/units.md.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from goldnode.node.follow import apart
from goldnode.node.state.domains import follow, policy, program, scratch, serve, slots, units

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/reference/units.md"
BEGIN, END = "<!-- units -->\n", "<!-- /units -->"
ANALYZE = shutil.which("systemd-analyze")
WORDS = ("security", "--offline=true", "--no-pager", "--threshold=100")
# systemd's weights change with its versions. tests/e2e/test_unit_scores.py compares the second one.
SCORED_BY, NEWER = "252", "257"
LIMIT = 4.0
LOCKS = "goldnode-follow.service (class with `apply`)"
# The newest option that they use: `ProtectClock=` of systemd 245. Ubuntu 22.04 has 249.
PAGES = ("fleet-service", "fleet-data", "events", "monitoring", "canary")


class UnitRow(NamedTuple):
    """One row of the table. `before`: the score without a sandbox, as the trial of 2026-11-27 found it."""

    before: float
    newer: float  # the score by systemd 257
    does: str
    why: str = ""  # a score above the limit needs a reason
    shown: str = "not run"


_READS = "reads logs, answers of drivers and files of others; judges"
_NODE = "nodes of Debian 12"
_GUEST = "nodes of Debian 12 and 13; a guest"
_CONTAINER = "a container of Debian 12"
ROWS: Mapping[str, UnitRow] = {
    "goldnode-sanity.service": UnitRow(9.6, 3.9, _READS, "", _GUEST),
    "goldnode-watch.service": UnitRow(9.6, 3.9, _READS, "", _GUEST),
    "goldnode-events.service": UnitRow(
        4.7, 1.8, "waits for lines of the kernel's log, starts the check", "", "a guest"
    ),
    "goldnode-policy.service": UnitRow(
        9.6,
        4.0,
        "sets GPUs, swap, sysctls",
        "",
        "nodes of Debian 12; a guest",
    ),
    "goldnode-serve.service": UnitRow(1.1, 0.7, "answers HTTP from files", "", _NODE),
    follow.FETCH: UnitRow(
        9.6,
        1.3,
        "talks to the channel and the lock service, verifies what they say",
        "",
        "nodes of Debian 12 and 13",
    ),
    follow.SERVICE: UnitRow(
        9.6,
        6.0,
        "verifies that again; writes slots, reboots; has no network",
        "it mounts, writes disks and copies files of any kind; a narrower sandbox was not run in a guest",
        "nodes of Debian 12 and 13, without an image to write",
    ),
    LOCKS: UnitRow(
        9.6,
        9.4,
        "the same, and runs the command of the site that applies a lock",
        "that command installs packages, and may need anything, the network too",
        "nodes of Debian 12",
    ),
    "goldnode-mps.service": UnitRow(
        9.6,
        9.4,
        "NVIDIA's MPS daemon, which starts servers as other users",
        "NVIDIA's program; no sandbox was tried on a GPU",
    ),
    "goldnode-scratch.service": UnitRow(
        9.6,
        9.4,
        "mounts and unmounts scratch space",
        "the whole machine has to see its mounts, and a sandbox with mounts of its own hides them",
        "a container of Debian 12; a guest",
    ),
    "goldnode-good.service": UnitRow(
        9.6,
        3.9,
        "judges an image on trial, writes its boot entry",
        "",
        _CONTAINER,
    ),
    "goldnode-retries.service": UnitRow(
        9.6,
        3.9,
        "gives a good image new retries, writes its boot entry",
        "",
        _CONTAINER,
    ),
    "goldnode-tries.service": UnitRow(
        9.5,
        2.8,
        "reboots out of an image on trial, in an emergency",
        "",
        _CONTAINER,
    ),
    "goldnode-first-boot.service": UnitRow(
        9.5,
        1.8,
        "reads the seed of the ESP, once",
        "",
        "a guest",
    ),
    "goldnode-identity.service": UnitRow(
        9.5, 2.1, "completes the identity of a disk, at its first boot", "", "a guest"
    ),
    "goldnode-hostname.service": UnitRow(9.5, 2.0, "names a node without a name", "", "a guest"),
    "goldnode-lease-name.service": UnitRow(
        9.6, 2.1, "names a node after its DHCP lease", "", "a guest"
    ),
    "goldnode-ssh-keys.service": UnitRow(9.6, 2.1, "makes missing ssh host keys", "", _CONTAINER),
    "goldnode-fleet.service": UnitRow(
        8.3, 1.5, "lock service of the fleet", "", f"{_CONTAINER}, without the credential"
    ),
    "goldnode-deliver.service": UnitRow(
        9.2, 1.6, "delivers events; runs commands of hooks", "", _CONTAINER
    ),
    "goldnode-report.service": UnitRow(
        9.2, 0.9, "ingests captures, writes metrics of the report", "", _CONTAINER
    ),
    "goldnode-send-report.service": UnitRow(9.6, 1.6, "sends the report of the last check"),
    "goldnode-return-tests.service": UnitRow(9.2, 1.7, "runs tests on nodes over ssh"),
}


def texts() -> dict[str, str]:
    """Every service that goldnode installs, or that a page shows, by name."""
    found = {
        units.WATCH: units.WATCH_TEXT,
        units.EVENTS: units.EVENTS_TEXT,
        "goldnode-sanity.service": program.UNIT_TEXT,
        "goldnode-policy.service": policy.unit_text(""),
        "goldnode-mps.service": policy.MPS_TEXT,
        scratch.SERVICE: scratch.TEXT.format(start="ExecStart=/bin/true\n", stop=""),
        follow.SERVICE: follow.SERVICE_TEXT.format(root="", sandbox=follow.WRITER),
        LOCKS: follow.SERVICE_TEXT.format(root="", sandbox=""),
        follow.FETCH: follow.FETCH_TEXT,
        serve.SERVICE: serve.SERVICE_TEXT,
        slots.GOOD: slots.GOOD_TEXT,
        slots.TRIES: slots.TRIES_TEXT,
        slots.RETRIES: slots.RETRIES_TEXT,
    }
    images = ROOT / "images/disks/files/common/usr/lib/systemd/system"
    found |= {file.name: file.read_text() for file in images.glob("goldnode-*.service")}
    for page in PAGES:
        for block in re.findall(r"^ *```ini\n(.*?)^ *```", _page(page), re.MULTILINE | re.DOTALL):
            for part in re.split(r"(?m)^(?=# /etc/systemd/system/)", textwrap.dedent(block)):
                if name := re.match(r"# /etc/systemd/system/(goldnode-\S+\.service)\n", part):
                    found[name[1]] = part
    return found


def _page(name: str) -> str:
    return (ROOT / f"docs/how-to/{name}.md").read_text(encoding="utf-8")


@cache
def version() -> str:
    """The version of systemd-analyze here; empty without it."""
    if ANALYZE is None:
        return ""
    done = subprocess.run([ANALYZE, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.split()[1]


@cache
def scores() -> dict[str, float]:
    """The exposure of each unit as `systemd-analyze security` judges its file."""
    with tempfile.TemporaryDirectory() as folder:
        files = put(Path(folder))
        done = subprocess.run(
            [str(ANALYZE), *WORDS, *map(str, files)], capture_output=True, text=True, check=False
        )
    return by_name(done.stdout)


def put(folder: Path) -> list[Path]:
    """Write each unit to a file, in the order of the texts: the names of rows are no names of units."""
    files = [folder / f"u{number}.service" for number in range(len(texts()))]
    for file, text in zip(files, texts().values(), strict=True):
        file.write_text(text)
    return files


def by_name(output: str) -> dict[str, float]:
    """The scores in the output of `systemd-analyze security` for those files."""
    found = re.findall(r"exposure level for u(\d+).service: ([0-9.]+)", output)
    names = list(texts())
    return {names[int(number)]: float(score) for number, score in found}


def table() -> str:
    """The table of the page."""
    lines = [
        f"| Unit | Does | Before | {SCORED_BY} | {NEWER} | With all rights | Why more than 4.0 | Shown on |",
        "|---|---|--:|--:|--:|---|---|---|",
    ]
    for name, row in ROWS.items():
        plus = ", ".join(f"`{words}`" for words in with_all_rights(texts()[name]))
        now = scores()[name]
        shown = re.sub(r"^(\S+)", r"`\1`", name)
        lines.append(
            f"| {shown} | {row.does} | {row.before} | {now} | {row.newer} | {plus} | {row.why} | {row.shown} |"
        )
    return "\n".join(lines) + "\n"


def with_all_rights(text: str) -> list[str]:
    """The commands of a unit to which its sandbox does not apply (`+`), without their arguments."""
    rows = re.findall(r"^Exec\w+=[-@:]*\+[-@:]*(\S+)(.*)$", text, re.MULTILINE)
    short = {"/usr/lib/goldnode/goldnode-node": lambda rest: f"goldnode-node{rest}"}
    named = [
        short.get(path, lambda _, path=path: path.rpartition("/")[2])(rest) for path, rest in rows
    ]
    return ["nvidia-modprobe" if word == "sh" else word for word in named]


def test_every_unit_has_a_row() -> None:
    assert set(texts()) == set(ROWS)


@pytest.mark.skipif(int(version() or 0) < 250, reason="needs systemd-analyze security --offline")
def test_a_unit_is_exposed_to_4_at_most_or_has_a_reason() -> None:
    assert set(scores()) == set(ROWS)
    over = {name for name, score in scores().items() if max(score, ROWS[name].newer) > LIMIT}
    assert over <= {name for name, row in ROWS.items() if row.why}, scores()


@pytest.mark.skipif(
    version() != SCORED_BY, reason=f"the page has the scores of systemd {SCORED_BY}"
)
def test_the_page_has_every_unit_as_it_is() -> None:
    written = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert written == table(), "run: python -m tests.unit.node.state.test_units_page"


def test_unit_with_the_network_has_no_rights_and_the_one_with_rights_no_network() -> None:
    fetch, act = texts()[follow.FETCH], texts()[follow.SERVICE]
    assert "DynamicUser=yes\n" in fetch
    assert "CapabilityBoundingSet=\n" in fetch
    assert "RestrictAddressFamilies=AF_INET AF_INET6\n" in fetch  # no socket of systemd
    assert {"PrivateNetwork=yes", "RestrictAddressFamilies=AF_UNIX"} <= set(act.splitlines())
    for text in (act, texts()[LOCKS]):
        assert f"ExecStart={program.PROGRAM} follow --apart\n" in text
    assert f"StandardInput=file:{apart.REQUEST}\n" in fetch
    assert f"/private/{re.findall('CacheDirectory=(.*)', fetch)[0]}" in apart.FOLDER
    assert apart.UNIT == follow.FETCH


def test_reader_of_logs_and_drivers_does_not_act() -> None:
    for name in ("goldnode-sanity.service", "goldnode-watch.service"):
        text = texts()[name]
        (start,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
        assert start.endswith(" --defer")
        assert not start.startswith("+")
        assert program.READER in text
        assert f"ExecStartPost={program.ACT}\n" in text
    assert "SystemCallFilter" in program.READER
    # What loads modules, mounts, traces or reboots is in none of these sets.
    assert not re.search(r"@(module|mount|debug|reboot|raw-io|swap)", program.READER)


if __name__ == "__main__":
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(head + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")
