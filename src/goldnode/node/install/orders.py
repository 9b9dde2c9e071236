"""The signed orders of a network: which machine becomes a node of which class, on which disk. Pure, except for `read`.

The document is a DSSE envelope that a key of `KEYS` has signed. Its statement has a row for each machine, found by
the MAC address of any of its network cards. A machine without a row is never written to.
"""

from __future__ import annotations

import re

from ..ground import boot
from ..ground.errors import NodeError
from ..ground.json_lines import as_dict
from ..ground.typed import NamedTuple
from .signed import statement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional, Sequence, Tuple

    from ..ground.host import Host

KEYS = "/etc/goldnode/install-keys.pem"
PREDICATE = "urn:goldnode:install-orders:1"
LIMIT = 8 << 20  # bytes of the envelope
RULES = (
    "serial",
    "wwn",
    "model",
    "path",
    "min_gib",
    "max_gib",
)  # of a disk; all that are given must hold


class Order(NamedTuple):
    """The order of one machine.

    `disk` is the rule that exactly one disk of the machine has to match. `erase` is the number under which a disk with
    data may be erased, once: 0 never.
    """

    node: str
    node_class: str
    channel: str
    disk: Mapping[str, Any]
    erase: int
    seed: Mapping[str, str]  # file name -> content, below goldnode/seed of the ESP


def read(host: Host, data: bytes, now: float) -> Mapping[str, Any]:
    """Return the predicate of the orders: `valid_until` and `machines`. Raises NodeError unless a key of `KEYS` has signed them.

    :param now: seconds since 1970.
    """
    signed = statement(
        host,
        data,
        KEYS,
        without="no order is accepted",
        refusal="no key of the installer has signed the orders",
        remedy="Run `goldnode disks netboot` with the key of this installer, or make the installer again.",
    )
    try:
        orders = signed["predicate"]
        right = (
            signed["predicateType"] == PREDICATE
            and isinstance(orders["machines"], list)
            and isinstance(orders["valid_until"], str)
        )
    except (KeyError, TypeError):
        right, orders = False, {}
    if not right:
        raise NodeError(
            "the orders have another form. Use the installer and `goldnode disks netboot` of one version."
        )
    end = boot.seconds(orders["valid_until"])
    if end is None or end <= now:
        raise NodeError(
            f"the orders were valid until {orders['valid_until']}: run `goldnode disks netboot` again, "
            "and check the clock of this machine."
        )
    return orders  # type: ignore[no-any-return]


def of_machine(orders: Mapping[str, Any], macs: Sequence[str]) -> Optional[Order]:
    """Return the order of the machine with these MAC addresses; None without one. Raises NodeError.

    Two rows that match are an error: cards were swapped between machines, or a row was copied.
    """
    rows = [row for row in orders["machines"] if _macs(row) & set(macs)]
    if not rows:
        return None
    if len(rows) > 1:
        names = " and ".join(str(row.get("node")) for row in rows)
        raise NodeError(
            f"the orders of {names} both match this machine. Correct their MAC addresses."
        )
    order = _order(rows[0])
    if order is None:
        raise NodeError(
            f"the order of {rows[0].get('node')!r:.80} has another form. "
            "Use the installer and `goldnode disks netboot` of one version."
        )
    return order


def _macs(row: Any) -> set[str]:
    listed = as_dict(row).get("macs")
    return {mac for mac in listed if isinstance(mac, str)} if isinstance(listed, list) else set()


def _order(row: Mapping[str, Any]) -> Optional[Order]:
    disk, seed = row.get("disk"), row.get("seed")
    texts: Tuple[Any, ...] = (row.get("node"), row.get("class"), row.get("channel"))
    right = (
        all(
            isinstance(text, str) and re.fullmatch("[0-9A-Za-z][0-9A-Za-z_.-]*", text)
            for text in texts
        )
        and isinstance(disk, dict)
        and bool(disk)
        and set(disk) <= set(RULES)
        and type(row.get("erase")) is int
        and row["erase"] >= 0
        and isinstance(seed, dict)
        and all(
            re.fullmatch("[0-9A-Za-z][0-9A-Za-z_.-]*", name) and isinstance(text, str)
            for name, text in seed.items()
        )
    )
    if not right:
        return None
    node, node_class, channel = texts
    return Order(node, node_class, channel, disk=row["disk"], erase=row["erase"], seed=row["seed"])
