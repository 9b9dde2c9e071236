"""Push on a systemd node with stand-in packages: apt, ssh, ansible-runner, boots and the drain by a command are real.
The kernels are stand-ins, and the node is a container, so a verdict of 3 (could not check) is accepted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.conftest import World
from tests.e2e.support import Site, environment, inventory, site_yml, succeeded
from tests.simulators import apt_archive
from tests.unit.catalog.test_accept_reject import write

from goldnode.fleet.control.push import Push, PushReader, PushSettings
from goldnode.fleet.control.push_job import RESULTS
from goldnode.fleet.rollout.model import (
    Answer,
    Direction,
    NodeObservation,
    Prior,
    SchedulerObservation,
    StepPhase,
)
from goldnode.fleet.rollout.parts import NodeTask, Observation
from goldnode.fleet.shared import identity
from goldnode.node.ground.drained import FILE, mark
from goldnode.testing.lab.nodes import LabNode

pytestmark = [pytest.mark.lab, pytest.mark.long]

NAME, GROUP, ROLLOUT = "pushed", "e2e_plain", "kernel"
CONTROLLER = """
import pickle, sys, time
from goldnode.fleet.control.push import Push
settings, task = pickle.load(open(sys.argv[1], "rb"))
worker = Push(settings)
while True:
    worker.work([task])
    worker.results()
    time.sleep(0.3)
"""
TESTED = """\
class: e2e_tested
simulated: true
backend: cpu
stack: e2e_plain
return_tests: {after_rollout: [discovery]}
"""
DOCUMENT = "import json, sys; from goldnode.classdoc.cache import ClassDocuments; print(json.dumps(ClassDocuments().document(sys.argv[1])))"


@dataclasses.dataclass
class Pushed:
    """A node with the first of three locks, and the documents of all of them."""

    node: LabNode
    project: Path
    documents: list[dict[str, Any]]
    prior: Prior

    def lock(self, number: int) -> str:
        return str(self.documents[number]["lock"]["digest"])

    def settings(self, number: int) -> PushSettings:
        document = self.documents[number]
        return PushSettings(
            self.project,
            ("hosts",),
            ROLLOUT,
            self.lock(number),
            document,
            parallel=2,
            tries=1,
            pause=3.0,
        )

    def task(
        self, phase: StepPhase, direction: Direction = Direction.FORWARD, attempt: int = 1
    ) -> NodeTask:
        return NodeTask(NAME, phase, direction, attempt, self.prior)

    def calls(self) -> list[str]:
        """What the site's drain and resume commands were called with."""
        log = self.project / "log"
        return log.read_text().splitlines() if log.exists() else []

    def kernels(self) -> set[str]:
        shown = self.node.run(
            "dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", check=False
        ).output
        return set(re.findall(r"^linux-image-(\S+-90\d-\S+) installed$", shown, re.MULTILINE))


def document(site: Site) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", DOCUMENT, GROUP],
        env=environment(site),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert "error" not in found, found
    return found


@pytest.fixture(scope="module")
def pushed(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pushed]:
    """The tests of this module follow the node in their order."""
    project = tmp_path_factory.mktemp("push")
    node, documents, sites = world.node(NAME, GROUP), [], []
    for number, groups in enumerate(
        (set(), {apt_archive.SECURITY_UPDATES}, {apt_archive.SECURITY_UPDATES, apt_archive.NEWER})
    ):
        site = world.site(f"push{number}")
        world.publish(groups)
        world.lock(site, node, GROUP)
        documents.append(document(site))
        sites.append(site)
    hosts = inventory(project / "hosts", {GROUP: [node]})
    for name in ("drain", "resume"):
        script = project / name
        script.write_text(f'#!/bin/sh\necho "{name} $@" >> {project}/log\n')
        script.chmod(0o755)
    settings = {
        "goldnode_drain": "command",
        "goldnode_drain_command": [str(project / "drain")],
        "goldnode_resume_command": [str(project / "resume")],
        "goldnode_accepted": [0, 3],
    }
    (hosts / "group_vars").mkdir()
    (hosts / "group_vars/all.yml").write_text(yaml.safe_dump(settings))
    world.publish(set())
    # A pending boot is a difference, which `goldnode_accepted` does not accept.
    succeeded(site_yml(hosts, "-e", "goldnode_reboot=true", site=sites[0]))
    (project / "log").unlink()
    stored = dict(os.environ)
    os.environ.update({**sites[0].environment(), "GOLDNODE_RUNS": str(project / "runs")})
    try:
        yield Pushed(node, project, documents, Prior(True, None, None))
    finally:
        os.environ.clear()
        os.environ.update(stored)
        node.destroy()


