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

from goldnode.node.state.domains import follow, policy, program, serve, slots, units

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/reference/units.md"
BEGIN, END = "<!-- units -->\n", "<!-- /units -->"
ANALYZE = shutil.which("systemd-analyze")
SCORED_BY = "252"  # systemd's weights change with its versions
LIMIT = 4.0
# The newest option that they use: `ProtectClock=` of systemd 245. Ubuntu 22.04 has 249.
PAGES = ("fleet-service", "events", "monitoring", "canary")


class UnitRow(NamedTuple):
    """One row of the table. `before`: the score without a sandbox, as the trial of 2026-11-27 found it."""

    before: float
    does: str
    why: str = ""  # a score above the limit needs a reason
    shown: str = "not run"


_READS = "reads logs, answers of drivers and files of others; judges"
_DEVICES = "GPUs, the kernel's log, other processes and the health log of NVMe are read"
_NODE = "nodes of Debian 12"
_GUEST = "nodes of Debian 12 and 13; a guest"
_CONTAINER = "a container of Debian 12"
ROWS: Mapping[str, UnitRow] = {
    "goldnode-sanity.service": UnitRow(9.6, _READS, _DEVICES, _GUEST),
    "goldnode-watch.service": UnitRow(9.6, _READS, _DEVICES, _GUEST),
    "goldnode-events.service": UnitRow(
        4.7, "waits for lines of the kernel's log, starts the check", "", "a guest"
    ),
    "goldnode-policy.service": UnitRow(
        9.6,
        "sets GPUs, swap, sysctls",
        "it writes devices, sysctls and sysfs",
        "nodes of Debian 12; a guest",
    ),
    "goldnode-serve.service": UnitRow(1.1, "answers HTTP from files", "", _NODE),
    "goldnode-follow.service": UnitRow(
        9.6,
        "fetches and verifies metadata; installs packages, writes slots, reboots",
        "a package may change anything; metadata are verified before anything is done",
    ),
    "goldnode-mps.service": UnitRow(
        9.6,
        "NVIDIA's MPS daemon, which starts servers as other users",
        "NVIDIA's program; no sandbox was tried on a GPU",
    ),
    "goldnode-good.service": UnitRow(
        9.6,
        "judges an image on trial, writes its boot entry",
        "in a boot on trial alone; a sandbox that fails there would give up a good image",
    ),
    "goldnode-tries.service": UnitRow(
        9.5,
        "reboots out of an image on trial",
        "in an emergency, plain shell; it must work when nothing else does",
    ),
    "goldnode-first-boot.service": UnitRow(
        9.5,
        "reads the seed of the ESP, once",
        "writes below /etc and /root, once, before the network is up",
    ),
    "goldnode-hostname.service": UnitRow(9.5, "names a node without a name", "", "a guest"),
    "goldnode-lease-name.service": UnitRow(9.6, "names a node after its DHCP lease", "", "a guest"),
    "goldnode-ssh-keys.service": UnitRow(9.6, "makes missing ssh host keys", "", _CONTAINER),
    "goldnode-fleet.service": UnitRow(
        8.3, "lock service of the fleet", "", f"{_CONTAINER}, without the credential"
    ),
    "goldnode-deliver.service": UnitRow(
        9.2, "delivers events; runs commands of hooks", "", _CONTAINER
    ),
    "goldnode-report.service": UnitRow(
        9.2, "ingests captures, writes metrics of the report", "", _CONTAINER
    ),
    "goldnode-return-tests.service": UnitRow(9.2, "runs tests on nodes over ssh"),
}


def texts() -> dict[str, str]:
    """Every service that goldnode installs, or that a page shows, by name."""
    found = {
        units.WATCH: units.WATCH_TEXT,
        units.EVENTS: units.EVENTS_TEXT,
        "goldnode-sanity.service": program.UNIT_TEXT,
        "goldnode-policy.service": policy.unit_text(""),
        "goldnode-mps.service": policy.MPS_TEXT,
        follow.SERVICE: follow.SERVICE_TEXT.format(root="/etc/goldnode/follow/root.json"),
        serve.SERVICE: serve.SERVICE_TEXT,
        slots.GOOD: slots.GOOD_TEXT,
        slots.TRIES: slots.TRIES_TEXT,
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
        files = {name: Path(folder) / name for name in texts()}
        for name, text in texts().items():
            files[name].write_text(text)
        words = ["security", "--offline=true", "--no-pager", "--threshold=100"]
        done = subprocess.run(
            [str(ANALYZE), *words, *map(str, files.values())],
            capture_output=True,
            text=True,
            check=False,
        )
    found = re.findall(r"exposure level for (\S+?): ([0-9.]+)", done.stdout)
    return {name: float(score) for name, score in found}


def table() -> str:
    """The table of the page."""
    lines = [
        "| Unit | Does | Before | Now | With all rights | Why more than 4.0 | Shown on |",
        "|---|---|--:|--:|---|---|---|",
    ]
    for name, row in ROWS.items():
        plus = ", ".join(f"`{words}`" for words in with_all_rights(texts()[name]))
        now = scores()[name]
        lines.append(
            f"| `{name}` | {row.does} | {row.before} | {now} | {plus} | {row.why} | {row.shown} |"
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
    over = {name for name, score in scores().items() if score > LIMIT}
    assert over <= {name for name, row in ROWS.items() if row.why}, scores()


@pytest.mark.skipif(
    version() != SCORED_BY, reason=f"the page has the scores of systemd {SCORED_BY}"
)
def test_the_page_has_every_unit_as_it_is() -> None:
    written = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert written == table(), "run: python -m tests.unit.node.state.test_units_page"


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
