"""Command `goldnode canary run`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.canary import CLASS, NODES, SUITE, LaunchHelp, LaunchOptions, launch_options
from goldnode.commands.canary.outstanding import (
    COHORT_JOB,
    NodeOutcome,
    OutstandingRuns,
    declaring_hosts,
    delivered,
)
from goldnode.commands.options import (
    DIRECTORY,
    grouped,
    timeout_option,
)
from goldnode.commands.output import emit, reports, say
from goldnode.core.errors import GoldnodeError
from goldnode.node.gate.return_tests import CAUSES
from goldnode.node.ground.optional import optional

if TYPE_CHECKING:
    from goldnode.canary.session import Arrived, CanaryRun
    from goldnode.canary.suite import CanaryClass
    from goldnode.fleet.nodes.return_delivery import HeldNode

PASSED, FAILED, UNKNOWN = 0, 2, 3  # exit statuses
PARALLEL = click.option(
    "--jobs",
    "parallel",
    type=click.IntRange(1, 256),
    default=16,
    show_default=True,
    metavar="N",
    help="Number of nodes at a time.",
)


@dataclass(frozen=True)
class SuiteOptions:
    """Jobs, class and limits of a run."""

    file: Path | None
    names: tuple[str, ...]
    class_name: str | None
    cause: str | None
    tier: str
    limit: float
    parallel: int
    outstanding: bool = False


@click.command()
@NODES
@launch_options(
    LaunchHelp(
        "Way to the nodes: this machine, ssh, a container on this machine, a Slurm job, a Kubernetes Job (not verified).",
        inventory="Inventory with the nodes: how ssh reaches them, and their schedulers.",
        image="Container image, for `engine` and `kubernetes`.",
        partition="Partition of Slurm, or namespace of Kubernetes.",
    ),
    "local",
    "ssh",
    "engine",
    "slurm",
    "kubernetes",
)
@grouped(
    "suite",
    SuiteOptions,
    SUITE,
    click.option(
        "--job", "names", multiple=True, metavar="NAME", help="Run this job only. Repeatable."
    ),
    CLASS,
    click.option(
        "--before-return",
        "cause",
        type=click.Choice(["repair", "xid", "rollout", "absence"]),
        help="Run the jobs that the class wants before a node returns after this (`return_tests`).",
    ),
    click.option(
        "--outstanding",
        is_flag=True,
        help="Run what the gates of nodes want before they return, over ssh. Without NODE: on all nodes of -i that want tests.",
    ),
    click.option(
        "--tier",
        type=click.Choice(["auto", "gpu", "cpu"]),
        default="auto",
        show_default=True,
        help="Jobs for GPUs or for processors; auto: for GPUs where device files are.",
    ),
    timeout_option(3600, "Time limit of the whole run on a node.", least=10),
    PARALLEL,
)
@click.option(
    "--out",
    type=DIRECTORY,
    metavar="DIRECTORY",
    help="Directory of the results, instead of .goldnode/canary.",
)
@reports("canary-runs")
def run(
    nodes: tuple[str, ...], launch: LaunchOptions, suite: SuiteOptions, out: Path | None, form: str
) -> None:
    """Run the canary suite on nodes.

    Runs on nodes without other work only. When work arrives, the jobs are ended within ten seconds and are not
    counted. A node whose scheduler shows work is left alone.

    With --outstanding, and with --before-return over ssh, the result is sent to the gate of the node, which returns it at
    once if it wants no more tests.

    Exit status: 0 all jobs passed or do not apply, 2 a job failed, 3 a job could not check or was not counted, no job
    applies to a node, a node was busy, or the gate of a node still wants tests.
    """
    from goldnode.canary import results  # start-up time: it loads pydantic

    directory = out or results.DIRECTORY
    if suite.outstanding:
        done = _run_outstanding(nodes, launch, suite, directory)
    else:
        done = _run_named(nodes, launch, suite, directory)
    shown = [one for one in done if nodes or not one.settled]  # a whole inventory is mostly settled
    for one in shown:
        _show(one, form)
    if len(shown) < len(done) and form == "text":
        click.echo(
            f"{len(done) - len(shown)} of {len(done)} nodes: no test is outstanding, and the gate is open"
        )
    emit(form, {"runs": [one.to_json() for one in done]})
    sys.exit(exit_status(done))


def _show(one: NodeOutcome, form: str) -> None:
    from goldnode.commands.canary import show as canary_show

    if one.error is not None:
        say(f"{one.node}: {one.error}")
    elif form == "text" and one.document is not None:
        click.echo("\n".join(canary_show.lines(one.document)))
        click.echo(f"wrote {one.file}")
    for line in one.lines():
        if form == "text":
            click.echo(line)


def _run_named(
    nodes: tuple[str, ...], launch: LaunchOptions, suite: SuiteOptions, directory: Path
) -> list[NodeOutcome]:
    """Run the jobs of the command line, and deliver what a gate waits for."""
    runs = prepared(nodes, launch, suite)
    held: dict[str, HeldNode] = {}
    listing: dict[str, Any] = {}
    # Only these causes close the gate of a node, and only over ssh is it reached.
    if suite.cause in CAUSES and launch.how == "ssh":
        listing = inventory_listing(launch.inventory)
        all_held = held_nodes(nodes, launch.inventory, launch.become, listing)
        held = {one.name: one for one in all_held}
    turns = ReturnTestTurns(listing)

    def one(given: CanaryRun) -> NodeOutcome:
        if given.node not in held:
            return _outcome(given, directory)
        node = held[given.node]
        return turns.run(given.node, lambda: delivered(node, _outcome(given, directory)))

    with ThreadPoolExecutor(min(suite.parallel, len(runs))) as threads:
        return list(threads.map(one, runs))


def _run_outstanding(
    nodes: tuple[str, ...], launch: LaunchOptions, suite: SuiteOptions, directory: Path
) -> list[NodeOutcome]:
    """Run on each node what its gate wants, and deliver it."""
    from goldnode.canary import suite as suites
    from goldnode.fleet.nodes.return_tests import stored

    if launch.how not in ("local", "ssh"):
        raise click.UsageError(
            f"--outstanding runs over ssh; after --how {launch.how}, run `goldnode canary deliver`"
        )
    if suite.names or suite.cause or suite.class_name:
        raise click.UsageError(
            "--outstanding asks each node for its jobs: leave out --job, --before-return, --class"
        )
    listing = inventory_listing(launch.inventory)
    held = held_nodes(nodes, launch.inventory, launch.become, listing)
    start = _by_ssh(launch, listing)
    turns = ReturnTestTurns(listing)

    def limited(node: str, request: Mapping[str, Any]) -> CanaryRun:
        given = start(node, request)
        return replace(given, limit=min(given.limit, suite.limit))

    runs = OutstandingRuns(
        suites.load_suite(suite.file),
        read=stored(directory),
        start=limited,
        execute=lambda given: turns.run(given.node, lambda: _outcome(given, directory)),
        class_of=class_of,
        tier=suite.tier,
        say=say,
    )
    # At least one thread: an inventory may have no node with tests.
    with ThreadPoolExecutor(max(1, min(suite.parallel, len(held)))) as threads:
        return list(threads.map(runs.run, held))


class ReturnTestTurns:
    """Turns of tests in the queue of the fleet, where it has one.

    :param listing: the inventory, which has the schedulers of nodes.
    """

    def __init__(self, listing: Mapping[str, Any]) -> None:
        self._hosts: Mapping[str, Any] = listing.get("_meta", {}).get("hostvars", {})
        self._shown: set[str] = set()

    def run(self, node: str, test: Callable[[], NodeOutcome]) -> NodeOutcome:
        """Run tests after all other work of the node's turn, and return it if they were the last part of one."""
        from goldnode.core.site import load_site
        from goldnode.fleet.drain.choice import drain_settings
        from goldnode.fleet.drain.protocol import DrainCaller
        from goldnode.fleet.nodes.queue_place import ReturnTestResult, return_test_turn

        def back(caller: DrainCaller) -> None:
            settings = drain_settings(node, self._hosts.get(node, {}))
            settings.drainer().resume(settings.node or node, caller)

        try:
            with return_test_turn(load_site(), node, self._show, back) as report:
                outcome = test()
                status = exit_status([outcome])
                text = str(outcome.error or f"exit status {status}")
                report(ReturnTestResult(status == PASSED, status != FAILED, text))
                return outcome
        except GoldnodeError as problem:
            return NodeOutcome(node, error=problem)

    def _show(self, line: str) -> None:
        if line not in self._shown:  # one for all nodes of a site without a store
            self._shown.add(line)
            say(line)


