"""Every class of the catalog against images until COUNT checks are made, in this process; prints the seconds as JSON.

`python -m benchmarks.check.inprocess COUNT`. The facts are not read before, so that their reading is in it.
"""

from __future__ import annotations

import json
import math
import sys
import time

from goldnode.classdoc.load import load_catalog
from goldnode.classdoc.view import read_class
from goldnode.compat.check import check
from goldnode.compat.workloads import of_text
from goldnode.core.site import Site
from goldnode.facts import host as facts


def references(count: int) -> list[str]:
    """Return `count` image references, of NVIDIA's CUDA images and PyTorch's, made of the versions in the facts."""
    cuda = [str(row["version"]) for row in facts.load("cuda.yml")["releases"]]
    torch = facts.load("frameworks.yml")["torch_wheels"]
    found = [
        f"pytorch/pytorch:{row['version']}-cuda{row['cudart'].rpartition('.')[0]}-cudnn9-runtime"
        for row in torch
        if row["cudart"]
    ]
    kinds = ("base", "runtime", "devel", "cudnn-runtime", "cudnn-devel")
    systems = ("ubuntu20.04", "ubuntu22.04", "ubuntu24.04")
    found += [
        f"nvidia/cuda:{version}-{kind}-{system}"
        for version in cuda
        for kind in kinds
        for system in systems
    ]
    return [
        found[index * len(found) // count] for index in range(count)
    ]  # spread over all versions


def main() -> None:
    """Measure."""
    count = int(sys.argv[1])
    started, cpu = time.perf_counter(), time.process_time()
    catalog, site = load_catalog(), Site()
    hosts = [read_class(name, catalog, site).host for name in sorted(catalog.classes)]
    ready, ready_cpu = time.perf_counter(), time.process_time()
    images = [of_text(item) for item in references(math.ceil(count / len(hosts)))]
    pairs = [(host, image) for image in images for host in hosts][:count]
    verdicts: dict[str, int] = {"ok": 0, "warn": 0, "unknown": 0, "block": 0}
    order = list(verdicts)
    for host, image in pairs:
        found = check(host, [image])
        verdicts[
            max(
                (finding.severity for finding in found if finding.accepted is None),
                key=order.index,
                default="ok",
            )
        ] += 1
    ended, ended_cpu = time.perf_counter(), time.process_time()
    print(
        json.dumps(
            {
                "checks": len(pairs),
                "classes": len(hosts),
                "images": len(images),
                "catalog": {"wall": ready - started, "cpu": ready_cpu - cpu},
                "all_checks": {"wall": ended - ready, "cpu": ended_cpu - ready_cpu},
                "verdicts": verdicts,
            }
        )
    )


if __name__ == "__main__":
    main()
