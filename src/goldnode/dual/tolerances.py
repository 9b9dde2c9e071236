"""Declared tolerances: the facts' bounds per precision, and a site's file with its own."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from goldnode.core import yamlsource
from goldnode.documents.base import Part
from goldnode.documents.dual import DualRole, DualTolerance
from goldnode.documents.rollout import Percent, fraction
from goldnode.dual.errors import DualError
from goldnode.dual.numbers import PRECISIONS
from goldnode.facts import host as facts

Bound = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Precision = Literal[
    "float64", "float32", "tf32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "exact"
]


class TolerancesBounds(Part):
    """Bounds for one element. It has to be within the ULPs, or within absolute + relative * |a|."""

    relative: Bound | None = None
    absolute: Bound | None = None
    ulp: Annotated[int, Field(ge=0)] | None = None
    outside: Percent = Field("0%", description="share of elements that may be outside")

    @model_validator(mode="after")
    def _bounded(self) -> TolerancesBounds:
        if self.relative is None and self.absolute is None and self.ulp is None:
            raise ValueError("there is no bound | write relative, absolute or ulp")
        return self


class TolerancesArray(TolerancesBounds):
    """Bounds of the arrays whose name fits a pattern, instead of those of their precision."""

    name: str = Field(min_length=1, description="name of arrays, with * and ?")
    role: DualRole | None = Field(None, description="null: of any role")


class TolerancesSamples(Part):
    """How far two distributions may be apart."""

    name: str = Field(min_length=1, description="name of sampled outputs, with * and ?")
    kind: Literal["values", "categories"] = Field(
        description="values: numbers with an order; categories: tokens or classes"
    )
    margin: Percent = Field(default="5%", description="greatest distance that passes")
    confidence: Percent = "99%"


class TolerancesLatency(Part):
    """How much slower a quantile may be."""

    phase: Literal["cold", "warm"]
    quantile: Annotated[float, Field(gt=0, lt=1)]
    margin: Percent = Field(description="loss that passes")
    confidence: Percent = "95%"


class DualTolerancesFile(Part):
    """Tolerances of a site for dual runs."""

    tolerances: Literal[1]
    precisions: dict[Precision, TolerancesBounds] = Field(default_factory=dict)
    arrays: list[TolerancesArray] = Field(
        default_factory=list, description="the first that fits counts"
    )
    samples: list[TolerancesSamples] = Field(default_factory=list)
    latency: list[TolerancesLatency] = Field(default_factory=list)


@dataclass(frozen=True)
class DualTolerances:
    """All tolerances of a comparison."""

    precisions: dict[str, DualTolerance]
    arrays: tuple[tuple[TolerancesArray, str], ...] = ()
    samples: tuple[TolerancesSamples, ...] = ()
    latency: tuple[TolerancesLatency, ...] = field(default=())

    def of(self, role: str, name: str, precision: str) -> DualTolerance | None:
        """Return the bounds of an array; None if there are none for its precision."""
        # The bounds of an array replace those of its precision: the first pattern that fits counts.
        for row, source in self.arrays:
            if row.role in (None, role) and fnmatch.fnmatchcase(name, row.name):
                return _tolerance(row, precision, source)
        return self.precisions.get(precision)

    def of_samples(self, name: str) -> TolerancesSamples | None:
        """Return the margin of a sampled output; None if none is declared."""
        return next((row for row in self.samples if fnmatch.fnmatchcase(name, row.name)), None)


def _tolerance(row: TolerancesBounds, precision: str, source: str) -> DualTolerance:
    return DualTolerance(
        precision=precision,
        # Without a relative or absolute bound the ULPs alone decide.
        relative=row.relative or 0.0,
        absolute=row.absolute or 0.0,
        ulp=row.ulp,
        outside=fraction(row.outside),
        source=source,
    )


def built_in() -> DualTolerances:
    """Return the tolerances of the facts, for all precisions that have some."""
    rows = {
        row["precision"]: DualTolerance(
            precision=row["precision"],
            relative=row["relative"],
            absolute=row["absolute"],
            ulp=None,
            outside=0.0,
            source="facts/tolerances.yml",
        )
        for row in facts.load("tolerances.yml")["tolerances"]
        if row["precision"] in PRECISIONS
    }
    # The facts have bounds of floating point alone.
    exact = DualTolerance(
        precision="exact",
        relative=0.0,
        absolute=0.0,
        ulp=None,
        outside=0.0,
        source="integers and truth values",
    )
    return DualTolerances({**rows, "exact": exact})


def load(path: Path | None) -> DualTolerances:
    """Return the tolerances of a site's file over the built-in ones. Raises DualError with file and line."""
    own = built_in()
    if path is None:
        return own
    source = yamlsource.read(path, error=DualError)
    file = yamlsource.validate(DualTolerancesFile, source, error=DualError)
    changed: dict[str, DualTolerance] = {
        name: _tolerance(row, name, path.name) for name, row in file.precisions.items()
    }
    return DualTolerances(
        # A site states the precisions that it changes.
        precisions={**own.precisions, **changed},
        arrays=tuple((row, path.name) for row in file.arrays),
        samples=tuple(file.samples),
        latency=tuple(file.latency),
    )
