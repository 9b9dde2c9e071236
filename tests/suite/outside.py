"""Parsers of what comes from outside: how each is called, which errors it may raise, and its seeds.

`tests/unit/test_outside.py` calls each with generated input in every run; `python -m tests.suite.fuzz NAME` searches
with the coverage of the code as its guide. A parser may refuse any input with the errors of its row, in bounded
time; any other exception is a fault.
"""

from __future__ import annotations

import datetime as dt
import io
import itertools
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock
from urllib.parse import urlsplit

import requests

from goldnode.catalog.models import NodeClass
from goldnode.channels import signed
from goldnode.core import elf, yamlsource
from goldnode.core import keys as openpgp_keys
from goldnode.core.credentials import Credentials
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import SiteBmc
from goldnode.explain import answer
from goldnode.fleet.control import bmc
from goldnode.fleet.drain import kubectl, slurm
from goldnode.fleet.drain import record as drain_record
from goldnode.fleet.ingest import report
from goldnode.inspect import archives
from goldnode.inspect.devicecode import HEAD
from goldnode.inventory import schedulers
from goldnode.node.effective import (
    cdi,
    enginetext,
    grub,
    grub_defaults,
    kmod,
    ldcache,
    loader,
    yamltext,
)
from goldnode.node.follow import trust
from goldnode.node.ground import boot, openpgp
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.probe import logs, smi, smitext
from goldnode.node.program.main import read_document
from goldnode.node.state import bootdisk
from goldnode.oci.layout import Layout

ROOT = Path(__file__).parents[2]
NOW = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
_MOST_SEED = 60_000  # bytes: a longer one makes a run slow and finds no more
_MOST_NAMES = 100_000


@dataclass(frozen=True)
class OutsideParser:
    """A parser. `seeds` are patterns of files below the root, or texts; `kind` is how inputs are changed."""

    call: Callable[[bytes], object]
    refuses: tuple[type[Exception], ...]
    seeds: tuple[str, ...]
    kind: str = "text"  # text, json or bytes

    def inputs(self) -> list[bytes]:
        """Return the seeds, the smallest first."""
        found: list[bytes] = []
        for seed in self.seeds:
            paths = (
                sorted(ROOT.glob(seed)) if seed.startswith(("tests/", "src/", "catalog/")) else []
            )
            found += [path.read_bytes()[:_MOST_SEED] for path in paths[:6]]
            found += [] if paths else [seed.encode()]
        return sorted(found, key=len)


