"""Power of a node by its BMC: Redfish with sushy, or IPMI with ipmitool.

A BMC answers before it acts, and can lose an order: sushy-tools' emulator loses `On` while an `Off`
waits (docs/how-to/ladder.md). So the status of an order proves nothing. The power state is polled, an
order is given again while it has no effect, and a node counts as on when it has stayed on for a while.
Credentials are read for each call. They are in no argument, environment of others, log or record.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from goldnode.core import extras
from goldnode.core.command_environment import without_secrets
from goldnode.core.credentials import Credentials, CredentialSource
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import SiteBmc

CALL = 60.0  # seconds for one call
_FORM = (AttributeError, KeyError, TypeError, ValueError, IndexError, RecursionError)


class BmcError(GoldnodeError):
    """The BMC cannot be asked, or its power does not follow its orders."""


class Bmc(Protocol):
    """The BMC of one node. Each call raises BmcError."""

    def is_on(self) -> bool | None:
        """Return whether the node has power; None while that changes."""

    def switch(self, on: bool) -> None:
        """Order power on, or off at once. The effect comes later, or not at all."""

    def boot_from_network(self) -> str:
        """Let the next boot be from the network, once. Return what was ordered."""


@dataclass(frozen=True)
class PowerTimes:
    """Seconds: between two polls, until an order is given again, of staying on, and for one change."""

    poll: float = 2.0
    again: float = 45.0  # a repeated order may postpone the first one
    settle: float = 30.0
    limit: float = 300.0


DEFAULT_TIMES = PowerTimes()


def cycle(
    bmc: Bmc,
    times: PowerTimes = DEFAULT_TIMES,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Switch a node off and on. Raises BmcError; then it was ordered on, as far as the BMC can be reached."""
    try:
        _reach(bmc, False, times, sleep, clock)
        sleep(times.poll)
    finally:
        ensure_on(bmc, times, sleep, clock)


