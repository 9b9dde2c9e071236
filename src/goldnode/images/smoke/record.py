"""The record of a smoke test as evidence of an image: parse the runner's output, summarise it, attach it.

The runner's output comes from the image under test. So its single results are used, and its summary
is not. An attached record has no time, no host name and no figures of the cpu tier, so equal
results are equal documents. Performance figures of a real GPU belong to the gpu tier.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from goldnode.core.errors import ImageError
from goldnode.gpuprogram.command import BAD, OK
from goldnode.gpuprogram.results import FAILED, NOT_RUN, PASSED
from goldnode.gpuprogram.smoke import programs, report
from goldnode.oci.layout import Layout, OciImage, canonical

TYPE = "application/vnd.goldnode.smoke.v1+json"
STATES = (PASSED, FAILED, NOT_RUN)

Json = dict[str, Any]


def read(data: bytes, backend: str | None = None) -> Json:
    """Parse a record that was printed inside an image. Tiers, summary and exit code follow from its tests.

    `backend` is that of the image's label. Raises ImageError for invalid output, and for another
    backend.
    """
    try:
        document = json.loads(data)
        if document["schema"] != report.SCHEMA:
            raise ValueError(f"its schema is {document['schema']!r}")
        tiers = {}
        for name in report.TIERS:
            # No image vouches for itself: its own summary is not looked at.
            tests = [_test(test) for test in document["tiers"][name]["tests"]]
            tiers[name] = report.tier(tests, str(document["tiers"][name]["why"]))
        told = str(document["backend"])
    except (ValueError, KeyError, TypeError) as problem:
        raise ImageError(
            f"the output of the image's goldnode-smoke is not a record: {problem}",
            remedy="build the image again",
        ) from problem
    # Else an image could pass as another backend, whose tests are fewer.
    if backend is not None and told != backend:
        raise ImageError(
            f"the image's goldnode-smoke tested {told}, and the image is labelled {backend}",
            remedy="build the image again",
        )
    record: Json = {
        "schema": report.SCHEMA,
        "backend": told,
        "image": None if document.get("image") is None else str(document["image"]),
        "build_id": None if document.get("build_id") is None else str(document["build_id"]),
        "parts_without_a_test": sorted(
            str(part) for part in document.get("parts_without_a_test") or []
        ),
        "simulated": any(tier["simulated"] for tier in tiers.values()),
        "tiers": tiers,
    }
    return summed(record, ("cpu", "gpu") if tiers["gpu"]["tests"] else ("cpu",))


def _test(test: Any) -> Json:
    if (
        test["state"] not in STATES
        or not isinstance(test["name"], str)
        or not isinstance(test["required"], bool)
    ):
        raise ValueError(f"the test {test.get('name')!r} has no state")
    # Known keys alone: whatever else the image printed is not attached.
    kept: Json = {key: test.get(key) for key in ("name", "state", "required", "expected", "got")}
    kept["why"] = str(test.get("why") or "")
    kept["figures"] = test["figures"] if isinstance(test.get("figures"), dict) else {}
    if test.get("simulated"):
        kept["simulated"] = True
    return kept


def with_team_tests(record: Json, declared: Sequence[Mapping[str, Any]], *, hardware: bool) -> Json:
    """Return the record with each declared test of the image's team that it lacks, as one that was not run.

    The goldnode-smoke of a base that is older than these tests does not know them. `hardware`:
    devices were given to the image, so its tests of the gpu tier are due.
    """
    rows = {name: list(tier["tests"]) for name, tier in record["tiers"].items()}
    named = {test["name"] for tests in rows.values() for test in tests}
    lacking = [
        row
        for row in declared
        if programs.PREFIX + row["name"] not in named and (hardware or row["tier"] == "cpu")
    ]
    if not lacking:
        return record
    why = "goldnode-smoke of its base is older than such tests: use --runner own"
    for row in lacking:
        rows[row["tier"]].append(_not_run(programs.PREFIX + row["name"], why))
    tiers = {name: report.tier(rows[name], tier["why"]) for name, tier in record["tiers"].items()}
    return summed({**record, "tiers": tiers}, ("cpu", "gpu") if rows["gpu"] else ("cpu",))


def _not_run(name: str, why: str) -> Json:
    return {
        "name": name,
        "state": NOT_RUN,
        "required": True,
        "why": why,
        "expected": None,
        "got": None,
        "figures": {},
    }


def missing(backend: str, why: str) -> Json:
    """Return the record of an image whose smoke test could not be run."""
    tiers = {
        "cpu": report.tier([_not_run("start", why)]),
        "gpu": report.tier([], "the smoke test could not be run"),
    }
    record: Json = {
        "schema": report.SCHEMA,
        "backend": backend,
        "image": None,
        "build_id": None,
        "parts_without_a_test": [],
        "simulated": False,
    }
    return summed({**record, "tiers": tiers}, ("cpu",))


def emulated(record: Json, emulator: str) -> Json:
    """Return the record of a run in which `emulator` executed the image's programs, labelled so."""
    label = f"emulated by {emulator}"
    tiers = dict(record["tiers"])
    for name, tier in tiers.items():
        if tier["tests"]:
            tiers[name] = {**tier, "why": "; ".join(filter(None, (tier["why"], label)))}
    return {**record, "emulated": emulator, "tiers": tiers}


