"""`goldnode-node capture`, and reading of a record: a stored capture, or the output of `nvidia-smi -q -x`."""

from __future__ import annotations

import json
import os
import sys

from ..ground.errors import NodeError
from ..ground.json_lines import as_dict, as_list
from ..ground.optional import optional
from ..ground.text import cleaned
from . import SCHEMA, capture
from .values import unread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional

    from ..ground.host import Host, Json

# Bytes of a record; the largest real one that was seen, of 8 GPUs in XML, has 0.4 MB.
MOST = 64 << 20
CLASS = "/etc/goldnode/class.json"
# Sections of a capture and what they are, for the look at a record: anything else in their place is a fault.
SECTIONS = {
    "identity": dict, "os": dict, "driver": dict, "gpus": list, "nvswitches": list, "fabric_manager": dict, "devices": dict, "pci": dict, "pci_unread": list,
    "numa": dict, "events": dict, "cpu": dict, "memory": dict, "network": dict, "infiniband": dict, "storage": dict, "runtime": dict,
    "services": dict, "packages": dict, "pressure": dict, "time_sync": dict, "blocked": list, "limits": dict,
}  # fmt: skip
# Parts of a GPU that are objects where they are no fault.
GPU_OBJECTS = (
    "memory", "pcie", "utilization", "ecc", "remapped_rows", "remapped_banks", "retired_pages", "repair", "power", "clocks", "throttle", "temperature", "mig",
    "nvlink", "fabric", "inforom", "settings",
)  # fmt: skip


def arguments(parser: Any) -> None:
    """Add the options of `goldnode-node capture`."""
    parser.add_argument(
        "--class",
        dest="document",
        metavar="FILE",
        help=f"class document; may be missing (default: {CLASS})",
    )
    parser.add_argument(
        "--from",
        dest="record",
        metavar="FILE",
        help="read a recorded capture, or the output of `nvidia-smi -q -x`; - is standard input",
    )
    parser.add_argument(
        "--anonymous",
        action="store_true",
        help="replace serial numbers, UUIDs, network addresses and host names",
    )
    parser.add_argument(
        "--passive", action="store_true", help="put no load on the node, as the timer does"
    )


def run(host: Host, options: Any) -> int:
    """Print a capture."""
    if options.record:
        captured = load(options.record)
    else:
        document = given_document(host, options.document)
        captured = capture(host, document, options.passive)
    if options.anonymous:
        captured = anonymous(captured)
    try:
        print(json.dumps(captured, indent=1))
    except BrokenPipeError:  # the reader has seen enough; Python must not fail at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def given_document(host: Host, name: Optional[str]) -> Optional[Json]:
    """Return the class document: a path of this machine, or the node's own if it has one."""
    try:
        if name is None:
            text = host.text(CLASS)
        else:
            with open(name, encoding="utf-8") as opened:
                text = opened.read()
        document = optional(json.loads, text)
    except (OSError, ValueError) as problem:
        if name is None:
            print(
                f"goldnode-node: {CLASS} cannot be read, and is left out: {problem}",
                file=sys.stderr,
            )
            return None
        raise NodeError(
            f"{name}: not a class document ({problem}). Export it with `goldnode class export`."
        ) from None
    if document is not None and not isinstance(document, dict):
        raise NodeError(
            f"{name or CLASS}: not a class document. Export it with `goldnode class export`."
        )
    return document


# -- records