def netboot(
    bmc: Bmc,
    times: PowerTimes = DEFAULT_TIMES,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Switch a node off, and on with a boot from the network. Return what was ordered. Raises BmcError; see :func:`cycle`."""
    try:
        # Some BMCs forget the order when the power goes, so it is given while the node is off.
        _reach(bmc, False, times, sleep, clock)
        ordered = bmc.boot_from_network()
        sleep(times.poll)
    finally:
        ensure_on(bmc, times, sleep, clock)
    return ordered


def ensure_on(
    bmc: Bmc,
    times: PowerTimes = DEFAULT_TIMES,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Switch a node on, and watch that it stays on: an earlier `off` may still come into effect."""
    end = clock() + times.limit
    while True:
        _reach(bmc, True, times, sleep, clock)
        since = clock()
        while bmc.is_on() and clock() - since < times.settle:
            sleep(times.poll)
        if clock() - since >= times.settle:
            return
        if clock() > end:
            raise BmcError(
                "the node does not stay on", remedy="look at its BMC and its power supply"
            )


def _reach(
    bmc: Bmc,
    on: bool,
    times: PowerTimes,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> None:
    """Order a state until it is there."""
    end, ordered = clock() + times.limit, -times.again
    problem: BmcError | None = None
    while clock() < end:
        try:
            if bmc.is_on() is on:
                return
            if clock() - ordered >= times.again:
                ordered = clock()
                bmc.switch(on)
            problem = None
        except BmcError as fault:  # a BMC that restarts is asked again
            problem = fault
        sleep(times.poll)
    word = "on" if on else "off"
    raise problem or BmcError(
        f"the node is not {word} after {times.limit:g} s of orders", remedy="look at its BMC"
    )


def bmc_of(site: SiteBmc, node: str, resolve: Callable[[str], Path]) -> Bmc:
    """Return the BMC of a node. Raises BmcError for settings that cannot work."""
    address = site.address.replace("{node}", node)
    kind = RedfishBmc if site.protocol == "redfish" else IpmiBmc
    return kind(address, site, node, resolve)


def _ran(words: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        timeout=CALL,
        stdin=subprocess.DEVNULL,
        env=environment,
    )


@dataclass(frozen=True)
class _Settings:
    address: str
    site: SiteBmc
    node: str
    resolve: Callable[[str], Path]

    def credentials(self) -> Credentials:
        """Read user and password: two lines of the file, or of the output of the command."""
        return CredentialSource(
            "BMCs",
            "ladder.bmc",
            None if self.site.credentials is None else self.resolve(self.site.credentials),
            [word.replace("{node}", self.node) for word in self.site.command],
            error=BmcError,
        ).read()


class RedfishBmc(_Settings):
    """A BMC that speaks Redfish."""

    def is_on(self) -> bool | None:
        """See Bmc."""
        with self._system() as (sushy, system):
            # An Enum: a comparison with a text is always false.
            states = {sushy.PowerState.ON: True, sushy.PowerState.OFF: False}
            return states.get(system.power_state)

    def switch(self, on: bool) -> None:
        """See Bmc."""
        with self._system() as (sushy, system):
            kind = sushy.ResetType.ON if on else sushy.ResetType.FORCE_OFF
            allowed = system.get_allowed_reset_system_values()
            if allowed and kind not in allowed:
                raise BmcError(
                    f"the BMC of {self.node} has no reset of type {kind.value}",
                    remedy="use ladder.bmc.protocol: ipmi for these nodes",
                )
            system.reset_system(kind)

    def boot_from_network(self) -> str:
        """See Bmc."""
        with self._system() as (sushy, system):
            source = sushy.resources.system.constants.BootSource
            allowed = system.get_allowed_system_boot_source_values()
            wanted = next((one for one in (source.PXE, source.UEFI_HTTP) if one in allowed), None)
            if wanted is None:
                raise BmcError(
                    f"the BMC of {self.node} boots nothing from the network",
                    remedy="run `goldnode-node slot netboot` on the node, and restart it",
                )
            system.set_system_boot_options(
                target=wanted,
                enabled=sushy.resources.system.constants.BootSourceOverrideEnabled.ONCE,
            )
            system.refresh(force=True)
            if system.boot.target != wanted:
                raise BmcError(
                    f"the BMC of {self.node} has not taken the order to boot by {wanted.value}",
                    remedy="look at its boot options with a Redfish client",
                )
            return f"boot by {wanted.value}, once"

    @contextmanager
    def _system(self) -> Iterator[tuple[Any, Any]]:
        extras.require("redfish")
        import sushy  # only the extra `redfish` installs it

        own = self.credentials()
        verify: str | bool = str(self.resolve(self.site.ca)) if self.site.ca else True
        try:
            root = sushy.Sushy(
                self.address, username=own.user, password=own.password, verify=verify
            )
            if self.site.system:
                name = self.site.system.replace("{node}", self.node)
                system = root.get_system(f"/redfish/v1/Systems/{name}")
            else:
                # One that is not named is the only one.
                systems = root.get_system_collection().members_identities
                if len(systems) != 1:
                    raise BmcError(
                        f"the BMC of {self.node} has {len(systems)} systems",
                        remedy="name the one of the node in ladder.bmc.system of the site file",
                    )
                system = root.get_system(systems[0])
            yield sushy, system
        # sushy takes the form of an answer for granted: a damaged one is any of the others.
        except (sushy.exceptions.SushyError, *_FORM) as problem:
            verb = "answers in another form"
            if isinstance(problem, sushy.exceptions.SushyError):
                verb = "refuses"
            raise BmcError(
                f"the BMC of {self.node} {verb}: {type(problem).__name__}",
                remedy=f"ask {urlsplit(self.address).hostname} with a Redfish client; see ladder.bmc of the site file",
            ) from problem


class IpmiBmc(_Settings):
    """A BMC that speaks IPMI 2.0 (RMCP+)."""

    def is_on(self) -> bool | None:
        """See Bmc."""
        said = self._call("power", "status")
        return {"Chassis Power is on": True, "Chassis Power is off": False}.get(said.strip())

    def switch(self, on: bool) -> None:
        """See Bmc."""
        self._call("power", "on" if on else "off")

    def boot_from_network(self) -> str:
        """See Bmc."""
        self._call("bootdev", "pxe", "options=efiboot")
        return "boot by pxe, once"

    def _call(self, *command: str) -> str:
        own = self.credentials()
        host, _, port = (
            self.address.rpartition(":") if ":" in self.address else (self.address, "", "623")
        )
        # The password in a file of its own: a list of processes shows arguments and, to root, environments.
        with tempfile.NamedTemporaryFile("w", prefix="goldnode-", encoding="utf-8") as secret:
            secret.write(own.password + "\n")
            secret.flush()
            words = ["ipmitool", "-I", "lanplus", "-H", host, "-p", port or "623", "-U", own.user]
            words += ["-f", secret.name, "chassis", *command]
            try:
                path = os.environ.get("PATH", "")
                done = _ran(words, {**without_secrets(), "LC_ALL": "C", "PATH": path})
            except FileNotFoundError:
                raise BmcError(
                    "ipmitool is not installed", remedy="install it: `apt-get install ipmitool`"
                ) from None
            except subprocess.TimeoutExpired:
                raise BmcError(f"the BMC of {self.node} gives no answer") from None
        if done.returncode:
            # ipmitool says the same of a wrong password and of a BMC that is away.
            raise BmcError(
                f"the BMC of {self.node} cannot be asked by ipmitool: wrong address, user or password, or it is away",
                remedy=f"ping {host}, then run `ipmitool -I lanplus -H {host} -U USER -f FILE chassis power status`",
            )
        return done.stdout