def until(
    worker: Push, task: NodeTask, enough: Callable[[list[Observation]], bool], timeout: float = 600
) -> list[Observation]:
    """Work on a task, as a controller does, until what was observed is enough."""
    found: list[Observation] = []
    end = time.monotonic() + timeout
    while not enough(found):
        worker.work([task])
        found += worker.results()
        assert time.monotonic() < end, (found, worker.problems())
        time.sleep(0.3)
    return found


def out(found: list[Observation]) -> bool:
    return any(isinstance(item, SchedulerObservation) and not item.in_service for item in found)


def served(found: list[Observation]) -> bool:
    return any(isinstance(item, SchedulerObservation) and item.in_service for item in found)


def judged(found: list[Observation]) -> bool:
    return any(
        isinstance(item, NodeObservation) and item.verdict in (Answer.PASSES, Answer.FAILS)
        for item in found
    )


def failed(found: list[Observation]) -> bool:
    return any(isinstance(item, NodeObservation) and item.not_applied for item in found)


def seen(pushed: Pushed) -> NodeObservation:
    (found,) = PushReader(pushed.settings(0)).read([NAME])
    return found


def ansible_of(pushed: Pushed) -> list[str]:
    """Processes that work with the files of this project."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(pushed.project) in text and "rollout.yml" in text:
            found.append(f"{path.parent.name} {text}")
    return found


def test_a_node_that_does_not_answer_is_left_out(pushed: Pushed) -> None:
    hosts = pushed.project / "hosts/away.yml"
    away = {"ansible_host": "127.0.0.1", "ansible_port": 9, "ansible_user": "root"}
    hosts.write_text(yaml.safe_dump({GROUP: {"hosts": {"away": away}}}))
    (found,) = PushReader(pushed.settings(0)).read([NAME, "away"])
    hosts.unlink()
    assert (found.node, found.digest, found.verdict) == (NAME, pushed.lock(0), Answer.PASSES)
    pushed.prior = Prior(True, found.digest, found.boot_id)


def test_a_drain_is_recorded_as_one_of_the_rollout(pushed: Pushed) -> None:
    worker = Push(pushed.settings(1))
    before, after = until(worker, pushed.task(StepPhase.GRANTED), out)
    worker.close()
    assert isinstance(before, SchedulerObservation)
    assert isinstance(after, SchedulerObservation)
    assert (before.in_service, after.in_service) == (True, False)
    held = mark(after.reason)
    assert held is not None
    assert held.run == identity.rollout_run(ROLLOUT)
    record = json.loads(pushed.node.read(FILE))
    assert (record["run"], record["in_service"]) == (held.run, True)
    assert len(pushed.calls()) == 1


@contextlib.contextmanager
def controller(pushed: Pushed, number: int, task: NodeTask) -> Iterator[subprocess.Popen[bytes]]:
    """A controller of its own process, from the moment at which it has the kernel's part applied on the node."""
    file = pushed.project / "work.pickle"
    file.write_bytes(pickle.dumps((pushed.settings(number), task)))
    pushed.node.run("rm", "-f", "/run/goldnode/progress")  # of an earlier run
    process = subprocess.Popen([sys.executable, "-c", CONTROLLER, str(file)])
    try:
        end = time.monotonic() + 120
        while (
            "kernel 1/" not in pushed.node.run("cat", "/run/goldnode/progress", check=False).output
        ):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.2)
        yield process
    finally:
        process.kill()
        process.wait()


def ended(pushed: Pushed) -> bool:
    end = time.monotonic() + 90
    while ansible_of(pushed) and time.monotonic() < end:
        time.sleep(0.2)
    return not ansible_of(pushed)


def test_the_run_of_a_paused_controller_loses_the_node_to_that_of_the_next(
    pushed: Pushed, world: World
) -> None:
    world.publish({apt_archive.SECURITY_UPDATES})
    task = pushed.task(StepPhase.APPLYING)
    with controller(pushed, 1, task) as first:
        (results,) = pushed.settings(1).directory.glob(f"run-*/*/{RESULTS}")
        os.kill(first.pid, signal.SIGSTOP)  # its Ansible goes on
        worker = Push(pushed.settings(1))
        found = until(worker, task, judged)[-1]
        lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert any(line.get("result", {}).get("lost") for line in lines), lines
    assert ended(pushed), ansible_of(pushed)
    assert isinstance(found, NodeObservation)
    assert (found.digest, found.verdict) == (pushed.lock(1), Answer.PASSES)
    assert found.boot_id not in (None, pushed.prior.boot_id)
    assert "6.1.0-902-amd64" in pushed.kernels()
    worker.close()
    worker = Push(pushed.settings(1))
    again = until(worker, task, judged)[-1]
    assert isinstance(again, NodeObservation)
    assert again.boot_id == found.boot_id, "a node that has done it all is not booted again"
    until(worker, pushed.task(StepPhase.RETURNING), served)
    worker.close()
    assert pushed.calls()[-1] == f"resume {NAME}"
    assert len(pushed.calls()) == 2
    pushed.prior = Prior(True, found.digest, found.boot_id)


