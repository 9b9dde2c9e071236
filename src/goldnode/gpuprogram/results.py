"""Results of a test: its states, and the exceptions that end it without passing."""

from __future__ import annotations

from typing import Any, Dict, Optional

Json = Dict[str, Any]

PASSED, FAILED, NOT_RUN = "passed", "failed", "not_run"


class Failed(Exception):  # noqa: N818 - its name is its meaning
    """A test ran and got a wrong result."""

    def __init__(
        self, why: str, expected: Any = None, got: Any = None, figures: Optional[Json] = None
    ) -> None:
        super().__init__(why)
        self.result = {
            "state": FAILED,
            "why": why,
            "expected": expected,
            "got": got,
            "figures": figures or {},
        }


class NotRun(Exception):  # noqa: N818
    """A test does not apply here (`required` False), or could not be run although it should have been."""

    def __init__(self, why: str, required: bool = False, got: Any = None) -> None:
        super().__init__(why)
        self.result = {"state": NOT_RUN, "why": why, "required": required, "got": got}


def passed(
    expected: Any = None, got: Any = None, figures: Optional[Json] = None, why: str = ""
) -> Json:
    """Return the result of a test that passed."""
    return {"state": PASSED, "why": why, "expected": expected, "got": got, "figures": figures or {}}
