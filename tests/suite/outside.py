"""Parsers of what comes from outside: how each is called, which errors it may raise, and its seeds.

`tests/unit/test_outside.py` calls each with generated input in every run; `python -m tests.suite.fuzz NAME` searches
with the coverage of the code as its guide. A parser may refuse any input with the errors of its row, in bounded
time; any other exception is a fault.
"""

from __future__ import annotations

import datetime as dt
import gzip
import io
import itertools
import json
import os
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import requests

from goldnode.catalog.models import NodeClass
from goldnode.channels import signed
from goldnode.core import elf, yamlsource
from goldnode.core import keys as openpgp_keys
from goldnode.core.credentials import Credentials
from goldnode.core.errors import GoldnodeError
from goldnode.core.files import add_to_zip
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
from goldnode.node.ground.document import ClassDocument
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host
from goldnode.node.probe import logs, smi, smitext
from goldnode.node.program.main import judged, read_document
from goldnode.node.state import bootdisk, observe
from goldnode.oci.identity import identity, names_of
from goldnode.oci.layout import CONFIG, LAYER, MANIFEST, Layout, OciImage, digest_of, read_manifest
from goldnode.oci.model import LABELS

ROOT = Path(__file__).parents[2]
_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
_RECORDED = "tests/cases/recorded/h200_x1_580.159.04"
NOW = dt.datetime(2026, 11, 28, tzinfo=dt.UTC)
_MOST_SEED = 60_000  # bytes: a longer one makes a run slow and finds no more
_MOST_NAMES = 100_000


@dataclass(frozen=True)
class OutsideParser:
    """A parser. `seeds` are patterns of files below the root, or texts; `kind` is how inputs are changed."""

    call: Callable[[bytes], object]
    refuses: tuple[type[Exception], ...]
    seeds: tuple[str | bytes, ...]
    kind: str = "text"  # text, json or bytes

    def inputs(self) -> list[bytes]:
        """Return the seeds, the smallest first."""
        found: list[bytes] = []
        for seed in self.seeds:
            if isinstance(seed, bytes):
                found.append(seed)
                continue
            is_pattern = seed.startswith(("tests/", "src/", "catalog/"))
            paths = sorted(ROOT.glob(seed)) if is_pattern else []
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


def _class_document(data: bytes) -> ClassDocument:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "class.json")
        path.write_bytes(data)
        return read_document(Host("/"), SimpleNamespace(document=str(path)))


def _recorded(data: bytes) -> object:
    """Judge the recorded capture of a node by a class document."""
    document = _class_document(data)
    capture = json.loads((ROOT / f"{_RECORDED}/capture.json").read_bytes())
    return judged(Host("/"), document, "class.json", captured=capture)


def _image(data: bytes) -> object:
    """Read an image whose manifest and configuration are the values of a document, and its attached documents."""
    try:
        image = json.loads(data)
    except (ValueError, RecursionError):
        image = {"manifest": None}
    parts = image if isinstance(image, dict) else {}
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        layout = Layout(Path(folder))
        config, shape = layout.put(_json(parts.get("config")), CONFIG), parts.get("manifest")
        layout.put(b"", LAYER)
        if isinstance(shape, dict) and shape.get("config") == _IMAGE["manifest"]["config"]:
            shape["config"] = config.document()
        manifest = layout.put(_json(shape), MANIFEST)
        layout.set_ref("outside", manifest)
        names_of(layout, manifest.digest)
        found = OciImage(layout, manifest.digest)
        return [
            found.labels,
            found.environment,
            found.layers,
            identity(found.config),
            found.members,
        ]


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _layer(data: bytes) -> object:
    """Read the files of an image with one layer, as it is and below a known one."""
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        layout = Layout(Path(folder))
        rows = [layout.put(_tar("usr/lib/a", "etc/b"), LAYER).document()]
        for kind in (LAYER, f"{LAYER}+gzip"):
            rows.append(layout.put(data, kind).document())
        config = layout.put(b"{}", CONFIG).document()
        for layers in (rows[:2], [rows[0], rows[2]]):
            manifest = layout.put(_json({"config": config, "layers": layers}), MANIFEST)
            image = OciImage(layout, manifest.digest)
            try:
                names = [member.path for member, _ in image.files()]
                _ = [image.resolve(name) for name in [*image.members][:50]]
                _ = [image.read(name) for name in names[:3]]
            except GoldnodeError:
                continue
    return None


