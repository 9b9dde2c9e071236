"""Implementation of `goldnode class bless`: propose a class baseline from captures of good nodes."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from goldnode.catalog import models
from goldnode.catalog.load import Catalog
from goldnode.classdoc import baseline
from goldnode.core.errors import CatalogError
from goldnode.node.ground.optional import optional
from goldnode.node.verdict.rules import as_list, as_map

SCHEMA = "goldnode.capture/1"
Json = dict[str, Any]


def read(path: Path) -> Json:
    """Return the capture in a file. Raises CatalogError if the file is not a capture."""
    try:
        capture = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CatalogError(
            f"the capture cannot be read: {error.strerror}",
            file=path,
            remedy="name a file that `goldnode-node capture` wrote",
        ) from None
    except ValueError:
        raise CatalogError(
            "this is no capture: it is not JSON",
            file=path,
            remedy="make one with `goldnode-node capture` on the node",
        ) from None
    if not isinstance(capture, dict) or capture.get("schema") != SCHEMA:
        raise CatalogError(
            f"this is no capture of schema {SCHEMA}",
            file=path,
            remedy="make one with `goldnode-node capture` on the node",
        )
    if capture.get("source") in ("nvidia-smi-xml", "nvidia-smi-text"):
        raise CatalogError(
            "the output of nvidia-smi says too little of a node",
            file=path,
            remedy="make a capture with `goldnode-node capture`",
        )
    return capture


def bless(
    paths: Sequence[Path], catalog: Catalog, name: str | None = None, reason: str | None = None
) -> baseline.BaselineProposal:
    """Return the baseline that the captures in `paths` have in common.

    `name` is the class it is for: the captures must match its GPU model, GPU count and platform.
    `reason` justifies links and sizes that differ from the facts. Raises CatalogError for a capture
    of a node that is not in good health, and lists all findings.
    """
    captures = [(str(path), read(path)) for path in paths]
    entry = optional(catalog.node_class, name)
    item = entry.item if entry is not None else None
    if (
        entry is not None
        and item is not None
        and item.gpu is not None
        and item.gpu.model == models.AUTO
    ):
        raise entry.error(
            "a baseline is of one GPU model, and the class takes any (`model: auto`)",
            "gpu",
            "model",
            remedy="declare the model, or bless without --class",
        )
    platform = None
    if item is not None and item.platform is not None:
        platform = catalog.platforms[item.platform].item
    for path, (_, capture) in zip(paths, captures, strict=True):
        named = item.gpu if item is not None else None
        model = named.model if named is not None else baseline.model_of(capture)
        gpus = as_list(capture.get("gpus"))
        if gpus and model is None:
            ids = ", ".join(sorted({str(as_map(row).get("pci_id")) for row in gpus}))
            raise CatalogError(
                f"no GPU model of the facts has PCI id {ids}",
                file=path,
                remedy="add it to facts/gpus.yml with its source",
            )
        reasons = []
        if item is not None and item.gpu is not None and len(gpus) != item.gpu.count:
            reasons.append(f"{len(gpus)} GPUs, and class {name} has {item.gpu.count}")
        if (
            item is not None
            and item.gpu is not None
            and baseline.model_of(capture) not in (None, model)
        ):
            reasons.append(
                f"its GPUs are {baseline.model_of(capture)}, and class {name} is of {model}"
            )
        reasons += baseline.doubts(
            capture, model, platform is not None and platform.nvswitch, reason
        )
        if reasons:
            problems = "\n  ".join(reasons)
            more = "bless a node that nothing speaks against" + (
                "" if reason else ", or say with --reason why its hardware is right as it is"
            )
            raise CatalogError(
                f"this is not the capture of a good node:\n  {problems}", file=path, remedy=more
            )
    proposal = baseline.propose(captures, reason)
    # Fail here rather than propose a baseline that the class file would not accept.
    models.Baseline.model_validate(proposal.baseline)
    if item is not None and item.baseline != models.Baseline():
        proposal.notes.append(
            "the class has a baseline already: what it has beyond this one (mounts, paths, modules) is "
            "yours to keep"
        )
    if len(captures) == 1:
        proposal.notes.append(
            "one capture only: what differs between nodes of the class is not known; give some more"
        )
    return proposal


def text(proposal: baseline.BaselineProposal) -> str:
    """Return the proposal as the YAML of a class file."""
    import yaml

    dumped: str = yaml.safe_dump(
        {"baseline": proposal.baseline},
        sort_keys=False,
        default_flow_style=None,
        width=150,
        allow_unicode=True,
    )
    return dumped


def patch(proposal: baseline.BaselineProposal, file: Path) -> str:
    """Return a unified diff that replaces the baseline of a class file, or appends one."""
    before = file.read_text(encoding="utf-8").splitlines(keepends=True)
    # Edit the text instead of dumping the parsed YAML: comments and order of the file survive.
    own = [index for index, line in enumerate(before) if line.startswith("baseline:")]
    start = own[0] if own else len(before)
    end = start + 1
    while own and end < len(before) and (before[end][:1] in (" ", "\t", "-", "\n", "#")):
        end += 1
    while (
        end > start + 1 and end <= len(before) and before[end - 1][:1] in ("\n", "#")
        # A blank line or comment at the end belongs to the key that follows.
    ):
        end -= 1
    after = [*before[:start], *text(proposal).splitlines(keepends=True), *before[end:]]
    return "".join(difflib.unified_diff(before, after, f"a/{file.name}", f"b/{file.name}"))
