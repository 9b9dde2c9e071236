"""All-reduce over the nodes of a cohort, and transfers between pairs of them, with torch.distributed (NCCL, RCCL or gloo).

Every member runs this job with its own number. Member 0 holds the store in which they meet. A
member that does not come, or that stops answering, is named by the others.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import socket
import statistics
import struct
import time
from datetime import timedelta
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .records import (
    COULD_NOT_CHECK,
    Conditions,
    Fact,
    JobResult,
    failed,
    metric,
    not_run,
    passed,
    unread,
)
from .sampling import Watch

MIB = 1 << 20
WARM = 3  # collectives before the first sample
ROUNDS = 15  # rounds of pairs: partners of each member
PAIR_MIB, PAIR_SAMPLES = 8, 9
# Of nine samples, the second and the eighth bound the median with 96 % confidence: 1 - 2 (1 + 9) /
# 2^9.
PAIR_BOUNDS = (1, 7)
ANSWER = 10.0  # seconds for the others to answer after a collective has failed
POLL = 0.1
SIOCGIFADDR = 0x8915  # linux/sockios.h


class Place(NamedTuple):
    """A process in the cohort. `local`: its number on its node, and of its device."""

    member: int
    members: int
    local: int = 0
    processes: int = 1

    @property
    def rank(self) -> int:
        """Return the number of the process among all."""
        return self.member * self.processes + self.local

    @property
    def world(self) -> int:
        """Return the number of processes."""
        return self.members * self.processes


class Meeting(NamedTuple):
    """Where and how the members meet. `patience`: seconds that each waits for the others."""

    address: str
    port: int
    backend: str
    patience: float = 60.0


class OthersError(Exception):
    """Members that keep this one from measuring. Empty: the collective failed, and every member answers."""

    def __init__(self, why: str, members: Sequence[int] = ()) -> None:
        super().__init__(why)
        self.members = sorted(members)


class SumError(Exception):
    """A sum that is wrong on this member."""


def all_reduce(
    backend: str,
    member: int = 0,
    members: int = 0,
    address: str = "",
    port: int = 0,
    *,
    processes: int = 1,
    **more: Any,
) -> JobResult:
    """Sum over all processes of the cohort, and transfer between pairs of nodes.

    `more`: patience in seconds, `mib` (sizes) and `samples`.
    """
    if members < 2:
        raise not_run("it runs over the nodes of a cohort, by `goldnode canary cohort`")
    meeting = Meeting(address, port, backend, float(more.get("patience", 60.0)))
    sizes, samples = list(more.get("mib", (16,))), int(more.get("samples", 20))

    def call(local: int) -> Dict[str, Any]:
        return measured(Place(member, members, local, processes), meeting, sizes, samples)

    return result(member, members, forked(processes, call))


def result(member: int, members: int, answers: Sequence[Dict[str, Any]]) -> JobResult:
    """Return the result of a member by the answers of its processes."""
    facts: Dict[str, Fact] = {"member": member, "members": members}
    wrong = next((one for one in answers if "why" in one), None)
    if wrong is None:
        first = answers[0]
        facts.update(first["facts"])
        for partner, (low, middle, high) in first["pairs"].items():
            facts.update(
                {
                    f"pair_{partner}": middle,
                    f"pair_{partner}_low": low,
                    f"pair_{partner}_high": high,
                }
            )
        metrics = [
            metric(f"cohort{members}_allreduce_{mib}mib", "GB/s", bus, first["device"])
            for mib, bus in first["bus"].items()
        ]
        for one in metrics:
            one["conditions"] = first["conditions"]
        return passed(metrics, facts)
    if wrong["why"].startswith("No module named"):
        raise not_run("PyTorch is not here")
    if wrong.get("sum"):
        raise failed(wrong["why"])
    if "blames" in wrong:
        facts["blames"] = ",".join(str(one) for one in wrong["blames"])
    return {"state": COULD_NOT_CHECK, "why": wrong["why"], "facts": facts, "metrics": []}


def forked(count: int, call: Callable[[int], Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Call in `count` processes, before PyTorch is imported: a fork after it has started threads may hang."""
    children = []
    for number in range(count):
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reader)
            _child(call, number, writer)
        os.close(writer)
        children.append((pid, reader))
    answers = []
    for number, (pid, reader) in enumerate(children):
        with os.fdopen(reader, encoding="utf-8") as opened:
            text = opened.read()
        _, status = os.waitpid(pid, 0)
        answers.append(
            json.loads(text) if text else {"why": f"process {number} ended with status {status}"}
        )
    return answers


