"""Grants a second of the store on SQLite and PostgreSQL, and 10,000 HTTP clients against the lock service.

    benchmarks/run fleet [--clients N] [--seconds S] [--out DIR]

A grant and its return are two transactions, each flushed to disk (PostgreSQL with fsync and synchronous_commit).
`transactions`: each of 8 threads waits for its own commit. `batches`: as the service does it, up to 64 requests share
one commit. `controller`: grants of a rollout, 32 in a transaction, as a plan writes them. The load of the machine is in
the result, since other work on it changes every figure.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import multiprocessing
import os
import resource
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import Connection
from tests import postgresql

from benchmarks import pages
from goldnode.fleet.rollout.model import Direction, Finish, Grant, Prior, Start, StepPhase
from goldnode.fleet.service import batch
from goldnode.fleet.service.server import Listen, server
from goldnode.fleet.store import controllers, grants, nodes, rollouts, schema
from goldnode.fleet.store.controllers import Controller, Submission
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.grants import LeaveRequest
from goldnode.fleet.store.limits import FleetLimits
from goldnode.fleet.store.nodes import StoredNode

NODES, THREADS, CLASS = 10_000, 8, "h100"
GROUP = 32  # nodes of one group of a push rollout


def request(number: int) -> LeaveRequest:
    return LeaveRequest(f"n{number:05}", CLASS, time.time())


def prepare(address: str) -> StoreDatabase:
    """Return a store with 10,000 nodes of one class in racks of 8; the limits let 2 % go."""
    store = StoreDatabase(address)
    store.run(schema.migrate)
    fleet = [
        StoredNode(f"n{number:05}", CLASS, f"r{number // 8}", f"l{number // 64}")
        for number in range(NODES)
    ]
    limits = {CLASS: FleetLimits("2%", "8%", "10%", {"rack": 1, "leaf": 2})}
    store.run(lambda c: nodes.put(c, fleet, limits, "benchmark", 0.0))
    return store


def transactions(address: str, seconds: float) -> dict[str, float]:
    """Take and return leave in threads, one transaction each."""
    end = time.monotonic() + seconds
    times: list[float] = []

    def work(worker: int) -> None:
        store = StoreDatabase(address)
        number = worker * (NODES // THREADS)
        own = []
        while time.monotonic() < end:
            number += 64
            which = worker * (NODES // THREADS) + number % (NODES // THREADS)
            for change in (grants.grant, grants.give_back):
                began = time.monotonic()
                store.run(lambda c, change=change, which=which: change(c, request(which)))  # type: ignore[misc]
                own.append(time.monotonic() - began)
        times.extend(own)
        store.close()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(THREADS)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return figures(times, time.monotonic() - began)


def batches(address: str, seconds: float) -> dict[str, float]:
    """Take and return leave in shared transactions, as the service does."""
    store = StoreDatabase(address)
    times: list[float] = []
    began = time.monotonic()
    number = 0
    while time.monotonic() - began < seconds:
        some = [(number + 64 * one) % NODES for one in range(batch.LARGEST)]
        number += 1
        for change in (grants.grant_all, grants.give_back_all):
            start = time.monotonic()
            answers = batch.commit(
                store, [batch.SharedRequest(change, request(one)) for one in some]
            )
            if any(isinstance(answer, Exception) for answer in answers):
                raise RuntimeError(str(answers))
            times += [time.monotonic() - start] * len(some)
    taken = time.monotonic() - began
    store.close()
    return figures(times, taken)


def controller(address: str, seconds: float) -> dict[str, float]:
    """Write groups of grants as the controller of a rollout. Their returns are not in the figures."""
    store = prepare(address)

    def begin(connection: Connection) -> Controller:
        limits = FleetLimits("2%", "8%", "10%", {"rack": 1, "leaf": 2})
        controllers.submit(
            connection, Submission("r", CLASS, "new", "rollout: r", limits, author="a"), 0.0
        )
        own = Controller("r", controllers.take_over(connection, "r", "c", 0.0) or 0, "c")
        rollouts.write(
            connection, own, [Start(tuple(f"n{number:05}" for number in range(NODES)))], 0.0
        )
        return own

    own, times, prior, round_ = (
        store.run(begin),
        [],
        Prior(in_service=True, digest="old", boot_id="b"),
        0,
    )
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        names = [f"n{(round_ + 64 * one) % NODES:05}" for one in range(GROUP)]
        round_ += 1
        given = [Grant(name, Direction.FORWARD, 1, 0.0, prior) for name in names]
        start = time.monotonic()
        store.run(lambda c, given=given: rollouts.write(c, own, given, 0.0))  # type: ignore[misc]
        times += [time.monotonic() - start] * len(names)
        ended = [Finish(name, StepPhase.PASSED, 0) for name in names]
        store.run(lambda c, ended=ended: rollouts.write(c, own, ended, 0.0))  # type: ignore[misc]
    store.close()
    return figures(times, sum(times) / GROUP)


def figures(times: list[float], taken: float) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "transactions_per_second": round(len(times) / taken, 1),
        "p50_ms": round(1000 * statistics.median(ordered), 2),
        "p99_ms": round(1000 * ordered[int(len(ordered) * 0.99)], 2),
        "load": round(os.getloadavg()[0], 1),
    }


def clients(address: str, count: int) -> dict[str, Any]:
    """Let `count` clients connect at once, each with one request for leave; those that get it return it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    service = multiprocessing.Process(target=_serve, args=(address, port))
    service.start()
    try:
        _wait(port)
        return asyncio.run(_storm(port, count))
    finally:
        service.terminate()
        service.join()