def load(name: str) -> Json:
    """Return the capture of a file: a recorded one, or one made of the output of `nvidia-smi -q -x` or
    `nvidia-smi -q`. "-" is standard input.

    A value of another type than the schema's becomes a fault. Raises NodeError for a file that is neither.
    """
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MOST + 1)
        else:
            with open(name, "rb") as opened:
                data = opened.read(MOST + 1)
    except OSError as problem:
        raise NodeError(
            f"{name}: cannot be read ({problem.strerror}). Correct the name, or who may read the file."
        ) from None
    if not data.strip():
        raise NodeError(
            f"{name}: is empty. Record it again with `goldnode-node capture`, or with `nvidia-smi -q -x`."
        )
    if data[:2] == b"\x1f\x8b":
        raise NodeError(
            f"{name}: is compressed. Decompress it: `zcat {name} | goldnode check-node -`."
        )
    if len(data) > MOST:
        raise NodeError(
            f"{name}: larger than {MOST >> 20} MiB. Give one capture, or one output of `nvidia-smi -q -x`."
        )
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):  # as PowerShell redirects
        data = data.decode("utf-16", "replace").encode()
    data = data.removeprefix(b"\xef\xbb\xbf")
    start = data.lstrip()[:1]
    if start == b"<":
        from . import smi

        return dict(cleaned(smi.parse(data, name)))
    if start in (b"{", b"["):
        return recorded(data, name)
    if b"NVSMI LOG" in data[:400]:
        from . import smitext

        return dict(cleaned(smitext.parse(data, name)))
    what = "the table of nvidia-smi" if b"NVIDIA-SMI" in data[:400] else "neither JSON nor XML"
    raise NodeError(
        f"{name}: this is {what}. Give a capture (`goldnode-node capture`), or the output of `nvidia-smi -q -x`."
    )


def recorded(data: bytes, name: str) -> Json:
    """Return a recorded capture with checked types.

    Values of a wrong type become faults, and texts are cleaned; nothing else changes. Raises NodeError for another
    schema.
    """
    try:
        record = cleaned(json.loads(data))
    except (ValueError, RecursionError) as problem:
        raise NodeError(
            f"{name}: not JSON ({problem}). It may be cut off: record it again with `goldnode-node capture`."
        ) from None
    schema = as_dict(record).get("schema")
    if schema != SCHEMA:
        description = f"schema {str(schema)[:60]!r}" if schema else "no capture"
        raise NodeError(
            f"{name}: {description}, not {SCHEMA}. Record it with `goldnode-node capture`."
        )
    for key, kind in SECTIONS.items():
        value = record.get(key)
        if value is not None and not isinstance(value, kind):
            record[key] = wrong(key, value)
    if isinstance(record.get("gpus"), list):
        record["gpus"] = [_gpu(gpu) for gpu in record["gpus"]]
    if isinstance(record.get("pci"), dict) and "fault" not in record["pci"]:
        record["pci"] = {
            address: row if isinstance(row, dict) else wrong(address, row)
            for address, row in record["pci"].items()
        }
    events = record.get("events")
    if isinstance(events, dict) and "rows" in events:
        rows = events["rows"]
        events["rows"] = [row for row in as_list(rows) if isinstance(row, dict)]
        if events["rows"] != rows:
            events["error"] = wrong("events.rows", rows)
    for key in ("time", "source"):
        if not isinstance(record.get(key), str):
            record[key] = None
    return {**record, "simulated": record.get("simulated") is True}


def wrong(key: str, value: Any) -> Json:
    """Return the fault of a value with a wrong type."""
    return unread(f"the record has a {type(value).__name__} for {key[:60]}")


def _gpu(gpu: Any) -> Json:
    if not isinstance(gpu, dict):
        fault = wrong("a GPU", gpu)
        return {
            "index": None,
            "address": fault,
            "vendor": None,
            "lost": False,
            **dict.fromkeys(("name", "uuid", *GPU_OBJECTS), fault),
        }
    row = dict(gpu)
    for key in GPU_OBJECTS:
        if row.get(key) is not None and not isinstance(row[key], dict):
            row[key] = wrong(key, row[key])
    if not isinstance(row.get("processes", []), (list, dict)):
        row["processes"] = wrong("processes", row["processes"])
    links = (row.get("nvlink") or {}).get("links", [])
    if not isinstance(links, list) or not all(isinstance(link, dict) for link in links):
        row["nvlink"] = wrong("nvlink.links", links)
    return row


# -- without names


