"""Command `goldnode canary cohort`."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.canary import CLASS, NODES, LaunchHelp, LaunchOptions, launch_options
from goldnode.commands.canary.run import (
    FAILED,
    PASSED,
    UNKNOWN,
    busy_by_scheduler,
    class_of,
    inventory_listing,
    require_host,
)
from goldnode.commands.options import grouped
from goldnode.commands.output import emit, reports, say, table
from goldnode.core.errors import GoldnodeError
from goldnode.node.ground.optional import optional

if TYPE_CHECKING:
    from goldnode.canary.bisect import BisectResult
    from goldnode.canary.cohort import CohortOutcome, CohortSettings
    from goldnode.canary.session import CanaryRun
    from goldnode.documents.canary_cohort import CanaryCohortDocument

Hosts = Mapping[str, Any]
PORT = 29500  # that PyTorch's launcher uses


@dataclass(frozen=True)
class LinkOptions:
    """Backend, addresses and sizes of the measurement."""

    backend: str | None
    address: str | None
    port: int | None
    processes: int
    mib: tuple[int, ...]
    samples: int
    patience: float


@dataclass(frozen=True)
class JudgeOptions:
    """Limits of the answer, and the class of the nodes."""

    margin: float
    floor: float | None
    class_name: str | None


@dataclass(frozen=True)
class BisectOptions:
    """Search of the bad node by further runs, and its statistics."""

    bisect: bool
    noise: float
    error: float
    most: int


@click.command()
@NODES
@launch_options(
    LaunchHelp(
        "Way to the nodes: ssh, Slurm jobs, or containers on this machine, one for each NODE.",
        inventory="Inventory with the nodes: how ssh reaches them, their schedulers and cohorts.",
        image="Container image with PyTorch, which the nodes have. Without it, the nodes' own PyTorch is used.",
        partition="Partition of Slurm.",
    ),
    "ssh",
    "engine",
    "slurm",
)
@grouped(
    "link",
    LinkOptions,
    click.option(
        "--backend",
        type=click.Choice(["nccl", "gloo"]),
        show_default="nccl where device files are, else gloo",
        help="Backend of torch.distributed (nccl: RCCL on AMD).",
    ),
    click.option(
        "--address", metavar="ADDRESS", help="Address of the first NODE, as the others reach it."
    ),
    click.option(
        "--port",
        type=click.IntRange(1024, 65535),
        metavar="N",
        show_default="29500",
        help="Its port.",
    ),
    click.option(
        "--processes",
        type=click.IntRange(1, 64),
        default=1,
        show_default=True,
        metavar="N",
        help="Processes on each node; with nccl the number of its GPUs.",
    ),
    click.option(
        "--mib",
        type=click.IntRange(1, 4096),
        multiple=True,
        default=(16,),
        show_default=True,
        metavar="N",
        help="Size of the all-reduce in MiB. Repeatable.",
    ),
    click.option(
        "--samples",
        type=click.IntRange(5, 1000),
        default=20,
        show_default=True,
        metavar="N",
        help="Samples of each size.",
    ),
    click.option(
        "--patience",
        type=click.FloatRange(5, 3600),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="Time that each member waits for the others.",
    ),
)
@grouped(
    "judging",
    JudgeOptions,
    click.option(
        "--margin",
        type=click.FloatRange(0.01, 0.9),
        default=0.1,
        show_default=True,
        metavar="SHARE",
        help="A member is slow if its best transfer is below the median of the other pairs by more than this share.",
    ),
    click.option(
        "--floor",
        type=click.FloatRange(0, min_open=True),
        metavar="GB/S",
        help="Least bus bandwidth of each size.",
    ),
    CLASS,
)
@grouped(
    "bisecting",
    BisectOptions,
    click.option(
        "--bisect",
        is_flag=True,
        help="Find the slow or wrong node by further runs over parts of the cohort.",
    ),
    click.option(
        "--noise",
        type=click.FloatRange(0, 0.4),
        default=0.05,
        show_default=True,
        metavar="SHARE",
        help="With --bisect: runs that give a wrong answer, at most.",
    ),
    click.option(
        "--error",
        type=click.FloatRange(0.0001, 0.5),
        default=0.05,
        show_default=True,
        metavar="SHARE",
        help="With --bisect: probability that a result is wrong, at most.",
    ),
    click.option(
        "--most",
        type=click.IntRange(1, 64),
        default=4,
        show_default=True,
        metavar="N",
        help="With --bisect: nodes and links after which it ends.",
    ),
)
@click.option(
    "--cohort",
    metavar="NAME",
    help="Nodes of the inventory with this goldnode_cohort, instead of NODEs.",
)
@reports("canary-cohort")
def cohort(
    nodes: tuple[str, ...],
    launch: LaunchOptions,
    link: LinkOptions,
    judging: JudgeOptions,
    bisecting: BisectOptions,
    *,
    cohort: str | None,
    form: str,
) -> None:
    """Run an all-reduce over the nodes of a cohort.

    The nodes sum over their network with torch.distributed of the image or node (NCCL, RCCL or gloo), and transfer in
    pairs. A member that is absent or slow is named. Runs on nodes without other work only.

    With --bisect, a cohort that fails is run in parts, each until one answer leads: a bad node is named in O(log n) parts.
    A link between two good nodes that is bad is named as a link.

    Not verified: NCCL and RCCL over several nodes, and GPUs.

    Exit status: 0 passed, 2 a wrong sum, a slow member or a bandwidth below --floor, 3 could not check.
    """
    from goldnode.canary import cohort as cohorts  # start-up time: it loads pydantic
    from goldnode.canary import results

    listing = inventory_listing(launch.inventory)
    hosts: Hosts = listing.get("_meta", {}).get("hostvars", {})
    chosen = _members(nodes, launch, cohort, hosts)
    measure = CohortMeasurement(launch, link, judging, hosts, cohort)
    if bisecting.bisect:
        _bisect(chosen, measure, bisecting, form)
        return
    outcomes, judged = measure.run(chosen)
    # Only the comparison shows that a member is slow: its own result gets that verdict.
    for one in outcomes:
        if (document := cohorts.amended(one, judged)) is not None:
            results.store(document)
    file = cohorts.store(judged)
    emit(
        form,
        judged.model_dump(by_alias=True),
        lambda: "\n".join([*_lines(judged, launch, link), f"wrote {file}"]),
    )
    sys.exit({"passed": PASSED, "failed": FAILED, "could_not_check": UNKNOWN}[judged.answer])


@dataclass(frozen=True)
class CohortMeasurement:
    """Runs over some nodes, and their judgement."""

    launch: LaunchOptions
    link: LinkOptions
    judging: JudgeOptions
    hosts: Hosts
    cohort: str | None

    def run(self, chosen: tuple[str, ...]) -> tuple[list[CohortOutcome], CanaryCohortDocument]:
        """Run on all of them at the same time."""
        from goldnode.canary import cohort as cohorts  # start-up time: it loads pydantic

        launch, link, judging = self.launch, self.link, self.judging
        settings = cohorts.CohortSettings(
            address=link.address or _address(chosen[0], launch, self.hosts),
            # Runs of one machine must not meet at one port; nodes have theirs to themselves.
            port=link.port or (free_port() if launch.how == "engine" else PORT),
            backend=link.backend,
            processes=link.processes,
            mib=link.mib,
            samples=link.samples,
            patience=link.patience,
            margin=judging.margin,
            floor=judging.floor,
        )
        outcomes = cohorts.run(_runs(chosen, launch, settings, judging.class_name, self.hosts))
        judged = cohorts.judge(outcomes, settings, launch.how, self.cohort)  # type: ignore[arg-type]  # of the choices
        return outcomes, judged


def _bisect(
    chosen: tuple[str, ...], measure: CohortMeasurement, options: BisectOptions, form: str
) -> None:
    """Search the bad nodes of a cohort, print them, and end with the status of the answer."""
    from goldnode.canary import bisect as search
    from goldnode.canary import cohort as cohorts  # start-up time: it loads pydantic

    if measure.link.address is not None:
        raise click.UsageError("--bisect runs parts without the first NODE: leave --address out")
    if measure.judging.floor is None:
        # Two members have one pair: nothing but a floor shows that one of them is slow.
        raise click.UsageError(
            "--bisect needs --floor: a part of two nodes has no other to compare"
        )
    simulated = False

    def ask(part: tuple[str, ...]) -> bool | None:
        nonlocal simulated
        _, judged = measure.run(part)
        cohorts.store(judged)
        simulated = simulated or judged.simulated
        say(f"{len(part)} nodes: {judged.answer.replace('_', ' ')}")
        return {"passed": False, "failed": True}.get(judged.answer)

    settings = search.BisectSettings(options.noise, options.error, options.most)
    result = search.bisect(chosen, ask, settings)
    content = {
        "schema": "goldnode.canary-bisect/1",
        "simulated": simulated,
        "members": list(chosen),
        "noise": options.noise,
        **asdict(result),
    }
    emit(
        form,
        content,
        lambda: "\n".join(_bisect_lines(result, len(chosen), simulated, options.noise)),
    )
    sys.exit({"passed": PASSED, "failed": FAILED, "could_not_check": UNKNOWN}[result.answer])


def _bisect_lines(
    result: BisectResult, members: int, simulated: bool, noise: float
) -> Iterator[str]:
    label = " SIMULATED" if simulated else ""
    yield f"cohort of {members} nodes: {result.answer.replace('_', ' ')}{label}"
    for name in result.bad:
        yield f"- {name} is bad: it fails with each of two nodes that pass together"
    for one, other in result.links:
        yield f"- the link between {one} and {other} is bad: both pass with another node"
    yield from (f"- {reason}" for reason in result.reasons)
    yield (
        f"{result.tests} parts in {result.runs} runs, each until one answer led by {result.lead}: wrong with a "
        f"probability of at most {result.error:.2g}, if at most {noise:.0%} of runs are"
    )


def _members(
    nodes: tuple[str, ...], launch: LaunchOptions, cohort: str | None, hosts: Hosts
) -> tuple[str, ...]:
    """Return the members. Raises GoldnodeError."""
    if cohort is not None:
        if nodes or launch.inventory is None:
            raise click.UsageError("--cohort needs -i, and no NODE")
        nodes = tuple(
            sorted(
                name
                for name, variables in hosts.items()
                # As text: YAML may have made a number of it.
                if str(variables.get("goldnode_cohort")) == cohort
            )
        )
        if not nodes:
            raise GoldnodeError(
                f'no host has goldnode_cohort "{cohort}"',
                file=launch.inventory,
                remedy="correct the name, or set goldnode_cohort for its hosts",
            )
    if len(set(nodes)) < 2 or len(set(nodes)) < len(nodes):
        raise click.UsageError("name two or more different nodes")
    if launch.how == "engine" and not launch.image:
        raise click.UsageError("--how engine needs --image")
    return nodes


def _address(node: str, launch: LaunchOptions, hosts: Hosts) -> str:
    """Return the address of the first member: of the inventory, of Slurm, or its name."""
    # The containers share the network of this machine.
    if launch.how == "engine":
        return "127.0.0.1"
    if launch.how == "slurm":
        try:
            done = subprocess.run(
                ["scontrol", "show", "node", node, "--oneliner"],
                capture_output=True,
                text=True,
                check=False,
                timeout=30,
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise GoldnodeError(
                f"scontrol cannot be asked for the address of {node}: {problem}",
                remedy="name it with --address",
            ) from None
        # Slurm's name of a node need not be in the DNS: NodeAddr is what Slurm itself connects to.
        match = re.search(r"\bNodeAddr=(\S+)", done.stdout)
        return match[1] if match else node
    return str(hosts.get(node, {}).get("ansible_host") or node)


def free_port() -> int:
    """Return a port of this machine that nothing listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _runs(
    nodes: tuple[str, ...],
    launch: LaunchOptions,
    settings: CohortSettings,
    class_name: str | None,
    hosts: Hosts,
) -> list[CanaryRun]:
    """Return the runs of the members. Their names begin alike, so that none takes another one for work that arrived."""
    from goldnode.canary import cohort as cohorts
    from goldnode.canary import launchers, suite
    from goldnode.canary.session import PROGRAM
    from goldnode.canary.slurm import SlurmJob

    # A backend implies its devices; without one the nodes decide.
    tier = {"nccl": "gpu", "gloo": "cpu"}.get(settings.backend or "", "auto")
    given = suite.request(
        suite.load_suite(),
        (cohorts.JOB,),
        class_=optional(class_of, class_name),
        tier=tier,
        watch=launch.how != "slurm" and launch.image is None,
    )
    name = launchers.run_name()
    runs = []
    for number, node in enumerate(nodes):
        asked = cohorts.request(settings, number, len(nodes), given)
        words: tuple[str, ...] = PROGRAM
        if launch.image:
            # The members connect to the addresses of nodes, not of containers.
            options = launchers.ContainerOptions(
                launch.image, launch.engine, launch.gpus, network="host"
            )
            words = launchers.engine_words(options, f"{name}-{number}", name)
        if launch.how == "slurm":
            runs.append(
                launchers.slurm_job(
                    asked,
                    SlurmJob(node, launch.partition, name=f"{name}-{number}", family=name),
                    words,
                )
            )
        elif launch.how == "engine":
            runs.append(launchers.engine_run(asked, node, words, f"{name}-{number}", own_run=name))
        else:
            runs.append(_by_ssh(node, asked, launch, words, hosts))
    return runs