def summed(record: Json, required: tuple[str, ...]) -> Json:
    """Return the record with its status and exit code."""
    code = report.exit_code(record, required)
    status = {OK: PASSED, BAD: FAILED}.get(code, NOT_RUN)
    return {**record, "status": status, "exit_code": code}


def evidence(record: Json, earlier: Mapping[str, Any] | None = None) -> Json:
    """Return the record to attach.

    It consists of the tiers of `record`. `earlier`, an older record of the same image, replaces
    tiers that could not run now; they are marked with `earlier: true`. A simulated result never
    replaces a real one. A tier that failed, or that was required and could not run, replaces the
    earlier one.
    """
    tiers = {}
    for name in report.TIERS:
        now = record["tiers"][name]
        # Durations and the cpu tier's figures differ between runs, and would make every record a
        # new document.
        tests = [
            {key: value for key, value in test.items() if key != "seconds"} for test in now["tests"]
        ]
        if name == "cpu":
            tests = [{**test, "figures": {}} for test in tests]
        tiers[name] = {**now, "tests": tests}
        before = (earlier or {}).get("tiers", {}).get(name)
        if before and before["state"] != NOT_RUN and now["state"] != FAILED:
            weaker = now["state"] == NOT_RUN or (now["simulated"] and not before["simulated"])
            if weaker and not any(
                test["required"] for test in now["tests"] if test["state"] == NOT_RUN
            ):
                tiers[name] = {**before, "earlier": True}
    simulated = any(tier["simulated"] for tier in tiers.values())
    kept = {
        key: record[key]
        for key in ("schema", "backend", "image", "build_id", "parts_without_a_test")
    }
    if "emulated" in record:
        kept["emulated"] = record["emulated"]
    return {**kept, "simulated": simulated, "tiers": tiers}


def attached(layout: Layout, digest: str) -> Json | None:
    """Return the smoke record of an image; None without a readable one."""
    for _, manifest in layout.attached(digest, TYPE):
        try:
            statement = json.loads(layout.read(manifest["layers"][0]["digest"]))
            if statement["schema"] == report.SCHEMA and set(statement["tiers"]) == set(
                report.TIERS
            ):
                return dict(statement)
        except (ValueError, KeyError, TypeError, IndexError):
            continue
    return None


def attach(image: OciImage, record: Json) -> Json:
    """Attach the record in place of the previous one. Return the attached document."""
    layout = image.layout
    document = evidence(record, attached(layout, image.digest))
    new = layout.attach(image.digest, TYPE, canonical(document))
    # Detach older records only now: an interruption leaves two records, never none.
    for descriptor, _ in layout.attached(image.digest, TYPE):
        if descriptor.digest != new.digest:
            layout.detach(descriptor.digest)
    return document
