"""The scan of ROOT with all signals, and the policy of `cpu` over it. Prints count and seconds as JSON.

`python -m benchmarks.inspect.own ROOT`. Starting Python and importing goldnode is not in it, as it is not in the peer's.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import time
from pathlib import Path

from goldnode.inspect import policy
from goldnode.inspect.scan import View, scan_directory


def main() -> None:
    """Measure."""
    rules = policy.load()
    started, cpu = time.perf_counter(), time.process_time()
    scan = scan_directory(Path(sys.argv[1]))
    scanned, scanned_cpu = time.perf_counter(), time.process_time()
    view = View(name="root")
    view.add(scan)
    found = policy.inspect(view, rules, "cpu", today=dt.datetime.now(tz=dt.UTC).date())
    print(
        json.dumps(
            {
                "files": len(scan.paths),
                "elf": sum(row.is_elf for row in scan.elf.values()),
                "bytes": sum(scan.paths[path].size for path, row in scan.elf.items() if row.is_elf),
                "needed": sum(len(row.needed) for row in scan.elf.values()),
                "refused": sum(row.severity == "refuse" for row in found.findings),
                "wall": scanned - started,
                "cpu": scanned_cpu - cpu,
                "policy_wall": time.perf_counter() - scanned,
                "policy_cpu": time.process_time() - scanned_cpu,
            }
        )
    )


if __name__ == "__main__":
    main()
