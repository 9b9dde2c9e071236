"""Detects other work on the node: jobs of Slurm, and processes that compute on a GPU. Reads /proc alone, calls no driver."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Set, Tuple

from goldnode.gpuprogram.image import read, under

# CUDA opens the first when it starts, the HIP and OpenCL runtimes of AMD the second. Monitors such
# as DCGM need neither.
COMPUTE_FILES = ("/dev/nvidia-uvm", "/dev/kfd")
# It starts the diagnosis of `dcgmi diag`, which is a job of the suite.
HOST_ENGINE = "nv-hostengine"
RUN = "GOLDNODE_CANARY_RUN"  # variable of a container of the suite
PERIOD = 1.0  # seconds between two looks


class Arrivals:
    """Other work on this node, beyond what this process and its children do.

    `own_job` is the id of the Slurm job that this process belongs to, `own_run` a mark in the
    environment of a container that it started; empty without one.
    """

    def __init__(self, root: str = "/", own_job: str = "", own_run: str = "") -> None:
        self.root = root
        self.own_job = own_job
        self.own_run = own_run
        self._seen: Set[int] = set()

    def work(self) -> str:
        """Return a sentence about other work; empty without any.

        A process on a GPU counts when two calls have found it: a health check ends sooner.
        """
        parents, names = self._processes()
        own = self._family(parents) | _below(
            {pid for pid, name in names.items() if name == HOST_ENGINE}, parents
        )
        for pid, name in names.items():
            if name == "slurmstepd" and pid not in own and not self._of_own_job(pid):
                return f"a Slurm job runs on the node (process {pid})"
        computing = [
            pid
            for pid in names
            if pid not in own and self._computes(pid) and not self._of_own_run(pid)
        ]
        again = [pid for pid in computing if pid in self._seen]
        self._seen = set(computing)
        if again:
            return f"another process computes on a GPU: {names[again[0]]} (process {again[0]})"
        return ""

    def _processes(self) -> Tuple[Dict[int, int], Dict[int, str]]:
        """Return process -> parent, and process -> name (proc_pid_stat(5))."""
        parents: Dict[int, int] = {}
        names: Dict[int, str] = {}
        for entry in os.listdir(under(self.root, "/proc")):
            text = read(under(self.root, f"/proc/{entry}/stat")) if entry.isdigit() else None
            if text is None:
                continue  # it has ended
            head, _, rest = text.rpartition(")")
            fields = rest.split()
            if len(fields) > 1 and fields[1].isdigit():
                parents[int(entry)] = int(fields[1])
                names[int(entry)] = head.partition("(")[2]
        return parents, names

    @staticmethod
    def _family(parents: Dict[int, int]) -> Set[int]:
        """Return this process, all of its ancestors, and its descendants."""
        me = os.getpid()
        family, above = {me}, parents.get(me, 0)
        while above and above not in family:
            family.add(above)
            above = parents.get(above, 0)
        return family | _below({me}, parents)

    def _of_own_job(self, pid: int) -> bool:
        """Return whether a step daemon belongs to the own job. Its command line is `slurmstepd: [JOB.STEP]`."""
        if not self.own_job:
            return False
        text = (read(under(self.root, f"/proc/{pid}/cmdline")) or "").replace("\0", " ")
        job = re.search(r"\[(\d+)[._]", text)
        return job is not None and job[1] == self.own_job

    def _of_own_run(self, pid: int) -> bool:
        """Return whether a process is in the container that this process started."""
        mark = f"{RUN}={self.own_run}"
        text = read(under(self.root, f"/proc/{pid}/environ")) if self.own_run else None
        return text is not None and mark in text.split("\0")

    def _computes(self, pid: int) -> bool:
        folder = under(self.root, f"/proc/{pid}/fd")
        try:
            files: List[str] = os.listdir(folder)
        except OSError:  # it has ended, or belongs to another user
            return False
        for name in files:
            try:
                if os.readlink(f"{folder}/{name}") in COMPUTE_FILES:
                    return True
            except OSError:
                continue
        return False


def _below(pids: Set[int], parents: Dict[int, int]) -> Set[int]:
    """Return these processes and all of their descendants."""
    family = set(pids)
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        family |= more
        grown = bool(more)
    return family
