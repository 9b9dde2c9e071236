"""A lifelike simulated fleet: jobs come and go, counters only grow, and those of errors nearly stand still.

The shapes are those of real readings: an H200 idle and under load (`tests/cases/recorded/h200_x1_580.159.04`: power with
three decimals, counters of throttling in steps of 32 ns, clocks in steps of 15 MHz), and the counters of Linux as the node
reads them. Their rates are assumptions, written where they are used. Simulated.
"""

from __future__ import annotations

import copy
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tests.simulators import fleet

Json = dict[str, Any]
HOUR = 3_600_000_000_000  # nanoseconds
HCAS = 8  # one for each GPU, as in HGX machines
_BUSY, _IDLE = 6.0, 1.5  # mean hours of a job, and between two
_NS = 32  # step of the counters of throttling


@dataclass
class LifelikeGpu:
    """The counters of a GPU, and a reading that stays the same during a job."""

    violations: dict[str, int] = field(default_factory=dict)
    corrected: int = 0
    replay: int = 0
    used_mib: int = 615


@dataclass
class LifelikeNode:
    """One node: its job, and its counters. `capture` goes an hour on."""

    number: int
    chance: random.Random
    busy: bool = True
    hours: float = 0.0  # left of the job, or until the next
    started: datetime | None = None
    gpus: list[LifelikeGpu] = field(default_factory=lambda: [LifelikeGpu() for _ in range(8)])
    counts: dict[str, int] = field(default_factory=dict)
    free_mib: int = 2_400_000

    def count(self, name: str, growth: float, step: int = 1) -> int:
        """Return a counter after this growth."""
        value = self.counts.get(name, 0) + int(growth) // step * step
        self.counts[name] = value
        return value

    def capture(self, time: datetime) -> Json:
        """Return the capture of the node at a time, an hour after the one before."""
        if self.started is None:
            self.started = time - timedelta(days=self.chance.randint(1, 60))
            self.busy = self.chance.random() < _BUSY / (_BUSY + _IDLE)
        self.hours -= 1
        if self.hours <= 0:
            self.busy = not self.busy
            self.hours = self.chance.expovariate(1 / (_BUSY if self.busy else _IDLE))
            for gpu in self.gpus:
                gpu.used_mib = self.chance.randint(40_000, 79_000) if self.busy else 615
        found = fleet.capture(self.number, time)
        # `fleet.capture` unpickles a document of its own for each call: it may be changed in place.
        found["uptime"] = round((time - self.started).total_seconds() + self.chance.random(), 2)
        self._identities(found)
        load = self.chance.uniform(0.7, 1.0) if self.busy else 0.0  # of the job in this hour
        for gpu, own in zip(found["gpus"], self.gpus, strict=True):
            self._gpu(gpu, own, load)
        self._host(found, load)
        return found

    def _gpu(self, gpu: Json, own: LifelikeGpu, load: float) -> None:
        chance = self.chance
        busy = load > 0
        warm = chance.gauss(56, 5) if busy else chance.gauss(31, 2)
        limited = busy and chance.random() < 0.6
        clock = chance.randrange(1500, 1981, 15) if busy else 345
        gpu["memory"]["used_mib"] = own.used_mib
        gpu["temperature"] |= {
            "gpu_c": round(warm),
            "memory_c": round(warm + chance.gauss(9, 3)),
            "margin_c": 87 - round(warm),
        }
        gpu["power"]["draw_w"] = round(chance.gauss(620, 40) if busy else chance.gauss(75, 3), 3)
        gpu["clocks"]["current"] |= {"graphics_mhz": clock, "sm_mhz": clock}
        gpu["pstate"] = 0
        gpu["utilization"] = {
            "gpu": chance.randint(85, 100) if busy else 0,
            "memory": chance.randint(20, 60) if busy else 0,
        }
        gpu["throttle"]["mask"] = 1 if not busy else 4 * limited
        gpu["throttle"]["active"] = ["gpu_idle"] if not busy else ["sw_power_cap"] * limited
        # Without work, the whole hour counts as low utilization; under a power limit, a share of it does.
        grown = {
            "low_utilization": HOUR * (1.0 if not busy else chance.uniform(0, 0.02)),
            "power": HOUR * chance.uniform(0.05, 0.4) if busy else 0,
            "sync_boost": HOUR * chance.uniform(0, 0.001) if busy else 0,
        }
        for reason in gpu["throttle"]["violation_ns"]:
            value = own.violations.get(reason, 0) + int(grown.get(reason, 0)) // _NS * _NS
            own.violations[reason] = gpu["throttle"]["violation_ns"][reason] = value
        # One GPU in 3,000 hours has a corrected error, and a replay on its link.
        own.corrected += chance.random() < 1 / 3000
        own.replay += chance.random() < 1 / 3000
        gpu["ecc"]["aggregate"]["corrected"] = gpu["ecc"]["volatile"]["corrected"] = own.corrected
        gpu["pcie"]["replay"] = own.replay

    def _identities(self, found: Json) -> None:
        """Give each GPU a random UUID, as real ones are: no file can shrink it. Give the node an HCA for each GPU."""
        own = random.Random(-1 - self.number)  # noqa: S311 - values of a benchmark
        for gpu in found["gpus"]:
            gpu["uuid"] = f"GPU-{uuid.UUID(int=own.getrandbits(128))}"
        [(name, one)] = found["infiniband"].items()
        found["infiniband"] = {name: one}
        for place in range(1, HCAS):
            other = copy.deepcopy(one)
            other["address"] = f"0000:{0x42 + place:02x}:00.0"
            other["guid"] = f"{one['guid'][:8]}{place:02x}{one['guid'][10:]}"
            found["infiniband"][f"mlx5_{place}"] = other

    def _host(self, found: Json, load: float) -> None:
        chance = self.chance
        for name, one in found["infiniband"].items():
            # Words of four bytes: 100 GB an hour in a job, and the subnet manager's packets without one.
            data = load * chance.uniform(0.5, 1.5) * 25e9
            one["ports"]["1"]["counters"] |= {
                "port_xmit_data": self.count(f"{name} out", data + chance.randint(0, 5000)),
                "port_rcv_data": self.count(f"{name} in", data + chance.randint(0, 5000)),
                "port_xmit_wait": self.count(f"{name} wait", data * chance.uniform(0, 0.05)),
            }
        counters = found["network"]["eth0"]["counters"]
        counters["rx_packets"] = self.count("rx", 2e6 + load * chance.uniform(0, 4e8))
        counters["tx_packets"] = self.count("tx", 1e6 + load * chance.uniform(0, 3e8))
        counters["rx_dropped"] = 10 + self.count("dropped", chance.random() < 0.05)
        found["memory"]["available_mib"] = 2_000_000 - chance.randint(
            0, 1_200_000 if load else 9000
        )
        self.free_mib = max(200_000, self.free_mib - chance.randint(0, 4000 if load else 20))
        found["storage"]["mounts"]["/"]["free_mib"] = self.free_mib
        found["storage"]["devices"]["nvme0n1"]["smart"]["temperature_c"] = chance.randint(33, 45)
        for name, one in found["pressure"].items():
            share = {"io": 0.02, "memory": 0.001, "cpu": 0.05}[name] * (load or 0.02)
            some = share * chance.uniform(0.5, 1.5)
            one["some_us"] = 1_000_000 + self.count(f"{name} some", some * HOUR / 1000)
            one["full_us"] = 500_000 + self.count(f"{name} full", some * HOUR / 2500)
            one["some_avg10"] = round(100 * some * chance.uniform(0, 3), 2)
            one["full_avg10"] = round(40 * some * chance.uniform(0, 3), 2)


def nodes(count: int) -> list[LifelikeNode]:
    """Return the nodes of a fleet, each with a chance of its own."""
    return [LifelikeNode(number, random.Random(number)) for number in range(count)]  # noqa: S311 - values of a benchmark


def captures(fleet_: list[LifelikeNode], time: datetime) -> Iterator[Json]:
    """Yield the capture of each node at a time; the times of calls are an hour apart."""
    for node in fleet_:
        yield node.capture(time)