def _text(call: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: call(data.decode("utf-8", "replace"))


def _report(data: bytes) -> object:
    document = report.load(data)
    return report.report_of(document, data, report.ReportOrigin("n1"), NOW)


def _archive(data: bytes) -> object:
    kind = archives.kind_of(data[:HEAD])
    if kind not in ("tar", "zip", "gzip"):
        return None
    rows = archives.members(kind, io.BytesIO(data), "outside", 1 << 20)
    return [row.path for row in itertools.islice(rows, 1000)]


def _release(data: bytes) -> object:
    rows = data.split(b"\0", 1)
    return grub.next_boot(rows[0].decode("utf-8", "replace"), rows[-1])


def _layout(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        (Path(folder) / "index.json").write_bytes(data)
        return Layout(Path(folder), create=False).refs()


def _class_file(data: bytes) -> object:
    source = yamlsource.parse(data.decode("utf-8", "replace"), Path("class.yml"))
    return yamlsource.validate(NodeClass, source)


def _class_document(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "class.json")
        path.write_bytes(data)
        return read_document(Host("/"), SimpleNamespace(document=str(path)))


def _channels(data: bytes) -> object:
    files = signed.newest_files(lambda name: None if name == "2.root.json" else data)
    return [signed.unverified({"1.targets.json": data}), signed.unverified(files)]


def _metadata(data: bytes) -> object:
    return [_verified(role, data) for role in ("root", "timestamp", "snapshot", "targets")]


def _verified(role: str, data: bytes) -> object:
    try:
        return trust.parsed(data, role)
    except trust.ChannelRefusedError:
        return None


class _AnsweringBmc(bmc.RedfishBmc):
    """A BMC whose credentials are at hand."""

    def credentials(self) -> Credentials:
        return Credentials("user", "password")


def _redfish(data: bytes) -> object:
    """Ask a BMC whose answers are the values of a document, by path; what is no document answers each question."""
    try:
        answers = json.loads(data)
    except (ValueError, RecursionError):
        answers = None

    def request(_: object, method: str, url: str, **more: object) -> requests.Response:
        reply = requests.Response()
        reply.status_code, reply.url = 200, url
        reply._content = data
        if isinstance(answers, dict):
            body = answers.get(urlsplit(url).path.rstrip("/"))
            reply._content = json.dumps(body).encode()
        return reply

    site = SiteBmc(protocol="redfish", address="https://{node}", credentials="unused")
    with mock.patch("requests.Session.request", request), mock.patch("time.sleep"):
        machine = _AnsweringBmc("https://n1", site, "n1", Path)
        machine.switch(True)
        return machine.is_on()


_SYSTEM = "/redfish/v1/Systems/1"
_RESET = {
    "#ComputerSystem.Reset": {
        "target": f"{_SYSTEM}/Actions/ComputerSystem.Reset",
        "ResetType@Redfish.AllowableValues": ["On", "ForceOff"],
    }
}
_BMC = {
    "/redfish/v1": {
        "@odata.id": "/redfish/v1/",
        "Id": "RootService",
        "Name": "Root",
        "RedfishVersion": "1.6.0",
        "Systems": {"@odata.id": "/redfish/v1/Systems"},
        "Links": {"Sessions": {"@odata.id": "/redfish/v1/SessionService/Sessions"}},
    },
    "/redfish/v1/Systems": {
        "@odata.id": "/redfish/v1/Systems",
        "Name": "Systems",
        "Members": [{"@odata.id": _SYSTEM}],
    },
    _SYSTEM: {
        "@odata.id": _SYSTEM,
        "Id": "1",
        "Name": "node",
        "PowerState": "On",
        "Actions": _RESET,
    },
}

PARSERS: dict[str, OutsideParser] = {
    "capture": OutsideParser(
        _report,
        (GoldnodeError,),
        ("tests/cases/recorded/*/capture.json", '{"schema": "goldnode.capture/1"}'),
        "json",
    ),
    "class-file": OutsideParser(_class_file, (GoldnodeError,), ("catalog/classes/*.yml",)),
    "class-document": OutsideParser(
        _class_document,
        (NodeError,),
        (
            '{"schema": "goldnode.class/1", "class": "l4", "kernel": {"release": "6.1.0-1-amd64"}, "modules": [], '
            '"lock": {"digest": "sha256:00"}, "baseline": {"services": ["ssh"]}, "follow": {"channel": "http://a"}}',
        ),
        "json",
    ),
    "channel-metadata": OutsideParser(
        _channels,
        (GoldnodeError,),
        (
            '{"signed": {"_type": "targets", "version": 1, "targets": {"l4/disk/stable": {"custom": {"moves": []}}}, '
            '"meta": {"snapshot.json": {"version": 1}}}, "signatures": []}',
        ),
        "json",
    ),
    "node-metadata": OutsideParser(
        _metadata,
        (),
        (
            '{"signed": {"_type": "targets", "spec_version": "1.0.31", "version": 1, "expires": "2030-01-01T00:00:00Z", '
            '"targets": {}, "delegations": {"keys": {}, "roles": [{"name": "a", "keyids": [], "threshold": 1, '
            '"terminating": true, "paths": ["*"]}]}}, "signatures": [{"keyid": "a", "sig": "00"}]}',
            '{"signed": {"_type": "timestamp", "spec_version": "1.0.31", "version": 1, "expires": "2030-01-01T00:00:00Z", '
            '"meta": {"snapshot.json": {"version": 1, "length": 5, "hashes": {"sha256": "00"}}}}, "signatures": []}',
        ),
        "json",
    ),
    "redfish": OutsideParser(_redfish, (bmc.BmcError,), (json.dumps(_BMC),), "json"),
    "nvml-xml": OutsideParser(
        lambda data: smi.parse(data, "x"), (NodeError,), ("tests/unit/node/fixtures/smi/*.xml",)
    ),
    "nvidia-smi-text": OutsideParser(
        lambda data: smitext.parse(data, "x"), (NodeError,), ("tests/unit/node/fixtures/smi/*.txt",)
    ),
    "kernel-log": OutsideParser(
        lambda data: [logs.candidates(data), logs.parse(data.splitlines())],
        (),
        ("tests/cases/logs/lines.yml", "6,1,1,-;NVRM: Xid (PCI:0000:41:00): 79, pid=1, off bus"),
    ),
    "explain": OutsideParser(
        _text(answer.explain), (), ("NVRM: Xid (PCI:0000:41:00): 79", "tests/reports/gpu/*.yml")
    ),
    "slurm-nodes": OutsideParser(
        _text(schedulers.slurm_hosts),
        (GoldnodeError,),
        ("tests/unit/inventory/answers/scontrol.txt",),
    ),
    "kubectl-nodes": OutsideParser(
        _text(schedulers.kubernetes_hosts),
        (GoldnodeError,),
        ("tests/unit/inventory/answers/*.json",),
        "json",
    ),
    "slurm-drain": OutsideParser(
        _text(lambda text: [slurm.slurm_rows(text), slurm.slurm_ends(text)]),
        (GoldnodeError,),
        ("n1|drain|goldnode|2026-11-28T00:00:00\n", "n1|IDLE+DRAIN|reason|root\n"),
    ),
    "slurm-maintenance": OutsideParser(
        _text(lambda text: slurm.maintained(text, "own")),
        (GoldnodeError,),
        ("ReservationName=m Nodes=n[001-003,7],m1 Flags=MAINT State=ACTIVE\n",),
    ),
    "slurm-host-list": OutsideParser(
        _text(lambda text: list(itertools.islice(slurm.expand(text), _MOST_NAMES))),
        (GoldnodeError,),
        ("n[001-003,7],m1", "a[1-2]b[3-4]", "(null)"),
    ),
    "kubectl-pods": OutsideParser(
        _text(lambda text: kubectl.pods(lambda _: text)),
        (GoldnodeError,),
        ("n1 2026-11-28T00:00:00Z 3600 Job\n", "n1 <none> <none> ReplicaSet\n"),
    ),
    "drain-record": OutsideParser(
        _text(drain_record.parse), (GoldnodeError, ValueError), ('{"schema": 1}',), "json"
    ),
    "openpgp": OutsideParser(
        lambda data: [openpgp.primary_fingerprints(data), openpgp_keys.states(data)],
        (openpgp.OpenPGPError,),
        ("tests/**/*.asc", "tests/**/*.gpg"),
        "bytes",
    ),
    "elf": OutsideParser(elf.dynamic, (), ("\x7fELF\x02\x01\x01",), "bytes"),
    "archive": OutsideParser(_archive, archives.ERRORS, ("ustar",), "bytes"),
    "grub": OutsideParser(
        _release,
        (grub.GrubError,),
        ("menuentry 'a' $menuentry_id_option 'b' {\n linux /vmlinuz-6.1 quiet\n}\n\0# GRUB\n",),
    ),
    "grub-environment": OutsideParser(
        grub.environment,
        (grub.GrubError,),
        ("# GRUB Environment Block\nsaved_entry=a>b\n####",),
        "bytes",
    ),
    "grub-defaults": OutsideParser(
        _text(lambda text: grub_defaults.of({"/etc/default/grub": text})),
        (grub_defaults.GrubSyntaxError,),
        ("GRUB_CMDLINE_LINUX=\"a ${b} 'c'\"\nGRUB_DEFAULT=saved # x\n",),
    ),
    "modprobe": OutsideParser(
        _text(lambda text: kmod.parsed("a.conf", text)),
        (),
        ("options nvidia NVreg_A=1\nblacklist nouveau\ninstall a /bin/false \\\n b\n",),
    ),
    "ld-cache": OutsideParser(
        lambda data: ldcache.cached(data, "libcuda.so.1", "x86_64"),
        (ValueError,),
        ("glibc-ld.so.cache1.1\x01\x00\x00\x00",),
        "bytes",
    ),
    "yaml": OutsideParser(
        _text(yamltext.read), (yamltext.YamlError,), ("a:\n  - b: 1\n    c: [1, 'x']\n",)
    ),
    "cdi": OutsideParser(
        _text(cdi.read_cdi),
        (),
        (
            '{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0", '
            '"containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "major": 195, "minor": 0}]}}]}',
        ),
        "json",
    ),
    "daemon-json": OutsideParser(
        _text(enginetext.read_json),
        (enginetext.BrokenError,),
        ('{"runtimes": {"nvidia": {"path": "a"}}}',),
        "json",
    ),
    "containerd-toml": OutsideParser(
        _text(enginetext.read_toml),
        (enginetext.BrokenError,),
        ('version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n a = "b"\n',),
    ),
    "oci-index": OutsideParser(
        _layout,
        (GoldnodeError,),
        (
            '{"schemaVersion": 2, "manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json", '
            '"digest": "sha256:00", "size": 2, "annotations": {"org.opencontainers.image.ref.name": "a"}}]}',
        ),
        "json",
    ),
    "efi-load-option": OutsideParser(
        bootdisk.hard_drive,
        (),
        ("\x01\0\0\0\x2e\0L\0\0\0\x04\x01\x2a\0" + "\x01" * 36 + "\x02\x02\x7f\xff\x04\0",),
        "bytes",
    ),
    "boot-entry": OutsideParser(
        _text(lambda text: loader.parse("a+3-1.conf", text)),
        (),
        ("title a\nversion 6.1.0\nlinux /vmlinuz\noptions quiet a=b\n",),
    ),
    "uptime": OutsideParser(
        _text(lambda text: [boot.uptime(text), boot.seconds(text), boot.identity("a", text)]),
        (),
        ("123.4 5\n", "btime 17\n"),
    ),
}


def check(name: str, data: bytes) -> None:
    """Give input to a parser; its errors are an answer, and any other exception is raised."""
    parser = PARSERS[name]
    try:
        parser.call(data)
    except parser.refuses:
        return


def stored(name: str, folder: Path) -> list[bytes]:
    """Return the inputs that an earlier search has found for a parser."""
    path = folder / f"{name}.json"
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [bytes.fromhex(row["input"]) for row in rows]