def held_nodes(
    nodes: tuple[str, ...],
    inventory: str | None,
    become: bool,
    listing: Mapping[str, Any] | None = None,
) -> list[HeldNode]:
    """Return how to reach the gates of nodes. Without names: all hosts of the inventory whose class declares tests.

    :param listing: the inventory as Ansible reads it, if it is known.
    """
    from goldnode.fleet.nodes import reach
    from goldnode.fleet.nodes.return_delivery import HeldNode

    if not nodes and inventory is None:
        raise click.UsageError("name a NODE, or an inventory with -i")
    inventory_hosts = inventory_listing(inventory) if listing is None else listing
    hosts: Mapping[str, Any] = inventory_hosts.get("_meta", {}).get("hostvars", {})
    names = nodes or declaring_hosts(inventory_hosts)
    if not names:
        say("no host of the inventory has a class with tests after an Xid, a repair or an absence")
    # Before the first connection: a misspelt name ends the command, not a part of it.
    for name in names:
        require_host(name, hosts, inventory)
    return [
        HeldNode(name, partial(reach.reached, name, hosts.get(name, {}), become)) for name in names
    ]


def exit_status(done: list[NodeOutcome]) -> int:
    """Return the exit status of a run."""
    states = {job.state for one in done if one.document for job in one.document.jobs}
    # A failed job outweighs whatever could not be checked.
    if "failed" in states:
        return FAILED
    tested = all(
        # A node on which no job applied has proved nothing.
        one.idle or (one.document and any(job.state == "passed" for job in one.document.jobs))
        for one in done
    )
    held = any(one.held for one in done)
    return UNKNOWN if held or not tested or states & {"could_not_check", "not_counted"} else PASSED


