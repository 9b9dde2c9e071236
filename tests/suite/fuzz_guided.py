"""The process of a guided search: `python -m tests.suite.fuzz_guided NAME FOLDER [options of libFuzzer]`."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["goldnode"]):
    from tests.suite.outside import check


def main() -> None:
    """Give inputs of atheris to a parser until one breaks it, or the time is over."""
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, lambda data: check(name, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