def _by_ssh(
    node: str,
    request: Mapping[str, Any],
    launch: LaunchOptions,
    words: tuple[str, ...],
    hosts: Hosts,
) -> CanaryRun:
    from goldnode.canary import launchers
    from goldnode.fleet.nodes import reach

    require_host(node, hosts, launch.inventory)
    variables = hosts.get(node, {})
    reached = reach.reached(node, variables, launch.become)
    return launchers.ssh(
        request, node, reached.local_command(*words), busy_by_scheduler(node, variables)
    )


def _lines(
    document: CanaryCohortDocument, launch: LaunchOptions, link: LinkOptions
) -> Iterator[str]:
    """Return the answer for a person."""
    label = " SIMULATED" if document.simulated else ""
    if not document.verified:
        label += " (not verified on such hardware)"
    name = f"cohort {document.cohort}" if document.cohort else "cohort"
    yield f"{name} of {len(document.members)} nodes, by {launch.how}: {document.answer.replace('_', ' ')}{label}"
    yield from (f"- {reason}" for reason in document.reasons)
    for one in document.bandwidth:
        low, high = min(one.samples), max(one.samples)
        yield f"all-reduce {one.mib} MiB: {one.median:.4g} GB/s bus bandwidth ({low:.4g} to {high:.4g})"
    rows = [["MEMBER", "STATE", "PAIRS GB/S", ""]]
    for member in document.members:
        rates = sorted(pair.median for pair in member.pairs.values())
        shown = f"{rates[0]:.4g} to {rates[-1]:.4g}" if rates else "-"
        # The reason may be a whole message of the program; the JSON document has all of it.
        rows.append([member.node, member.state.replace("_", " "), shown, member.why[:100]])
    yield table(rows)
    if document.answer == "could_not_check" and not launch.image:
        yield f"A member waits {link.patience:g} s for the others (--patience). PyTorch is that of the nodes; --image names another."
    if document.bandwidth and document.sees is None:
        yield "With two members a slow one cannot be named: there is one pair. --floor compares the bandwidth."
    elif document.sees is not None:
        yield f"A member that is slower by less than {document.sees:.0%} is not named, at this spread of the pairs."
