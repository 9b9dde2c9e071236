"""Put the parts of a controller together: work over ssh, the scheduler, and the requirements of the document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from goldnode.classdoc.cache import ClassDocuments
from goldnode.classdoc.load import load_catalog
from goldnode.core import extras
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import Site, SiteBmc, SiteInstall, load_site
from goldnode.disks.netboot import heads
from goldnode.evidence.signatures import KeyPlace
from goldnode.fleet.control.bmc import bmc_of
from goldnode.fleet.control.calendar_files import CalendarReader, names_of
from goldnode.fleet.control.channel import ChannelKeys, is_released, not_released, publisher
from goldnode.fleet.control.clock import SteadyClock
from goldnode.fleet.control.controller import ControllerParts
from goldnode.fleet.control.drains import DrainWorker, RolloutDrains
from goldnode.fleet.control.duties import ControllerDuties
from goldnode.fleet.control.evidence import FollowedEvidence
from goldnode.fleet.control.floors import stored_moves
from goldnode.fleet.control.follow import FollowReader, FollowWorker, drains_of
from goldnode.fleet.control.install_rollout import InstallReader, InstallWorker
from goldnode.fleet.control.push import Push, PushReader, PushSettings
from goldnode.fleet.control.reinstall import Reinstaller
from goldnode.fleet.control.requirements import RequirementEvaluator, sources
from goldnode.fleet.control.schedulers import SiteSchedulers
from goldnode.fleet.control.silences import silences_of
from goldnode.fleet.drain.choice import DrainSettings, drain_settings
from goldnode.fleet.events.assembly import delivery
from goldnode.fleet.events.deliver import BackgroundDelivery
from goldnode.fleet.nodes import return_tests
from goldnode.fleet.nodes.reach import reached
from goldnode.fleet.rollout.document import RolloutError, RolloutFile, RolloutSettings
from goldnode.fleet.rollout.parts import NodeReader, NodeWorker
from goldnode.fleet.shared import denylist
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.denials import DenyListWriter
from goldnode.inventory.fleet import InventoryNode, refuse_template
from goldnode.lock.model import find_lock
from goldnode.node.ground.optional import optional

_DRAIN_NAMES = ("goldnode_drain", "goldnode_drain_name")


@dataclass(frozen=True)
class RolloutSite:
    """Where and how a controller reaches the nodes, and who it is."""

    holder: str
    store: str  # address of the store
    inventory: str
    hosts: Sequence[InventoryNode]
    parallel: int
    become: bool = False
    channel: Path | None = None  # that nodes follow
    channel_keys: tuple[KeyPlace, ...] = ()
    order_keys: tuple[KeyPlace, ...] = ()
    clock: SteadyClock = field(default_factory=SteadyClock)  # of the controller and its parts


def parts(
    file: RolloutFile, site: RolloutSite, store: StoreDatabase, tell: Callable[[str], None]
) -> ControllerParts:
    """Return the parts of a controller. Raises GoldnodeError if one cannot work."""
    drains = _drains(site.hosts)
    schedulers = SiteSchedulers(drains, file.document.drain.reservation, clock=site.clock)
    worker: NodeWorker
    nodes: NodeReader
    if not follows(file):
        pushed = _push(file, site)
        worker, nodes = Push(pushed), PushReader(pushed)
    else:
        own = DrainWorker(
            RolloutDrains(file.settings.name, drains, clock=site.clock, tests=_tests(file))
        )
        worker = FollowWorker(file.settings.name, drains_of(drains), own, site.clock)
        nodes = FollowReader(store, file.settings.class_, site.clock)
        if file.document.reinstall:
            worker, nodes = _install(file, site, worker)
    duties = _duties(file, site, store, tell)
    return ControllerParts(
        worker,
        scheduler=schedulers,
        nodes=nodes,
        requirements=RequirementEvaluator(
            file.settings,
            sources(load_site()),
            site.clock,
            lambda: stored_moves(store, file.settings),
        ),
        calendars=CalendarReader(load_site(), file.settings.class_, site.clock.machine),
        written=duties,
        closed=duties.close,
    )


def settings(file: RolloutFile) -> RolloutSettings:
    """Return the settings of a document with the freeze calendars that this site has for its class."""
    return replace(file.settings, calendars=names_of(load_site(), file.settings.class_))


def _tests(file: RolloutFile) -> Callable[[str, str], str] | None:
    """Return the question for tests that the class wants before a node returns, by the results in .goldnode/canary."""
    tests = return_tests.of_class(file.settings.class_, "rollout")
    return tests.outstanding if tests.jobs else None


def follows(file: RolloutFile) -> bool:
    """Return whether the nodes of a rollout take their target from a channel, and nothing is pushed to them."""
    return (
        file.document.to.lock is None
        or load_catalog().node_class(file.settings.class_).item.follow is not None
    )


def _install(
    file: RolloutFile, site: RolloutSite, others: NodeWorker
) -> tuple[InstallWorker, InstallReader]:
    """Return the parts that install nodes again. Raises GoldnodeError for nodes that ssh does not reach."""
    own, class_ = load_site(), file.settings.class_
    settings, bmcs = _installs(file)
    place = own.resolve(settings.to)
    ssh = {host.name: reached(host.name, host.variables, site.become) for host in site.hosts}
    reader = InstallReader(ssh.__getitem__, site.clock)
    installer = Reinstaller(
        settings, own.resolve, lambda name: bmc_of(bmcs, name, own.resolve), ssh.__getitem__
    )
    worker = InstallWorker(
        file.settings.name,
        node_class=class_,
        target=file.settings.target,
        channels=lambda: {build: name for name, build in heads(place, class_).items()},
        installer=installer,
        reader=reader,
        others=others,
        parallel=site.parallel,
        clock=site.clock,
    )
    return worker, reader


def _installs(file: RolloutFile) -> tuple[SiteInstall, SiteBmc]:
    """Return how this site installs nodes again. Raises RolloutError if it does not."""
    ladder = load_site().ladder
    if ladder.install is None or ladder.bmc is None:
        raise RolloutError(
            "the rollout installs nodes again, and the site file has no ladder.install and ladder.bmc",
            file=file.source.file,
            line=file.source.line(("reinstall",)),
            remedy="add both (docs/how-to/install-from-network.md), or leave `reinstall` out",
        )
    return ladder.install, ladder.bmc


def _check_builds(file: RolloutFile) -> None:
    """Refuse a rollout with a build that no channel points to: no node could be installed with it. Raises RolloutError."""
    settings, own, document = _installs(file)[0], load_site(), file.document
    published = set(heads(own.resolve(settings.to), document.class_).values())
    for key, build in (("to", document.to.disk), ("from", document.from_.disk)):
        needed = key == "to" or document.on_fail.do == "rollback"
        if needed and build not in published:
            raise RolloutError(
                f"no channel of class {document.class_} in {settings.to} points to build {build}",
                file=file.source.file,
                line=file.source.line((key,)),
                remedy="promote it: `goldnode disks promote candidate`, and leave `known-good` on the build of the way back",
            )


def _push(file: RolloutFile, site: RolloutSite) -> PushSettings:
    extras.require("ansible")
    document = ClassDocuments().document(file.settings.class_)
    if "error" in document:
        raise RolloutError(f"class {file.settings.class_} cannot be applied: {document['error']}")
    return PushSettings(
        project=Path.cwd(),
        inventory=(site.inventory,),
        rollout=file.settings.name,
        target=file.settings.target,
        document=document,
        parallel=site.parallel,
        arguments=("--become",) if site.become else (),
        clock=site.clock,
    )


def _duties(
    file: RolloutFile, site: RolloutSite, store: StoreDatabase, tell: Callable[[str], None]
) -> ControllerDuties:
    own = load_site()
    place = denylist.place_to_write(own.deny_list(site.store))
    publish = None
    if site.channel is not None:
        keys = ChannelKeys(site.channel_keys, orders=site.order_keys)
        publish = publisher(store, site.channel, keys, evidence=FollowedEvidence(own))
    key = own.resolve(own.fleet.signing_key) if own.fleet.signing_key else None
    return ControllerDuties(
        store,
        file.settings.name,
        site.holder,
        deny_list=DenyListWriter(store, place, key),
        power=own.fleet.power_cycle,
        publish=publish,
        tell=tell,
        events=_events(own, store, site.channel),
        silences=silences_of(own, store, file.settings.name, site.holder),
    )


def _events(site: Site, store: StoreDatabase, channel: Path | None) -> BackgroundDelivery | None:
    """Return the delivery of events in the background; None for a site without hooks."""
    events = delivery(site, store, [channel] if channel is not None else [])
    return optional(BackgroundDelivery, events)


def _drains(hosts: Sequence[InventoryNode]) -> dict[str, DrainSettings]:
    """Return the drain settings of hosts. Raises InventoryError."""
    for host in hosts:
        for name in _DRAIN_NAMES:
            refuse_template(host.name, name, host.variables.get(name))
    return {host.name: drain_settings(host.name, host.variables) for host in hosts}


def check_target(file: RolloutFile, channel: Path | None) -> None:
    """Refuse a rollout whose target is not what this site would apply. Raises RolloutError with file and line."""
    document, line = file.document, file.source.line(("to",))
    if document.reinstall:
        if channel is not None:
            raise RolloutError(
                "the rollout installs nodes again, and its nodes follow no channel",
                file=file.source.file,
                line=file.source.line(("reinstall",)),
                remedy="leave --channel out, or `reinstall`",
            )
        _check_builds(file)
        return
    if channel is None and follows(file):
        raise RolloutError(
            f"the nodes of class {document.class_} take {document.to.lock or document.to.disk} from a channel",
            file=file.source.file,
            line=line,
            remedy="name the channel with --channel and its key with --channel-key (docs/how-to/follow.md)",
        )
    if channel is not None and not is_released(channel, document.class_, document.to.digest):
        raise not_released(channel, document.class_, document.to.digest)
    if document.to.lock is None:
        return
    catalog, site = load_catalog(), load_site()
    stack = catalog.node_class(document.class_).item.stack
    try:
        lock, path = find_lock(catalog.stacks[stack], site)
    except GoldnodeError as problem:
        raise RolloutError(
            f"the lock of class {document.class_} cannot be read: {problem.message}",
            file=file.source.file,
            line=line,
            remedy=problem.remedy,
        ) from problem
    if document.to.stack not in (None, stack):
        raise RolloutError(
            f"the rollout moves nodes to stack {document.to.stack}, and class {document.class_} has stack {stack} here",
            file=file.source.file,
            line=line,
            remedy="check out the version of the site that the rollout moves to",
        )
    if lock.digest != document.to.lock:
        raise RolloutError(
            f"the rollout moves nodes to lock {document.to.lock}, and stack {stack} has lock {lock.digest} here ({path})",
            file=file.source.file,
            line=line,
            remedy="check out the version of the site that the rollout moves to, or correct `to`",
        )
