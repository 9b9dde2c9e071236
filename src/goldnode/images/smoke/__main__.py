"""`python -m goldnode.images.smoke …`: run goldnode-smoke from a checkout.

`… pack FILE` writes the single file for images and nodes. Python's standard library is enough.
Without PyYAML the floors are missing, and the GEMM result is reported without a limit.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    """Run the tests or pack the program; return the exit code."""
    if sys.argv[1:2] == ["pack"]:
        from goldnode.gpuprogram.pack import write
        from goldnode.gpuprogram.smoke import pack

        target = Path(sys.argv[2] if len(sys.argv) == 3 else pack.NAME)
        write(target, pack.program())
        print(f"wrote {target}")
        return 0
    from goldnode.gpuprogram.smoke import start  # start-up time: `pack` runs no test

    try:
        from goldnode.gpuprogram.smoke import pack

        floors = pack.floors()
    except ImportError as problem:
        print(f"goldnode-smoke: no floors: {problem}", file=sys.stderr)
        floors = []
    return start.main(str(Path(__file__).parents[3]), floors)


if __name__ == "__main__":
    sys.exit(main())
