"""Inventory variables that goldnode reads, and checks of their values before anything happens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from goldnode.core.errors import InventoryError, candidates, nearest
from goldnode.node.ground.text import and_more

DRAINS = ("none", "command", "slurm", "kubectl")  # the values of `goldnode_drain`

OWNER = "goldnode_owner"  # person or team that owns a node

PREFIXES = ("goldnode_", "sanity_")
# Variables that an inventory, or -e, may set.
SETTINGS = (
    "goldnode_accepted",
    "goldnode_cohort",
    "goldnode_drain",
    "goldnode_drain_command",
    "goldnode_drain_for_waiting",
    "goldnode_drain_name",
    "goldnode_leaf",
    "goldnode_lock_timeout",
    OWNER,
    "goldnode_rack",
    "goldnode_reboot",
    "goldnode_reboot_batch",
    "goldnode_reboot_timeout",
    "goldnode_report_fresh",
    "goldnode_resident",
    "goldnode_resume_command",
    "goldnode_state",
    "goldnode_tags",
    "goldnode_take_over",
    "goldnode_to",
    "sanity_accepted",
    "sanity_verify",
)
# Variables that goldnode sets itself: plugins, facts of a run, results of roles, builds of disks.
OWN = (
    "goldnode_boot_wait",
    "goldnode_claim",
    "goldnode_class_findings",
    "goldnode_cohort_refusals",
    "goldnode_left",
    "goldnode_matches",
    "goldnode_node_class",
    "goldnode_phase",
    "goldnode_plan",
    "goldnode_prior_boot",
    "goldnode_prior_in_service",
    "goldnode_prior_reason",
    "goldnode_rollback",
    "goldnode_rollout",
    "goldnode_root",
    "goldnode_run",
    "goldnode_settled",
    "goldnode_sources",
    "goldnode_survey",
    "goldnode_tested_since",
    "goldnode_was_in_service",
    "sanity_check",
)
SECONDS = ("goldnode_lock_timeout", "goldnode_reboot_timeout")
WORDS = ("goldnode_drain_command", "goldnode_resume_command")
JUDGED = (*SECONDS, *WORDS, "goldnode_drain")


def check(host: str, values: Mapping[str, Any]) -> None:
    """Refuse a value of JUDGED on which a later step would fail. Variables that `values` lacks have their default. Raises InventoryError."""
    for name in SECONDS:
        value = values.get(name, 0)
        if (
            isinstance(value, bool)
            or not (
                isinstance(value, int) or (isinstance(value, str) and value.strip().isdecimal())
            )
            or int(value) < 0
        ):
            raise InventoryError(
                f"{name} of host {host} is {_shown(value)}, expected seconds",
                remedy="write a whole number, for instance 120",
            )
    for name in WORDS:
        value = values.get(name, [])
        if isinstance(value, str):
            words = ", ".join(value.split()) or "/usr/local/sbin/drain-node"
            raise InventoryError(
                f"{name} of host {host} is text, expected a list of words",
                remedy=f"write [{words}]",
            )
        if not isinstance(value, list | tuple) or any(
            isinstance(word, list | dict | bool) or word in (None, "") for word in value
        ):
            raise InventoryError(
                f"{name} of host {host} is {_shown(value)}, expected a list of words",
                remedy="write [PROGRAM, WORD]",
            )
    drain = str(values.get("goldnode_drain", "none"))
    if drain not in DRAINS:
        known = f"{', '.join(DRAINS[:-1])} or {DRAINS[-1]}"
        raise InventoryError(
            f'goldnode_drain of host {host} is "{drain}", expected {known}',
            remedy=nearest(drain, DRAINS),
        )
    missing = [name for name in WORDS if drain == "command" and not values.get(name)]
    if missing:
        raise InventoryError(
            f"goldnode_drain of host {host} is command, and {missing[0]} is not set",
            remedy=f"set {missing[0]} to a list of words",
        )


def check_written(host: str, values: Mapping[str, Any]) -> None:
    """Check values as an inventory writes them. A template is judged in the run, when its value is known."""
    judged = {name: values[name] for name in JUDGED if name in values}
    if not any("{{" in str(value) or "__ansible_vault" in str(value) for value in judged.values()):
        check(host, judged)


def _shown(value: Any) -> str:
    if value is None:
        return "empty"
    return f'"{value}"' if isinstance(value, str) else str(value)


class UnknownVariables:
    """Unknown variables that look like ours, collected host by host. A site may have its own, so
    they are reported only.
    """

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}

    def add(self, host: str, names: Iterable[str]) -> None:
        """Collect the unknown ones among the names of variables of a host."""
        for name in names:
            if not name.startswith(PREFIXES) or name in SETTINGS or name in OWN:
                continue
            # Others may use the prefix too, so only near misses of our names are reported.
            if name.startswith("goldnode_") or candidates(name, SETTINGS, cutoff=0.8):
                self.found.setdefault(name, []).append(host)

    def lines(self) -> list[str]:
        """Return one sentence for each variable, without full stop."""
        return [self._line(name, hosts) for name, hosts in sorted(self.found.items())]

    @staticmethod
    def _line(name: str, hosts: list[str]) -> str:
        close = candidates(name, SETTINGS, cutoff=0.8)
        more = and_more(len(hosts) - 3)
        whose = f"host{'s' * (len(hosts) > 1)} {', '.join(hosts[:3])}{more}"
        return f"{name} ({whose}) is not a variable of goldnode" + (
            f': use "{close[0]}"' if close else ""
        )