def _tar(*names: str) -> bytes:
    """Return a tar of files and links: `usr/bin/a`, or `usr/bin/a>target` for a link."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            path, arrow, target = name.partition(">")
            info = tarfile.TarInfo(path)
            content = b"" if arrow else b"x" * 20
            info.size = len(content)
            if arrow:
                info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info, io.BytesIO(content))
    return data.getvalue()


def _zip(*names: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            add_to_zip(archive, name, b"x" * 20)
    return data.getvalue()


def _efi_variables(data: bytes) -> object:
    """Read all variables that goldnode reads, each with this content."""
    names = [f"{name}-{boot.VENDOR}" for name in _LOADER_VARIABLES]
    option = int.from_bytes(data[4:6], "little")
    names += [
        f"{name}-{bootdisk.GLOBAL}" for name in ("SecureBoot", "BootCurrent", f"Boot{option:04X}")
    ]
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        place = Path(folder + boot.VARIABLES)
        entries = Path(folder + boot.PLACES[0], "loader/entries")
        for path in (place, entries):
            path.mkdir(parents=True)
        (entries / "a.conf").write_text("title a\nlinux /a\n")
        for name in names:
            (place / name).write_bytes(data)
        host = Host(folder)
        return [
            observe.secure_boot(host),
            bootdisk.booted(host),
            bootdisk.hard_drive(data[4:]),
            loader.next_boot(host, boot.PLACES[0]),
        ]


_LOADER_VARIABLES = (
    "LoaderEntryDefault",
    "LoaderEntryOneShot",
    "LoaderEntryLastBooted",
    "LoaderDevicePartUUID",
)


def _utf16(text: str) -> bytes:
    """Return a variable of the boot loader, after four bytes of attributes (efivarfs)."""
    return b"\x06\0\0\0" + text.encode("utf-16-le") + b"\0\0"


def _load_option(*nodes: bytes) -> bytes:
    """Return a load option (UEFI 2.10, 3.1.3): attributes, length of the path, description, device path."""
    path = b"".join(nodes) + b"\x7f\xff\x04\0"
    return struct.pack("<IH", 1, len(path)) + "Linux".encode("utf-16-le") + b"\0\0" + path


_GUID = bytes(range(16))
_HARD_DRIVE = b"\x04\x01\x2a\0" + struct.pack("<IQQ", 1, 2048, 4096) + _GUID + b"\x02\x02"
_PCI = b"\x01\x01\x06\0\0\x1f"
_FILE = b"\x04\x04\x0e\0" + "\\EFI".encode("utf-16-le") + b"\0\0"


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

_IMAGE: dict[str, dict[str, Any]] = {
    "manifest": {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": digest_of(b"{}"), "size": 2},
        "layers": [
            {"mediaType": LAYER, "digest": digest_of(b""), "size": 0, "annotations": {"a": "b"}}
        ],
    },
    "config": {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/bin"],
            "Labels": {
                f"{LABELS}{name}": "12.4.1" for name in ("version", "flavour", "os", "build-id")
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [digest_of(b"")]},
        "history": [{"created_by": "RUN a", "empty_layer": True}, {"created_by": "COPY b"}],
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
            "tests/cases/recorded/*/class.json",
            '{"schema": "goldnode.class/1", "class": "l4", "kernel": {"release": "6.1.0-1-amd64"}, "modules": [], '
            '"lock": {"digest": "sha256:00"}, "baseline": {"services": ["ssh"]}, "follow": {"channel": "http://a"}}',
        ),
        "json",
    ),
    "class-document-check": OutsideParser(
        _recorded, (NodeError,), (f"{_RECORDED}/class.json",), "json"
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
    "archive": OutsideParser(
        _archive,
        archives.ERRORS,
        (
            _tar("usr/bin/a", "b>../c"),
            gzip.compress(_tar("a"), mtime=0),
            gzip.compress(b"no tar", mtime=0),
            _zip("a/b.py", "c-1.0.dist-info/RECORD"),
        ),
        "bytes",
    ),
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
    "oci-image": OutsideParser(_image, (GoldnodeError,), (json.dumps(_IMAGE),), "json"),
    "oci-manifest": OutsideParser(
        lambda data: read_manifest(data, "outside"),
        (GoldnodeError,),
        (json.dumps(_IMAGE["manifest"]), json.dumps({"manifests": _IMAGE["manifest"]["layers"]})),
        "json",
    ),
    "oci-layer": OutsideParser(
        _layer,
        (GoldnodeError,),
        (
            _tar("usr/lib/.wh.a", "etc/.wh..wh..opq", "etc/c>../usr/lib/a", "a>b", "b>a"),
            gzip.compress(_tar("usr/lib/" + "n" * 120, "opt/x>/etc/b"), mtime=0),
        ),
        "bytes",
    ),
    "efi-variables": OutsideParser(
        _efi_variables,
        (),
        (
            b"\x06\0\0\0\x01",
            _utf16("a.conf"),
            _utf16("@saved"),
            _utf16("03020100-0504-0706-0809-0a0b0c0d0e0f"),
            b"\x07\0\0\0" + _load_option(_PCI, _HARD_DRIVE, _FILE),
        ),
        "bytes",
    ),
    "efi-load-option": OutsideParser(
        bootdisk.hard_drive,
        (),
        (_load_option(_PCI, _HARD_DRIVE, _FILE), _load_option(_FILE)),
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