def test_an_application_that_fails_is_reported_and_the_node_goes_back(
    pushed: Pushed, world: World
) -> None:
    # What the third lock wants has left the archive.
    world.publish({apt_archive.SECURITY_UPDATES})
    worker = Push(pushed.settings(2))
    until(worker, pushed.task(StepPhase.GRANTED), out)
    found = until(worker, pushed.task(StepPhase.APPLYING), failed)[-1]
    assert isinstance(found, NodeObservation)
    assert found.not_applied is not None
    assert re.match(
        r"kernel: packages\.transact .*vanished from the archives", found.not_applied
    ), found
    assert "failed/pushed.log" in worker.problems()[NAME]
    output = (pushed.settings(2).directory / "failed/pushed.log").read_text()
    assert "vanished" in output
    assert seen(pushed).digest is None, "half a lock is none"
    back = until(worker, pushed.task(StepPhase.APPLYING, Direction.BACK, 2), judged)[-1]
    assert isinstance(back, NodeObservation)
    assert (back.digest, back.verdict) == (pushed.lock(1), Answer.PASSES)
    assert back.boot_id not in (None, pushed.prior.boot_id)
    until(worker, pushed.task(StepPhase.RETURNING, Direction.BACK, 2), served)
    worker.close()


def test_back_restores_the_earlier_class_of_the_node_through_the_death_of_a_controller(
    pushed: Pushed,
) -> None:
    boot = seen(pushed).boot_id
    pushed.prior = Prior(True, pushed.lock(0), boot)
    worker = Push(pushed.settings(1))
    until(worker, pushed.task(StepPhase.GRANTED, Direction.BACK), out)
    worker.close()
    task = pushed.task(StepPhase.APPLYING, Direction.BACK)
    with controller(pushed, 1, task) as first:
        assert ansible_of(pushed)
        os.kill(first.pid, signal.SIGKILL)
        assert ended(pushed), ansible_of(pushed)
    assert seen(pushed).boot_id == boot, "it was booted already, so that nothing was interrupted"
    worker = Push(pushed.settings(1))
    found = until(worker, task, judged)[-1]
    assert isinstance(found, NodeObservation)
    assert (found.digest, found.verdict) == (pushed.lock(0), Answer.PASSES)
    assert found.boot_id not in (None, boot)
    assert "6.1.0-901-amd64" in pushed.kernels()
    until(worker, pushed.task(StepPhase.RETURNING, Direction.BACK), served)
    worker.close()
    assert pushed.node.run("test", "-e", FILE, check=False).rc != 0, (
        "the record of the drain is gone"
    )
    assert list(pushed.settings(1).directory.glob("run-*")) == [], (
        "and so are the files of the runs"
    )


def test_a_return_waits_for_the_tests_of_the_class(
    pushed: Pushed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite runs on the node over ssh, and its result in the site directory ends the wait."""
    write(pushed.project / "catalog", {"classes/e2e_tested.yml": TESTED})
    catalogs = f"{os.environ['GOLDNODE_CATALOG']}{os.pathsep}{pushed.project / 'catalog'}"
    monkeypatch.setenv("GOLDNODE_CATALOG", catalogs)
    settings = pushed.settings(0)
    settings = dataclasses.replace(settings, document={**settings.document, "class": "e2e_tested"})
    worker = Push(settings)
    until(worker, pushed.task(StepPhase.GRANTED), out)
    returning = dataclasses.replace(pushed.task(StepPhase.RETURNING), tested_since=time.time())
    calls = pushed.calls()
    until(
        worker,
        returning,
        lambda _: "discovery has not run since" in worker.problems().get(NAME, ""),
    )
    assert pushed.calls() == calls, "the node stays drained"
    words = ["canary", "run", NAME, "--how", "ssh", "-i", "hosts", "--class", "e2e_tested"]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("goldnode")), *words, "--before-return", "rollout"],
        cwd=pushed.project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    until(worker, returning, served)
    worker.close()
    assert pushed.calls() == [*calls, f"resume {NAME}"]
