"""A PostgreSQL primary is killed while nodes ask, and its standby is promoted: nothing granted is lost."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import select
from tests import postgresql
from tests.unit.fleet.store.fleets import fill, held, wish

from goldnode.fleet.store import grants, schema, tables
from goldnode.fleet.store.backup import check_counters
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import StoreError
from goldnode.fleet.store.limits import FleetLimits

NODES, BEFORE = 40, 12


@pytest.mark.long
def test_grants_survive_the_promotion_of_a_standby() -> None:
    reason = postgresql.missing()
    if reason:
        pytest.skip(reason)
    with postgresql.cluster() as primary:
        standby = primary.standby()
        try:
            hosts = f"{primary.directory},{standby.directory}"
            address = primary.address().replace(f"host={primary.directory}", f"host={hosts}")
            store = StoreDatabase(f"{address}&target_session_attrs=read-write")
            store.run(schema.migrate)
            fill(store, NODES, FleetLimits(str(NODES), "8", str(NODES)), racks=NODES)
            confirmed = []
            for number in range(NODES):
                if number == BEFORE:
                    primary.stop("immediate")
                try:
                    confirmed.append(
                        store.run(lambda c, number=number: grants.grant(c, wish(number))).node  # type: ignore[misc]
                    )
                except StoreError:
                    if number == BEFORE:
                        standby.promote()
            assert confirmed[:BEFORE] == [f"n{number:02}" for number in range(BEFORE)]
            assert len(confirmed) >= NODES - 3  # it goes on by itself
            deadline = time.monotonic() + 30
            while set(held(store)) != set(confirmed) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert set(confirmed) <= set(held(store))
            with store.read() as connection:
                check_counters(connection)
                granted = connection.scalars(
                    select(tables.log.c.subject).where(tables.log.c.action == "Grant")
                ).all()
            assert sorted(granted) == sorted(set(granted))
            store.close()
        finally:
            standby.remove()
