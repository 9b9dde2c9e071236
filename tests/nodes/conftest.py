"""The node suite's frame: which hosts, what their class is, readers of their state, and an honest summary.

Run by ``scripts/verify -i INVENTORY``. Without ``--hosts`` this folder is not collected: it must never judge the machine
that the tests happen to run on. Nothing here imports goldnode: these are second readers, so that one bug cannot pass twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.nodes.reader import NOT_HERE, Node


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect this folder only when hosts were named."""
    return None if config.getoption("--hosts", None) else True


def bare(value: Any) -> Any:
    """Return `value` without the marks ansible-inventory --list puts on strings that are no templates."""
    if isinstance(value, dict):
        if set(value) == {"__ansible_unsafe"}:
            return value["__ansible_unsafe"]
        return {key: bare(item) for key, item in value.items()}
    return [bare(item) for item in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def node(host: Any) -> Node:
    """The host under test with its class document, as the inventory's vars plugin gives it."""
    document = bare(host.ansible.get_variables().get("goldnode_node_class"))
    if document is None:
        pytest.fail(
            "the inventory puts this host in no group that is named like a node class",
            pytrace=False,
        )
    if "error" in document:
        pytest.fail(
            f"class {document['class']} does not compile: {document['error']}", pytrace=False
        )
    # Asked once, before any check: a test that needs nothing of the host would pass for one that is not there.
    why = ""
    try:
        answer = host.run("echo goldnode")
    except (RuntimeError, OSError) as error:
        # testinfra raises with the whole result of ssh in it, of which a person wants what ssh said.
        result = error.args[0] if error.args else error
        why = str(getattr(result, "stderr", "") or result).strip()
    if why:
        pytest.fail(f"this host cannot be reached: {why}", pytrace=False)
    if answer.stdout.strip() != "goldnode":
        pytest.fail(
            f"this host cannot run a command: {answer.stderr.strip() or answer.stdout.strip()}",
            pytrace=False,
        )
    return Node(host, document)


class Summary:
    """Counts outcomes by host and test; makes a run that showed nothing fail."""

    def __init__(self) -> None:
        self.verified: list[str] = []
        self.failed: list[str] = []
        self.lines: list[str] = []
        self.absent: dict[str, str] = {}
        self.elsewhere: list[tuple[str, str]] = []
        self.skipped: list[str] = []
        self.simulated: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("::")[2]
        if ("simulated", True) in report.user_properties:
            self.simulated.add(name)
        if report.skipped:
            reason = (
                report.longrepr[2].removeprefix("Skipped: ")
                if isinstance(report.longrepr, tuple)
                else str(report.longrepr)
            )
            if reason.startswith(NOT_HERE):
                self.elsewhere.append((name, reason.removeprefix(NOT_HERE)))
            else:
                self.skipped.append(f"{name}: {reason}")
        elif report.failed and report.when == "setup":
            # Of a host that cannot be looked at every check fails for one reason, which is told once.
            self.absent[name.rpartition("[")[2].rstrip("]").partition("-/")[0]] = str(
                report.longrepr
            )
            self.failed.append(name)
        elif report.failed:
            self.failed.append(name)
            self.lines.append(f"FAILED  {name}")
        elif report.when == "call":
            self.verified.append(name)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # A skip that does not say "not verified here" hides something, an empty run hides everything.
        if session.exitstatus in (0, pytest.ExitCode.NO_TESTS_COLLECTED) and (
            self.skipped or not self.verified
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("node verification")
        for name, reason in self.elsewhere:
            terminalreporter.write_line(f"not verified here  {name}: {reason}")
        for name in sorted(self.simulated.intersection(self.verified)):
            terminalreporter.write_line(
                f"on SIMULATED hardware  {name}: it says nothing of a real GPU"
            )
        for line in self.skipped:
            terminalreporter.write_line(f"skipped, which counts as failed  {line}", red=True)
        for line in [
            *self.lines,
            *(f"FAILED  {host}: {reason}" for host, reason in self.absent.items()),
        ]:
            terminalreporter.write_line(line, red=True)
        if not self.verified:
            terminalreporter.write_line(
                "nothing was verified: no host, or no check could be made", red=True
            )
        terminalreporter.write_line(
            f"{len(self.verified)} verified, {len(self.failed)} failed, {len(self.elsewhere)} not verified here"
        )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hosts", None):
        config.pluginmanager.register(Summary(), "goldnode-summary")