# Keys whose values identify one machine or device, and the text that replaces the value.
NAMES = {
    "serial": "SERIAL", "uuid": "GPU", "mac": "MAC", "hostname": "HOST", "machine_id": "MACHINE", "boot_id": "BOOT", "boot_identity": "BOOT",
    "guid": "GUID", "node_guid": "GUID", "cluster": "CLUSTER", "wwn": "WWN",
}  # fmt: skip
# Texts of others, in which a host's name or address can stand. Elsewhere a name may be a word that means something ("node").
FREE = ("hostname", "text", "cmdline", "device", "options", "expected", "got", "subject")
# Identifiers that are replaced anywhere in a text: UUIDs and hardware addresses.
PATTERNS = (
    ("UUID", r"(?<![\w])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![\w])"),
    ("MAC", r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])"),
)
INTERNET = r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"


def without_init(cmdline: str) -> str:
    """Return a kernel command line without the program that it starts as init, and without its arguments.

    The kernel passes everything after ` -- ` to init (Documentation/admin-guide/kernel-parameters.rst), where a
    site may have a token or an address.
    """
    import re

    parameters, separator, _ = cmdline.partition(" -- ")
    parameters = re.sub(r"(?<!\S)((?:rd)?init)=\S+", r"\1=PROGRAM", parameters)
    return parameters + separator + ("ARGUMENTS" if separator else "")


def anonymous(captured: Json, named: Optional[Callable[[str, str], str]] = None) -> Json:
    """Return the capture with a placeholder for each name of a machine or its parts.

    The same name gets the same placeholder everywhere, numbered in the order of occurrence. No part of a name
    remains, and equal names stay equal.

    :param named: returns the placeholder of a name of a kind, in place of a number.
    """
    import re

    given: Dict[str, str] = {}
    hosts: Dict[str, str] = {}
    counts: Dict[str, int] = {}
    made = re.compile(rf"(?:{'|'.join(sorted({*NAMES.values(), 'UUID', 'SERVER'}))})-\d+")

    def name(value: str, kind: str, into: Dict[str, str]) -> None:
        # Zeros alone are no name: boards without a serial number or GUID report them.
        empty = not value or not set(value) - set("0-:")
        if not empty and value not in given and value not in hosts and not made.fullmatch(value):
            into[value] = named(kind, value) if named else f"{kind}-{counts.get(kind, 0)}"
            counts[kind] = counts.get(kind, 0) + 1

    def collect(value: Any, key: str = "") -> None:
        if isinstance(value, dict):
            if "fault" in value:
                return
            for one, item in value.items():
                if one.startswith("/"):
                    patterns(one, "device")
                collect(item, one)
        elif isinstance(value, list):
            for item in value:
                collect(item, key)
        elif isinstance(value, str):
            if key in NAMES:
                name(value, NAMES[key], hosts if key == "hostname" else given)
            patterns(value, key)

    def patterns(value: str, key: str) -> None:
        for kind, pattern in PATTERNS:
            for word in re.findall(pattern, value):
                if not any(word in known for known in given):
                    name(word, kind, given)
        if key in FREE:
            for word in re.findall(INTERNET, value):
                name(word, "SERVER", hosts)
        if key == "device" and ":/" in value:  # a file system of another machine
            name(value.partition(":/")[0], "SERVER", hosts)

    collect(captured)

    def replacer(names: Dict[str, str]) -> Any:
        # Longest first: a name may begin with another one.
        words = "|".join(re.escape(one) for one in sorted(names, key=len, reverse=True))
        return re.compile(rf"(?<![A-Za-z0-9_])(?:{words})(?![A-Za-z0-9_])") if words else None

    own, others = replacer(given), replacer(hosts)

    def text(value: str, key: str) -> str:
        if others and (key in FREE or value.startswith("/")):
            value = others.sub(lambda match: hosts[match[0]], value)
        return own.sub(lambda match: given[match[0]], value) if own else value

    def replace(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            free = "text" if "fault" in value else ""
            return {text(one, ""): replace(item, free or one) for one, item in value.items()}
        if isinstance(value, list):
            return [replace(item, key) for item in value]
        if key == "cmdline" and isinstance(value, str):
            value = without_init(value)
        return text(value, key) if isinstance(value, str) else value

    return {**replace(captured), "schema": captured.get("schema"), "anonymous": True}