def _outcome(given: CanaryRun, directory: Path) -> NodeOutcome:
    from goldnode.canary import kubernetes, results, session

    try:
        # Asked when its turn comes: nodes wait for each other, and work arrives meanwhile.
        if given.arrived is not None and (busy := given.arrived()):
            raise GoldnodeError(
                f"left alone: {busy}", remedy="run the suite when the node is idle or drained"
            )
        document = kubernetes.run(given) if given.how == "kubernetes" else session.run(given)
        return NodeOutcome(given.node, document, results.store(document, directory))
    except GoldnodeError as problem:
        return NodeOutcome(given.node, error=problem)


def prepared(nodes: tuple[str, ...], launch: LaunchOptions, suite: SuiteOptions) -> list[CanaryRun]:
    """Return the runs of a command line. Raises GoldnodeError for what cannot be."""
    import platform

    from goldnode.canary import suite as suites

    loaded = suites.load_suite(suite.file)
    class_ = optional(class_of, suite.class_name)
    names = suite.names or before_return(suite)
    here = launch.how in ("local", "engine")
    if here and nodes:
        raise click.UsageError(f"--how {launch.how} runs on this machine, without NODE")
    if not here and not nodes:
        raise click.UsageError(f"--how {launch.how} needs a NODE")
    if launch.how in ("engine", "kubernetes") and not launch.image:
        raise click.UsageError(f"--how {launch.how} needs --image")
    # It becomes a resource limit of the pod, which is a number.
    if launch.how == "kubernetes" and launch.gpus and not launch.gpus.isdecimal():
        raise click.UsageError("--how kubernetes needs a number for --gpus")
    request = suites.request(
        loaded,
        names,
        class_=class_,
        tier=suite.tier,
        # There the scheduler has given the node to the job, and ends it itself.
        watch=launch.how not in ("slurm", "kubernetes"),
    )
    start = _launcher(launch, request)
    # A run on this machine is recorded under its name.
    runs = [start(node) for node in nodes or (platform.node(),)]
    # A launcher may have set a shorter limit, as that of a Slurm job.
    return [replace(one, limit=min(one.limit, suite.limit)) for one in runs]