def _serve(address: str, port: int) -> None:
    _files()
    server(StoreDatabase(address), Listen("127.0.0.1", port)).run()


def _wait(port: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("the service does not answer")


async def _storm(port: int, count: int) -> dict[str, Any]:
    _files()
    began = time.monotonic()
    answers = await asyncio.gather(*(_client(port, number % NODES) for number in range(count)))
    taken = time.monotonic() - began
    statuses = Counter(status for status, _ in answers)
    return {
        "clients": count,
        "seconds": round(taken, 1),
        "answers_per_second": round(count / taken, 1),
        "statuses": {str(status): number for status, number in sorted(statuses.items())},
        **{
            key: value
            for key, value in figures([time for _, time in answers], taken).items()
            if key != "transactions_per_second"
        },
    }


async def _client(port: int, number: int) -> tuple[int, float]:
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"client_params": {"id": f"n{number:05}", "group": CLASS}}).encode()
    writer.write(
        b"POST /v1/pre-reboot HTTP/1.1\r\nHost: fleet\r\nfleet-lock-protocol: true\r\n"
        b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)
    )
    await writer.drain()
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1]) if answer else 0, time.monotonic() - began


def _files() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def tables(found: Mapping[str, Any]) -> str:
    """Return the tables of the page."""
    titles = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
    rates, storms = [], []
    for name, row in found["stores"].items():
        for key, title in (
            ("transactions", "one commit each, 8 threads"),
            ("batches", "up to 64 share a commit"),
            ("controller", "grants of a controller, 32 at once"),
        ):
            if key not in row:  # measured before this row existed
                continue
            one = row[key]
            rates.append(
                [
                    f"{titles[name]}, {title}",
                    f"{one['transactions_per_second']:,.0f}",
                    f"{one['p50_ms']:.1f}",
                    f"{one['p99_ms']:.1f}",
                ]
            )
        one = row["clients"]
        storms.append(
            [
                titles[name],
                f"{one['clients']:,}",
                f"{one['seconds']:.1f}",
                f"{one['answers_per_second']:,.0f}",
                ", ".join(f"{number:,} x {status}" for status, number in one["statuses"].items()),
            ]
        )
    head = ["Grants and returns", "a second", "p50 ms", "p99 ms"]
    clients = ["HTTP clients at once", "Clients", "s", "Answers/s", "Statuses"]
    return f"{pages.about(found)}\n\n{pages.table(head, rates)}\n{pages.table(clients, storms)}"


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path, default=pages.ROOT / "docs/benchmarks")
    chosen = parser.parse_args()
    found: dict[str, Any] = {
        "schema": "goldnode.benchmark/1",
        "benchmark": "fleet",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": pages.commit(),
        "machine": pages.machine(),
        "stores": {},
    }
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-")))
        stores, others = {"sqlite": str(place / "fleet.db")}, {"sqlite": str(place / "rollout.db")}
        if postgresql.missing() is None:
            server = stack.enter_context(postgresql.cluster("on"))
            stores["postgresql"], others["postgresql"] = (
                server.create("fleet"),
                server.create("rollout"),
            )
        for name, address in stores.items():
            prepare(address).close()
            found["stores"][name] = {
                "transactions": transactions(address, chosen.seconds),
                "batches": batches(address, chosen.seconds),
                "controller": controller(others[name], chosen.seconds),
                "clients": clients(address, chosen.clients),
            }
            print(name, json.dumps(found["stores"][name], indent=2), flush=True)
    pages.write("fleet", found, tables(found), chosen.out)


if __name__ == "__main__":
    main()
