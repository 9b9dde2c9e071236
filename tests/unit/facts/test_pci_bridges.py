"""Bridges of packages and cards: ids of the right form, and none that is a port of a server's own."""

from __future__ import annotations

import re

from tests.faults import classes

from goldnode.facts import pci_bridges
from goldnode.facts.host import load


def test_ids_are_ids_and_each_occurs_once() -> None:
    rows = load("pci_bridges.yml")["bridges"]
    ids = [one for row in rows for one in (*row["upstream"], *row["downstream"])]
    assert all(re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{4}", one) for one in ids)
    assert len(set(ids)) == len(ids)
    assert {one[:4] for one in ids} == {"1002", "1022", "8086"}


def test_a_node_is_given_the_ports_with_an_inner_link() -> None:
    found = pci_bridges.on_package()
    assert "1002:1501" in found
    assert "8086:4fa4" in found
    # The link above an upstream port is the slot's: it has to be judged.
    assert not {one for row in load("pci_bridges.yml")["bridges"] for one in row["upstream"]} & set(
        found
    )


def test_class_documents_of_other_vendors_than_nvidia_have_them() -> None:
    assert classes.document("board_mi300x")["health"]["on_package"] == list(
        pci_bridges.on_package()
    )
    assert "on_package" not in classes.document("board_h100")["health"]