def class_of(name: str) -> CanaryClass:
    """Return the parts of a class that the suite uses. Raises GoldnodeError."""
    from goldnode.canary.classes import of_document
    from goldnode.classdoc.cache import ClassDocuments

    document = ClassDocuments().document(name)
    if "error" in document:
        raise GoldnodeError(f"class {name} cannot be used: {document['error']}")
    return of_document(document)


def before_return(suite: SuiteOptions) -> tuple[str, ...]:
    """Return the jobs that the class wants before a return; empty without --before-return. Raises GoldnodeError."""
    if suite.cause is None:
        return ()
    if suite.class_name is None:
        raise click.UsageError("--before-return needs --class")
    from goldnode.classdoc.load import load_catalog
    from goldnode.fleet.nodes.return_tests import CAUSES, jobs_of

    cause = next(one for one in CAUSES if one == suite.cause)
    due = jobs_of(load_catalog().node_class(suite.class_name).item, cause)
    if not due:
        raise GoldnodeError(
            f"class {suite.class_name} names no tests for a return after {cause}",
            remedy=f"add return_tests: {{after_{cause}: [discovery, gemm]}} to its file",
        )
    alone = tuple(job for job in due if job != COHORT_JOB)
    if len(alone) < len(due):
        say(f"{COHORT_JOB} runs over several nodes: `goldnode canary cohort`")
    if not alone:
        raise GoldnodeError(
            f"class {suite.class_name} wants {COHORT_JOB} alone",
            remedy="run `goldnode canary cohort`",
        )
    return alone


def _launcher(launch: LaunchOptions, request: Mapping[str, Any]) -> Callable[[str], CanaryRun]:
    """Return the function that makes the run of a node."""
    from goldnode.canary import kubernetes, launchers

    if launch.how == "slurm":
        return lambda node: launchers.slurm(request, node, launch.partition)
    if launch.how == "kubernetes":
        return lambda node: kubernetes.prepared(
            request, node, launch.image or "", launch.partition, int(launch.gpus or 0)
        )
    if launch.how == "ssh":
        start = _by_ssh(launch, inventory_listing(launch.inventory))
        return lambda node: start(node, request)
    if launch.how == "engine":
        options = launchers.ContainerOptions(launch.image or "", launch.engine, launch.gpus)
        return lambda node: launchers.container(request, node, options)
    return lambda node: launchers.local(request, node)


def inventory_listing(inventory: str | None) -> dict[str, Any]:
    """Return an inventory as Ansible reads it; empty without one."""
    if inventory is None:
        return {}
    from goldnode.inventory.listing import listed
    from goldnode.inventory.selection import check_inventory

    check_inventory(inventory)
    return listed(inventory)


def require_host(node: str, hosts: Mapping[str, Any], inventory: str | None) -> None:
    """Raise GoldnodeError for a host that the inventory lacks."""
    if inventory is not None and node not in hosts:
        raise GoldnodeError(f"the inventory has no host {node}", file=inventory)


def _by_ssh(
    launch: LaunchOptions, listing: Mapping[str, Any]
) -> Callable[[str, Mapping[str, Any]], CanaryRun]:
    from goldnode.canary import launchers
    from goldnode.canary.session import PROGRAM
    from goldnode.fleet.nodes import reach

    hosts: Mapping[str, Any] = listing.get("_meta", {}).get("hostvars", {})

    def start(node: str, request: Mapping[str, Any]) -> CanaryRun:
        require_host(node, hosts, launch.inventory)
        variables = hosts.get(node, {})
        reached = reach.reached(node, variables, launch.become)
        return launchers.ssh(
            request, node, reached.local_command(*PROGRAM), busy_by_scheduler(node, variables)
        )

    return start


def busy_by_scheduler(node: str, variables: Mapping[str, Any]) -> Arrived | None:
    """Return the question for work that the scheduler of the inventory shows; None for one that shows none."""
    from goldnode.fleet.control.schedulers import SiteSchedulers
    from goldnode.fleet.drain.choice import drain_settings

    settings = drain_settings(node, variables)
    schedulers = SiteSchedulers({node: settings})
    if not schedulers.asks(node):
        return None

    def busy() -> str:
        seen = schedulers.read([node])
        if not seen:
            # Not the same as idle: a wrong name must not start jobs on a node with work.
            return f"{settings.by} does not know {node}"
        return f"{settings.by} shows work on {node}" if seen[0].free_at else ""

    return busy
