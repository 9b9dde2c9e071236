"""Command `goldnode fleet hardware`."""

from __future__ import annotations

import csv
import io
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.fleet.ingest import DATA, directory
from goldnode.commands.fleet.report import Moment, now
from goldnode.commands.options import NEW_FILE
from goldnode.commands.output import dumps, emit, reports, say, table
from goldnode.core.files import replace_file

if TYPE_CHECKING:
    from goldnode.documents.fleet_hardware import FleetHardwareDocument, HardwarePart

SIMULATED = "SIMULATED hardware: {} of {} parts"
HEADING = (
    "node",
    "class",
    "captured",
    "simulated",
    "kind",
    "address",
    "vendor",
    "model",
    "part_number",
    "serial",
    "identity",
    "pci_id",
    "firmware",
)
_SHOWN = ("node", "kind", "address", "model", "part_number", "serial", "firmware")
# First characters of a formula in Excel and LibreOffice.
_FORMULA = ("=", "+", "-", "@")


@click.command()
@click.option(
    "--at",
    type=Moment(),
    metavar="TIME",
    show_default="now",
    help="List the parts as they were then, by what had arrived then.",
)
@click.option(
    "--out",
    type=NEW_FILE,
    metavar="FILE",
    help="Write to this file instead of standard output. The file is replaced at once.",
)
@DATA
@reports("fleet-hardware", "csv")
def hardware(at: datetime | None, out: Path | None, data: Path | None, form: str) -> None:
    """List the parts of the nodes: serial numbers, part numbers, slots and firmware.

    For a CMDB: machines, GPUs, NVSwitches, network interfaces, InfiniBand devices and disks by the last capture of each
    node, however old it is; `captured` is its time. A slot is a PCI address.
    """
    where = directory(data)
    # After `directory`, which names a missing extra: this import needs its packages.
    from goldnode.fleet.report.hardware import hardware as read

    listed = read(where, at or now())
    # Standard output may be a CSV file.
    for node in listed.without:
        click.echo(f"warning: the last capture of {node} has no part", err=True)
    content = listed.model_dump(by_alias=True, mode="json")
    if form == "json" and out is None:
        emit(form, content)
        return
    text = {
        "json": lambda: dumps(content) + "\n",
        "csv": lambda: as_csv(listed),
        "text": lambda: _text(listed),
    }[form]()
    if out is None:
        click.echo(text, nl=False)
        return
    replace_file(out, text.encode())
    say(f"wrote {out}")


def as_csv(document: FleetHardwareDocument) -> str:
    """Return the parts as CSV (RFC 4180), with a heading. Empty: the capture has no such value."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(HEADING)
    writer.writerows([_cell(value) for value in _values(part, HEADING)] for part in document.parts)
    return out.getvalue()


def _values(part: HardwarePart, names: tuple[str, ...]) -> list[str]:
    row = part.model_dump(by_alias=True, mode="json")
    texts = {True: "true", False: "false", None: ""}
    return [value if isinstance(value := row[name], str) else texts[value] for name in names]


def _cell(text: str) -> str:
    """Return a text that no spreadsheet evaluates: a node may report any."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _text(document: FleetHardwareDocument) -> str:
    simulated = sum(part.simulated for part in document.parts)
    head = f"{SIMULATED.format(simulated, len(document.parts))}\n" if simulated else ""
    rows = [tuple(_values(part, _SHOWN)) for part in document.parts]
    heading = tuple(name.replace("_", " ") for name in _SHOWN)
    return f"{head}{table([heading, *rows]) if rows else 'no parts'}\n"
