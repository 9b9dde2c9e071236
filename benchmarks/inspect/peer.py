"""The peer: DT_NEEDED of every ELF file below ROOT with pyelftools, and nothing else. Prints count and seconds as JSON.

`python peer.py ROOT`, by the Python that pyelftools is installed in. It goes through files as the inspection does.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile


def main() -> None:
    """Measure."""
    started, cpu = time.perf_counter(), time.process_time()
    files, names = 0, 0
    for folder, _, rows in os.walk(sys.argv[1]):
        for row in rows:
            path = os.path.join(folder, row)  # noqa: PTH118 - one of tens of thousands
            if not stat.S_ISREG(os.lstat(path).st_mode):
                continue
            with open(path, "rb") as file:  # noqa: PTH123
                if file.read(4) != b"\x7fELF":
                    continue
                files += 1
                try:
                    for segment in ELFFile(file).iter_segments("PT_DYNAMIC"):
                        names += sum(1 for tag in segment.iter_tags("DT_NEEDED") if tag.needed)
                except ELFError:
                    continue
    print(
        json.dumps(
            {
                "elf": files,
                "needed": names,
                "wall": time.perf_counter() - started,
                "cpu": time.process_time() - cpu,
            }
        )
    )


if __name__ == "__main__":
    main()