def _child(call: Callable[[int], Dict[str, Any]], number: int, writer: int) -> None:
    """Call, write the answer, and end this process."""
    try:
        answer = call(number)
    except OthersError as problem:
        answer = {"why": str(problem), "blames": problem.members}
    except SumError as problem:
        answer = {"why": str(problem), "sum": True}
    except Exception as problem:  # one reader of all: the parent reports it
        answer = {"why": str(problem) or type(problem).__name__}
    data = json.dumps(answer).encode()
    while data:
        data = data[os.write(writer, data) :]
    os._exit(0)


def measured(place: Place, meeting: Meeting, sizes: Sequence[int], samples: int) -> Dict[str, Any]:
    """Meet the other processes and measure. Raises OthersError and SumError."""
    torch, dist = importlib.import_module("torch"), importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    device = "cpu"
    if meeting.backend == "nccl":
        device = f"cuda:{place.local}"
        torch.cuda.set_device(place.local)
    name = interface_to(meeting.address)
    if name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    store = met(dist, place, meeting)
    limit = timedelta(seconds=meeting.patience)
    try:
        dist.init_process_group(
            meeting.backend,
            store=dist.PrefixStore("group", store),
            rank=place.rank,
            world_size=place.world,
            timeout=limit,
        )
        link = Link(torch, dist, place, device)
        facts = {
            "bus": {str(mib): link.reduce(mib, samples) for mib in sizes},
            "pairs": link.pairs(),
            **link.state(),
        }
        dist.barrier()  # member 0 holds the store until all have finished
    except SumError:
        raise
    except (
        Exception
    ) as problem:  # of PyTorch, by the backend: all of them mean that the collective failed
        raise lost(store, place, _first_line(problem)) from None
    with contextlib.suppress(Exception):  # the measurement is over
        dist.destroy_process_group()
    return facts


def met(dist: Any, place: Place, meeting: Meeting) -> Any:
    """Return the store of the cohort once all processes have come. Raises OthersError with those that have not."""
    limit = timedelta(seconds=meeting.patience)
    first = place.rank == 0
    why = f"member 0 did not come to {meeting.address}:{meeting.port} within {meeting.patience:g} s"
    try:
        store = _store(dist, place, meeting, limit)
        why = "member 0 came, and does not answer any more"
        absent = _missing(store, "here", place, meeting.patience)
        if absent:
            _close(store, place, absent)
        late = not absent and store.add("closed", 0) > 0
    except Exception as problem:  # RuntimeError or one of PyTorch's own, by its version
        if first:
            raise
        raise OthersError(f"{why} ({_first_line(problem)})", [0]) from None
    if absent:
        shown = ", ".join(map(str, absent))
        raise OthersError(f"member {shown} did not come within {meeting.patience:g} s", absent)
    if late:  # it would wait in a collective that nobody joins, and blame the others
        raise OthersError(
            f"member {place.member} came after the others had ended their wait", [place.member]
        )
    return store


def _store(dist: Any, place: Place, meeting: Meeting, limit: timedelta) -> Any:
    words = (meeting.address, meeting.port, place.world, place.rank == 0, limit)
    try:
        # Debian's PyTorch is built without libuv, which is the default since 2.4.
        return dist.TCPStore(*words, wait_for_workers=False, use_libuv=False)
    except TypeError:  # before 2.3 it has no such argument
        return dist.TCPStore(*words, wait_for_workers=False)


def lost(store: Any, place: Place, why: str) -> OthersError:
    """Return the error of a collective that failed, with the members that do not answer now."""
    try:
        silent = _missing(store, "alive", place, ANSWER)
    except Exception:  # the store is in a process of member 0
        return OthersError(f"the collective failed, and member 0 does not answer: {why}", [0])
    if place.rank == 0:
        time.sleep(ANSWER / 2)  # the store ends with this process, and the others still read it
    if not silent:
        return OthersError(f"the collective failed: {why}")
    return OthersError(f"member {', '.join(map(str, silent))} stopped answering: {why}", silent)


def _close(store: Any, place: Place, absent: Sequence[int]) -> None:
    """End the wait of all members at once. Member 0 stays until they have read who is absent, for the store ends with it."""
    store.add("closed", 1)
    store.add("left", 1)
    present = place.world - len(absent) * place.processes
    end = time.monotonic() + ANSWER
    while place.rank == 0 and store.add("left", 0) < present and time.monotonic() < end:
        time.sleep(POLL)


def _missing(store: Any, what: str, place: Place, patience: float) -> List[int]:
    """Announce this process, wait for the others, and return the members that have not announced themselves."""
    store.add(f"{what}/{place.rank}", 1)
    store.add(what, 1)
    end = time.monotonic() + patience
    while (
        store.add(what, 0) < place.world and time.monotonic() < end and not store.add("closed", 0)
    ):
        time.sleep(POLL)
    if store.add(what, 0) >= place.world:
        return []
    ranks = [rank for rank in range(place.world) if store.add(f"{what}/{rank}", 0) < 1]
    return sorted({rank // place.processes for rank in ranks})


class Link:
    """Measurements of one process with the others."""

    def __init__(self, torch: Any, dist: Any, place: Place, device: str) -> None:
        self.torch, self.dist, self.place, self.device = torch, dist, place, device
        self.watch = Watch()
        self.address = _address(torch, device)

    def reduce(self, mib: int, samples: int) -> List[float]:
        """Return the bus bandwidth of each all-reduce in GB/s, as nccl-tests define it: 2 (n - 1) / n times the bytes."""
        world = self.place.world
        data = self.torch.empty(mib * MIB // 4, device=self.device)
        bus = []
        for run in range(samples + WARM):
            data.fill_(float(self.place.rank + 1))
            self.dist.barrier()
            took = self._timed(lambda: self.dist.all_reduce(data))
            if not bool((data == world * (world + 1) / 2).all()):
                raise SumError(f"process {self.place.rank} of the cohort has another sum")
            self.watch.read(self.address)
            if run >= WARM:
                bus.append(2 * (world - 1) / world * mib * MIB / took / 1e9)
        return bus

    def pairs(self) -> Dict[str, List[float]]:
        """Return the median rate in GB/s of transfers with each partner, between its bounds.

        Only the first process of a node takes part.
        """
        measured: Dict[str, List[float]] = {}
        for matches in rounds(self.place.members):
            self.dist.barrier()
            partner = next(
                (_other(pair, self.place.member) for pair in matches if self.place.member in pair),
                None,
            )
            if partner is not None and not self.place.local:
                rates = sorted(self._pair(partner))
                low, high = (rates[at] for at in PAIR_BOUNDS)
                measured[str(partner)] = [
                    float(f"{rate:.6g}") for rate in (low, statistics.median(rates), high)
                ]
        return measured

    def _pair(self, partner: int) -> List[float]:
        other = partner * self.place.processes
        data = self.torch.zeros(PAIR_MIB * MIB // 4, device=self.device)

        def there_and_back() -> None:
            steps = [self.dist.send, self.dist.recv]
            for step in steps if self.place.rank < other else reversed(steps):
                step(data, other)

        times = [self._timed(there_and_back) for _ in range(PAIR_SAMPLES + 1)][1:]
        return [2 * PAIR_MIB * MIB / took / 1e9 for took in times]

    def _timed(self, call: Callable[[], Any]) -> float:
        self._wait()
        begun = time.perf_counter()
        call()
        self._wait()
        return time.perf_counter() - begun

    def _wait(self) -> None:
        if self.device != "cpu":
            self.torch.cuda.synchronize()

    def state(self) -> Dict[str, Any]:
        """Return versions, and the device with its conditions."""
        facts: Dict[str, Fact] = {
            "torch": str(self.torch.__version__),
            "processes": self.place.processes,
        }
        conditions: Conditions = unread()
        if self.device != "cpu":
            facts["nccl"] = ".".join(str(part) for part in self.torch.cuda.nccl.version())
            facts.update(self.watch.facts())
            conditions = self.watch.take(self.address)
        return {"facts": facts, "device": self.address, "conditions": conditions}


def _first_line(problem: Exception) -> str:
    """Return the first line of a message of PyTorch: below it are frames of C++."""
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    return lines[0][:160]


def _other(pair: Tuple[int, int], member: int) -> int:
    return pair[1] if pair[0] == member else pair[0]


def _address(torch: Any, device: str) -> Optional[str]:
    if device == "cpu":
        return None
    properties = torch.cuda.get_device_properties(device)
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if None in parts:  # PyTorch before 2.6
        return None
    domain, bus, number = (int(part or 0) for part in parts)
    return f"{domain:04x}:{bus:02x}:{number:02x}.0"


def rounds(members: int, most: int = ROUNDS) -> List[List[Tuple[int, int]]]:
    """Return rounds of disjoint pairs. Over all rounds, every pair is there once (the circle method)."""
    seats: List[int] = list(
        range(members + members % 2)
    )  # an odd number has a seat without a member
    schedule = []
    for _ in range(min(most, len(seats) - 1)):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]))
        schedule.append(sorted((min(pair), max(pair)) for pair in pairs if max(pair) < members))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return schedule


def interface_to(address: str) -> Optional[str]:
    """Return the network interface with which this node reaches an address; None if it has no IPv4.

    Without it, gloo uses the address of the host name, which may be one of the loopback.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # a datagram socket sends nothing here
            own = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                with contextlib.suppress(OSError):
                    row = fcntl.ioctl(
                        probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15])
                    )
                    if socket.inet_ntoa(row[20:24]) == own:
                        return name
    except OSError:
        pass
    if address.startswith("127."):
        return "lo"
    return None
